package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// minMajor is the oldest PostgreSQL that holdfast supports.
const minMajor = 15

// ErrNoServer is what Start's error wraps when there are no binaries and none could be had.
var ErrNoServer = errors.New("no PostgreSQL server to be had")

// FindBinDir returns the folder of the PostgreSQL binaries that Start would use without
// downloading any. It fails with ErrNoServer when this machine has none of a supported version.
func FindBinDir(ctx context.Context) (string, error) {
	for _, dir := range candidates(ctx) {
		if usable(ctx, dir) == nil {
			return dir, nil
		}
	}
	return "", ErrNoServer
}

// candidates lists the folders to look in, in the order of preference: what the user put on the
// PATH is what the user meant; then packages, newest first; then what was downloaded before.
func candidates(ctx context.Context) []string {
	var dirs []string
	if path, err := exec.LookPath(exe("postgres")); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	if path, err := exec.LookPath(exe("pg_config")); err == nil {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, path, "--bindir").Output(); err == nil {
			dirs = append(dirs, filepath.FromSlash(strings.TrimSpace(string(out))))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
		"/usr/pgsql-*/bin",                                   // Red Hat
		"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew on Apple silicon
		"/usr/local/opt/postgresql@*/bin",                    // Homebrew on Intel
		"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
		"/Library/PostgreSQL/*/bin",                          // EDB's installer
		`C:\Program Files\PostgreSQL\*\bin`,                  // EDB's installer
		"/usr/local/pgsql/bin",                               // built from source
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		slices.SortFunc(found, func(a, b string) int { return majorIn(b) - majorIn(a) })
		dirs = append(dirs, found...)
	}
	if dir, err := downloadDir(); err == nil {
		dirs = append(dirs, filepath.Join(dir, "bin"))
	}
	return dirs
}

// majorIn reads the version out of a folder's path: "/usr/lib/postgresql/15/bin" is 15.
func majorIn(path string) int {
	start := strings.IndexAny(path, "0123456789")
	if start < 0 {
		return 0
	}
	end := start
	for end < len(path) && path[end] >= '0' && path[end] <= '9' {
		end++
	}
	n, _ := strconv.Atoi(path[start:end])
	return n
}

// usable returns nil when dir holds initdb and a postgres that is new enough.
func usable(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, exe("initdb"))); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(dir, exe("postgres")), "--version").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", dir, err)
	}
	// "postgres (PostgreSQL) 15.13 (Debian …)"; a beta is "18beta1".
	_, version, _ := strings.Cut(string(out), ") ")
	if major := majorIn(version); major < minMajor {
		return fmt.Errorf("%s holds PostgreSQL %d, this build needs %d or newer", dir, major, minMajor)
	}
	return nil
}

func exe(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".exe"
	}
	return name
}

// binDirFor returns the folder to run from.
func binDirFor(ctx context.Context, opts Options) (string, error) {
	if opts.BinDir != "" {
		if err := usable(ctx, opts.BinDir); err != nil {
			return "", fmt.Errorf("use Options.BinDir %s: %w", opts.BinDir, err)
		}
		return opts.BinDir, nil
	}
	return FindBinDir(ctx)
}
