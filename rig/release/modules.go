package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// private says whether nobody requires or installs the module in the folder, so that it gets no tag.
func private(dir string) bool {
	top, _, _ := strings.Cut(dir, "/")
	return top == "examples" || top == "rig"
}

// module is a module of the repository.
type module struct {
	dir  string // from the root, "." for the module there
	file *modfile.File
}

func (m *module) path() string { return m.file.Module.Mod.Path }

// tag is the name of its tag.
func (m *module) tag(version string) string { return path.Join(m.dir, version) }

// rootDir is the folder of go.work.
func rootDir(ctx context.Context) (string, error) {
	out, err := output(ctx, ".", nil, "go", "env", "GOWORK")
	if err != nil {
		return "", err
	}
	work := strings.TrimSpace(out)
	if work == "" || work == "off" {
		return "", errors.New("find the modules: this is no clone of the repository, or GOWORK is off")
	}
	return filepath.Dir(work), nil
}

// modulesOf reads the modules that go.work names, those that others require first.
func modulesOf(root string) ([]*module, error) {
	text, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		return nil, fmt.Errorf("read the modules: %w", err)
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, fmt.Errorf("read the modules: %w", err)
	}
	byPath := map[string]*module{}
	var all []*module
	for _, use := range work.Use {
		m := &module{dir: path.Clean(use.Path)}
		name := filepath.Join(root, m.dir, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the modules: %w", err)
		}
		if m.file, err = modfile.Parse(name, text, nil); err != nil {
			return nil, fmt.Errorf("read the modules: %w", err)
		}
		if len(m.file.Replace) > 0 {
			return nil, fmt.Errorf("%s/go.mod has a replace: nobody could install it", m.dir)
		}
		all = append(all, m)
		byPath[m.path()] = m
	}
	var ordered []*module
	state := map[*module]int{} // 1 while its requirements are visited, 2 after that
	var visit func(m *module) error
	visit = func(m *module) error {
		switch state[m] {
		case 1:
			return fmt.Errorf("%s requires itself by way of another module", m.path())
		case 2:
			return nil
		}
		state[m] = 1
		for _, r := range m.file.Require {
			if other := byPath[r.Mod.Path]; other != nil {
				if err := visit(other); err != nil {
					return err
				}
			}
		}
		state[m] = 2
		ordered = append(ordered, m)
		return nil
	}
	for _, m := range all {
		if err := visit(m); err != nil {
			return nil, err
		}
	}
	return ordered, nil
}

// release is a copy of the repository whose modules have the versions of a release, and a proxy that serves them.
type release struct {
	version string
	tree    string // the copy
	proxy   string
	cache   string // of modules
	modules []*module
}

// prepare makes a release below work from the files of root that git knows or would add. The go command's modules are in
// the folder cache.
func prepare(ctx context.Context, root, work, cache, version string) (*release, error) {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return nil, fmt.Errorf("version is %q: it must be like v1.2.3", version)
	}
	r := &release{
		version: version,
		tree:    filepath.Join(work, "tree"),
		proxy:   filepath.Join(work, "proxy"),
		cache:   cache,
	}
	if err := copyTree(ctx, root, r.tree); err != nil {
		return nil, err
	}
	var err error
	if r.modules, err = modulesOf(r.tree); err != nil {
		return nil, err
	}
	ours := map[string]bool{}
	for _, m := range r.modules {
		ours[m.path()] = true
	}
	// go.work is a file of the module at the top, so it is part of its sum.
	if err := r.setReplacements(ours); err != nil {
		return nil, err
	}
	for _, m := range r.modules {
		if err := r.setVersions(m, ours); err != nil {
			return nil, err
		}
		dir := filepath.Join(r.tree, m.dir)
		if _, err := output(ctx, dir, r.env(), "go", "mod", "tidy"); err != nil {
			return nil, err
		}
		if err := r.publish(m); err != nil {
			return nil, fmt.Errorf("pack %s: %w", m.path(), err)
		}
		if version == unreleased {
			if err := dropSums(filepath.Join(dir, "go.sum"), ours); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// setReplacements writes the version into go.work, which says of each module that others require where its code is: the
// go command asks the proxy for its go.mod otherwise.
func (r *release) setReplacements(ours map[string]bool) error {
	name := filepath.Join(r.tree, "go.work")
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("set the versions of go.work: %w", err)
	}
	work, err := modfile.ParseWork(name, text, nil)
	if err != nil {
		return fmt.Errorf("set the versions of go.work: %w", err)
	}
	for _, line := range work.Replace {
		if ours[line.Old.Path] {
			line.Syntax.Token[slices.Index(line.Syntax.Token, line.Old.Version)] = r.version
		}
	}
	if err := os.WriteFile(name, modfile.Format(work.Syntax), 0o644); err != nil {
		return fmt.Errorf("set the versions of go.work: %w", err)
	}
	return nil
}

// setVersions writes the version into what m requires of the repository.
func (r *release) setVersions(m *module, ours map[string]bool) error {
	for _, req := range slices.Clone(m.file.Require) {
		if ours[req.Mod.Path] {
			if err := m.file.AddRequire(req.Mod.Path, r.version); err != nil {
				return fmt.Errorf("set the versions of %s: %w", m.path(), err)
			}
		}
	}
	text, err := m.file.Format()
	if err == nil {
		err = os.WriteFile(filepath.Join(r.tree, m.dir, "go.mod"), text, 0o644)
	}
	if err == nil {
		err = dropSums(filepath.Join(r.tree, m.dir, "go.sum"), ours) // of an earlier release
	}
	if err != nil {
		return fmt.Errorf("set the versions of %s: %w", m.path(), err)
	}
	return nil
}

// dropSums takes the sums of our modules out of a go.sum.
func dropSums(name string, ours map[string]bool) error {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, " "); !ours[name] {
			kept.WriteString(line)
		}
	}
	return os.WriteFile(name, []byte(kept.String()), 0o644)
}

// tags are the names of the release's tags.
func (r *release) tags() (names []string) {
	for _, m := range r.modules {
		if !private(m.dir) {
			names = append(names, m.tag(r.version))
		}
	}
	return names
}

// writeBack says which go.mod and go.sum of root are not the release's, and makes them so.
func (r *release) writeBack(root string, write bool) (changed []string, err error) {
	names := []string{"go.work"}
	for _, m := range r.modules {
		names = append(names, filepath.Join(m.dir, "go.mod"), filepath.Join(m.dir, "go.sum"))
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(r.tree, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("write the versions: %w", err)
		}
		old, _ := os.ReadFile(filepath.Join(root, name))
		if string(old) == string(text) {
			continue
		}
		changed = append(changed, filepath.ToSlash(name))
		if !write {
			continue
		}
		if err := os.WriteFile(filepath.Join(root, name), text, 0o644); err != nil {
			return nil, fmt.Errorf("write the versions: %w", err)
		}
	}
	return changed, nil
}
