// Release writes the versions of a release into the go.mod and go.sum of all modules of the repository, and makes their
// tags:
//
//	go run ./rig/release -version v0.2.0             # writes; commit what it has written
//	go run ./rig/release -version v0.2.0 -sbom dist  # writes a bill of materials of each module, too
//	go run ./rig/release -version v0.2.0 -tag        # signs tags of the commit; the tree must be as it was committed
//	go run ./rig/release                             # go mod tidy in all modules, between releases
//	go run ./rig/release -check                      # says whether that would change something
//	go run ./rig/release -use ../shop                # has the module in ../shop take all modules from this clone
//
// Modules of the repository require each other at the version of the release, so each is tidied with the ones before it
// served from a folder, and go.sum has the sums that the tags will have.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

// unreleased is the version between releases: go.work has the code, so go.sum has no sums of it.
const unreleased = "v0.0.0"

func main() {
	var o options
	flag.StringVar(&o.version, "version", unreleased, "the version that all modules get")
	flag.BoolVar(&o.check, "check", false, "write nothing, and fail where something would change")
	flag.BoolVar(&o.tag, "tag", false, "make the tags, where the tree is as the release would write it")
	flag.StringVar(&o.use, "use", "", "the folder of a module of yours: write replace lines into its go.mod, so that it takes all modules from this clone, and do nothing else")
	flag.StringVar(&o.sbom, "sbom", "", "the folder to write bills of materials into")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "release: %q is no flag: the folder of a module of yours goes with -use\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	version    string
	check, tag bool
	sbom, use  string
}

func run(ctx context.Context, o options) error {
	root, err := rootDir(ctx)
	if err != nil {
		return err
	}
	if o.use != "" {
		if o != (options{version: unreleased, use: o.use}) {
			return errors.New("-use does nothing else: leave the other flags out")
		}
		return use(root, o.use)
	}
	work, err := os.MkdirTemp("", "holdfast-release-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer removeAll(work)
	r, err := prepare(ctx, root, work, filepath.Join(work, "cache"), o.version)
	if err != nil {
		return err
	}
	changed, err := r.writeBack(root, !o.tag && !o.check)
	if err != nil {
		return err
	}
	for _, name := range changed {
		fmt.Println("changed", name)
	}
	if (o.tag || o.check) && len(changed) > 0 {
		return fmt.Errorf("%d files are not as version %s writes them: run it without -tag and -check, and commit", len(changed), o.version)
	}
	if o.sbom != "" {
		names, err := r.boms(ctx, o.sbom)
		if err != nil {
			return err
		}
		for _, name := range names {
			fmt.Println("wrote", name)
		}
	}
	if o.version == unreleased {
		return nil
	}
	for _, name := range r.tags() {
		if o.tag {
			if err := signTag(ctx, root, name, "holdfast "+o.version); err != nil {
				return err
			}
		}
		fmt.Println("tag", name)
	}
	return nil
}

// signTag makes a signed tag of what is checked out. git's settings say with which key: user.signingkey, gpg.format. Where
// ssh-keygen fails, git 2.39 makes a tag without a signature and says that all is well; such a tag is removed.
func signTag(ctx context.Context, dir, name, message string) error {
	if _, err := output(ctx, dir, nil, "git", "tag", "-s", "-m", message, name); err != nil {
		return err
	}
	text, err := output(ctx, dir, nil, "git", "cat-file", "tag", name)
	if err == nil && strings.Contains(text, "\n-----BEGIN ") {
		return nil
	}
	_, removeErr := output(ctx, dir, nil, "git", "tag", "-d", name)
	return errors.Join(fmt.Errorf("sign the tag %s: git made it without a signature: check user.signingkey and gpg.format", name), err, removeErr)
}
