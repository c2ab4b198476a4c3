package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/modfile"
)

// use writes replace lines into the go.mod of the module in dir, so that it takes each module that gets a tag from the clone in root. Lines
// of the same modules are replaced. The paths are relative, so that both may move together.
func use(root, dir string) error {
	from, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	in, errIn := filepath.Rel(root, from)
	out, errOut := filepath.Rel(from, root)
	if err := errors.Join(errIn, errOut); err != nil {
		return fmt.Errorf("find the clone from the module: %w", err)
	}
	if filepath.IsLocal(in) || filepath.IsLocal(out) {
		return fmt.Errorf("%s is in the clone, or the clone in it: put them beside each other", dir)
	}
	if _, err := os.Stat(from); err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	name := filepath.Join(from, "go.mod")
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is no module: run go mod init there first: %w", dir, err)
	}
	if err != nil {
		return fmt.Errorf("read the module: %w", err)
	}
	file, err := modfile.Parse(name, text, nil)
	if err != nil {
		return fmt.Errorf("read the module: %w", err)
	}
	modules, err := modulesOf(root)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if private(m.dir) {
			continue
		}
		to := filepath.ToSlash(filepath.Join(out, m.dir))
		if err := file.AddReplace(m.path(), "", to, ""); err != nil {
			return fmt.Errorf("replace %s: %w", m.path(), err)
		}
	}
	file.Cleanup()
	if text, err = file.Format(); err != nil {
		return fmt.Errorf("write the module: %w", err)
	}
	if err := os.WriteFile(name, text, 0o644); err != nil {
		return fmt.Errorf("write the module: %w", err)
	}
	fmt.Println("changed", name)
	return nil
}
