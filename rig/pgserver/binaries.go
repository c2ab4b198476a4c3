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

// whatToDo ends every message about a missing server.
const whatToDo = "install PostgreSQL 15 or newer, or set DATABASE_URL to a running server, or start Docker"

// binDirFor returns the folder to run from, downloading it if need be.
func binDirFor(ctx context.Context, a *account, opts Options) (string, error) {
	if opts.BinDir != "" {
		if err := usable(ctx, a, opts.BinDir); err != nil {
			return "", fmt.Errorf("use Options.BinDir: %w", err)
		}
		return opts.BinDir, nil
	}
	for _, dir := range candidates(ctx) {
		if opts.noBinaries {
			break
		}
		if usable(ctx, a, dir) == nil {
			return dir, nil
		}
	}
	if opts.NoDownload {
		return "", fmt.Errorf("%w: this machine has no binaries of it: %s", ErrNoServer, whatToDo)
	}
	dir, err := download(ctx, a, opts)
	if err != nil {
		return "", fmt.Errorf("%w: this machine has no binaries of it and they cannot be downloaded (%w): %s", ErrNoServer, err, whatToDo)
	}
	return dir, nil
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
	if wanted, err := thisArchive(); err == nil {
		if dir, err := downloadDir(wanted); err == nil {
			dirs = append(dirs, filepath.Join(dir, "bin"))
		}
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

// usable returns nil when dir holds initdb and a postgres that is new enough, and the account may
// run them.
func usable(ctx context.Context, a *account, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, exe("initdb"))); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := a.output(ctx, dir, nil, filepath.Join(dir, exe("postgres")), "--version")
	if err != nil {
		return err
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
