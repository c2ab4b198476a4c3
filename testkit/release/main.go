// Release writes the versions of a release into the go.mod and go.sum of all modules of the repository, and makes their
// tags:
//
//	go run ./testkit/release -version v0.2.0       # writes; commit what it has written
//	go run ./testkit/release -version v0.2.0 -tag  # tags the commit; the tree must be as it was committed
//	go run ./testkit/release                       # go mod tidy in all modules, between releases
//
// Modules of the repository require each other at the version of the release, so each is tidied with the ones before it
// served from a folder, and go.sum has the sums that the tags will have.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
)

// unreleased is the version between releases: go.work has the code, so go.sum has no sums of it.
const unreleased = "v0.0.0"

func main() {
	version := flag.String("version", unreleased, "the version that all modules get")
	tag := flag.Bool("tag", false, "make the tags, where the tree is as the release would write it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *version, *tag); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version string, tag bool) error {
	root, err := rootDir(ctx)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "holdfast-release-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer removeAll(work)
	r, err := prepare(ctx, root, work, filepath.Join(work, "cache"), version)
	if err != nil {
		return err
	}
	changed, err := r.writeBack(root, !tag)
	if err != nil {
		return err
	}
	for _, name := range changed {
		fmt.Println("changed", name)
	}
	if version == unreleased {
		return nil
	}
	if tag && len(changed) > 0 {
		return fmt.Errorf("tag %s: %d files are not as the release writes them: run it without -tag, commit, and run it again", version, len(changed))
	}
	for _, name := range r.tags() {
		if tag {
			if _, err := output(ctx, root, nil, "git", "tag", "-m", "holdfast "+version, name); err != nil {
				return err
			}
		}
		fmt.Println("tag", name)
	}
	return nil
}
