package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	goversion "golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// publish puts a module of the tree into the proxy.
func (r *release) publish(m *module) error {
	escaped, err := goversion.EscapePath(m.path())
	if err != nil {
		return err
	}
	dir := filepath.Join(r.proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	at := filepath.Join(dir, r.version)
	list, err := os.OpenFile(filepath.Join(dir, "list"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer list.Close()
	if _, err := fmt.Fprintln(list, r.version); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": r.version, "Time": time.Now().UTC()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(at+".info", info, 0o644); err != nil {
		return err
	}
	gomod, err := os.ReadFile(filepath.Join(r.tree, m.dir, "go.mod"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(at+".mod", gomod, 0o644); err != nil {
		return err
	}
	// The go command adds the repository's licence to a module that has none of its own.
	if _, err := os.Stat(filepath.Join(r.tree, m.dir, "LICENSE")); err != nil {
		text, err := os.ReadFile(filepath.Join(r.tree, "LICENSE"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.tree, m.dir, "LICENSE"), text, 0o644); err != nil {
			return err
		}
	}
	packed, err := os.Create(at + ".zip")
	if err != nil {
		return err
	}
	defer packed.Close()
	if err := zip.CreateFromDir(packed, goversion.Version{Path: m.path(), Version: r.version}, filepath.Join(r.tree, m.dir)); err != nil {
		return err
	}
	return packed.Close()
}

// env makes the go command take our modules from the proxy and the others as the user's settings say. GONOPROXY and
// GOPRIVATE are empty: where one is set the go command looks into its cache before it asks a proxy, and takes the module
// at the top, if it has that already, for the only one that could hold contrib/redis.
func (r *release) env() []string {
	had, others := goEnv("GOMODCACHE"), goEnv("GOPROXY")
	return append(os.Environ(), "GOENV=off", "GOWORK=off", "GOFLAGS=-mod=mod", "GOPRIVATE=", "GONOPROXY=",
		"GOSUMDB="+goEnv("GOSUMDB"), "GOTOOLCHAIN="+goEnv("GOTOOLCHAIN"), "GONOSUMDB=github.com/holdfast-go/*,"+goEnv("GONOSUMDB"),
		"GOMODCACHE="+r.cache,
		"GOPROXY=file://"+filepath.ToSlash(r.proxy)+",file://"+filepath.ToSlash(filepath.Join(had, "cache", "download"))+","+others)
}

func goEnv(name string) string {
	out, _ := exec.Command("go", "env", name).Output()
	return strings.TrimSpace(string(out))
}

// copyTree copies the files that git knows, or would add, as they are on the disk.
func copyTree(ctx context.Context, from, to string) error {
	out, err := output(ctx, from, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(out, "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(from, name))
		if os.IsNotExist(err) { // deleted, and not yet committed
			continue
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("copy the tree: %w", err)
		}
	}
	return nil
}

// removeAll removes a folder with a module cache in it, which may have folders that are read-only.
func removeAll(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o755)
		}
		return nil
	})
	_ = os.RemoveAll(dir)
}

// output runs a command and returns what it wrote. env is that of this process where nil.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s in %s: %w\n%s", strings.Join(cmd.Args, " "), dir, err, &errs)
	}
	return string(out), nil
}
