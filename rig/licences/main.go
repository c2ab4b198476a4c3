// Licences lists the modules of others that the modules of this repository require, with their licences:
//
//	go run ./rig/licences          # writes THIRD_PARTY_LICENSES.md
//	go run ./rig/licences -check   # says whether it is up to date
//
// It reads the licences from the module cache, and downloads what is missing there. A licence that it does not recognise,
// or that is not permissive, is an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
)

// listName is the list's file, at the root of the repository.
const listName = "THIRD_PARTY_LICENSES.md"

func main() {
	check := flag.Bool("check", false, "write nothing, and fail where the list is out of date")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	root, err := rootDir(ctx)
	if err == nil {
		err = run(ctx, root, *check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, check bool) error {
	all, err := requirements(root)
	if err != nil {
		return err
	}
	if err := locate(ctx, root, all); err != nil {
		return err
	}
	list, err := listOf(all)
	if err != nil {
		return err
	}
	if check {
		return upToDate(root, list)
	}
	return os.WriteFile(filepath.Join(root, listName), []byte(list), 0o644)
}

// upToDate says whether the file has this list.
func upToDate(root, list string) error {
	if old, err := os.ReadFile(filepath.Join(root, listName)); err != nil || string(old) != list {
		return errors.New(listName + " is not what the modules require: run go run ./rig/licences")
	}
	return nil
}

// rootDir is the folder of go.work.
func rootDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	work := strings.TrimSpace(string(out))
	if err != nil || work == "" || work == "off" {
		return "", errors.Join(errors.New("find the modules: this is no clone of the repository, or GOWORK is off"), err)
	}
	return filepath.Dir(work), nil
}
