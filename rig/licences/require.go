package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// requirement is a version of a module of others.
type requirement struct {
	module.Version
	by  []string // the folders of our modules that require it, "." for the one at the top
	dir string   // in the module cache
}

// requirements are those of all modules that go.work names, sorted. A go.mod names every module that has a package which its
// own packages and their tests import, on any platform.
func requirements(root string) ([]*requirement, error) {
	text, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		return nil, fmt.Errorf("read the modules: %w", err)
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, fmt.Errorf("read the modules: %w", err)
	}
	var files []*modfile.File
	ours := map[string]bool{}
	for _, use := range work.Use {
		name := filepath.Join(root, use.Path, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the modules: %w", err)
		}
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, fmt.Errorf("read the modules: %w", err)
		}
		files = append(files, file)
		ours[file.Module.Mod.Path] = true
	}
	byVersion := map[module.Version]*requirement{}
	for i, file := range files {
		for _, r := range file.Require {
			if ours[r.Mod.Path] {
				continue
			}
			if byVersion[r.Mod] == nil {
				byVersion[r.Mod] = &requirement{Version: r.Mod}
			}
			byVersion[r.Mod].by = append(byVersion[r.Mod].by, path.Clean(work.Use[i].Path))
		}
	}
	var all []*requirement
	for _, r := range byVersion {
		slices.Sort(r.by)
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *requirement) int {
		return strings.Compare(a.Path+"@"+a.Version.Version, b.Path+"@"+b.Version.Version)
	})
	return all, nil
}

// locate finds each requirement in the module cache. What is not there is downloaded, and compared with go.sum.
func locate(ctx context.Context, root string, all []*requirement) error {
	byName := map[string]*requirement{}
	args := []string{"mod", "download", "-json"}
	for _, r := range all {
		byName[r.Path+"@"+r.Version.Version] = r
		args = append(args, r.Path+"@"+r.Version.Version)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil && len(out) == 0 {
		return fmt.Errorf("find the modules in the cache: %w: %s", err, &errs)
	}
	for found := json.NewDecoder(bytes.NewReader(out)); ; {
		var m struct{ Path, Version, Dir, Error string }
		if err := found.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("find the modules in the cache: %w", err)
		}
		if m.Error != "" {
			return fmt.Errorf("find %s@%s in the cache: %s", m.Path, m.Version, m.Error)
		}
		if r := byName[m.Path+"@"+m.Version]; r != nil {
			r.dir = m.Dir
		}
	}
	for _, r := range all {
		if r.dir == "" {
			return fmt.Errorf("find %s@%s in the cache: go mod download does not say where it is", r.Path, r.Version.Version)
		}
	}
	return nil
}
