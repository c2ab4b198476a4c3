package pgserver

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"

	"github.com/holdfast-go/holdfast/testkit/internal/freeport"
)

// downloadVersion is what is downloaded where there is no PostgreSQL.
const downloadVersion = embedded.V18

// downloadTimeout bounds the download, some 20 MB, and unpacking it.
const downloadTimeout = 5 * time.Minute

// downloadDir is where downloaded binaries are kept for the next time. Another user than root
// may have to run what root downloaded, so root's own folder will not do.
func downloadDir() (string, error) {
	base, err := os.UserCacheDir()
	if os.Geteuid() == 0 {
		base, err = "/var/cache", nil
	}
	if err != nil {
		return "", fmt.Errorf("find a folder to keep downloads in: %w", err)
	}
	return filepath.Join(base, "holdfast", fmt.Sprintf("postgres-%s-%s-%s", downloadVersion, runtime.GOOS, runtime.GOARCH)), nil
}

// download gets the binaries and returns their folder. They are unpacked beside the final place
// and moved there, so that a program that is killed or two that run at once leave no half of it.
func download(ctx context.Context, a *account, opts Options) (string, error) {
	final := opts.downloadDir
	if final == "" {
		var err error
		if final, err = downloadDir(); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", fmt.Errorf("make the folder for downloads: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(final), "unpack-")
	if err != nil {
		return "", fmt.Errorf("make the folder for downloads: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := fetch(temp, final, opts)
		_ = os.RemoveAll(temp)
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		// The library takes no context; its goroutine ends with the connection or the process.
		err = ctx.Err()
	}
	if err != nil {
		return "", err
	}
	bin := filepath.Join(final, "bin")
	return bin, usable(ctx, a, bin)
}

// fetch has the library download and unpack, which it does on the way to running a server of its
// own: there is no call for the first half alone. As root the second half always fails, because
// initdb refuses root. What counts is whether the binaries are there afterwards.
func fetch(temp, final string, opts Options) error {
	unpacked := filepath.Join(temp, "postgres")
	err := unpack(temp, unpacked, opts)
	for range 4 {
		// The port was free a moment ago: another process, or one of ours between fork and exec,
		// which holds what its parent has open, was listening there.
		if err == nil || !strings.Contains(err.Error(), "already listening on port") {
			break
		}
		err = unpack(temp, unpacked, opts)
	}
	if err != nil {
		return err
	}
	if err := openUp(unpacked); err != nil {
		return err
	}
	if err := os.Rename(unpacked, final); err != nil {
		if _, statErr := os.Stat(filepath.Join(final, "bin")); statErr == nil {
			return nil // another process was first
		}
		return fmt.Errorf("keep the downloaded binaries: %w", err)
	}
	return nil
}

// unpack runs the library once, and says why the binaries are not in the folder unpacked.
func unpack(temp, unpacked string, opts Options) error {
	choosePort := freeport.Find
	if opts.choosePort != nil {
		choosePort = opts.choosePort
	}
	port, err := choosePort()
	if err != nil {
		return err
	}
	config := embedded.DefaultConfig().
		Version(downloadVersion).
		Port(uint32(port)).
		BinariesPath(unpacked).
		RuntimePath(filepath.Join(temp, "run")).
		Logger(io.Discard)
	if opts.repositoryURL != "" {
		config = config.BinaryRepositoryURL(opts.repositoryURL).CachePath(filepath.Join(temp, "archive"))
	} else if _, err := os.UserHomeDir(); err != nil {
		// Without a home the library would keep its archive in the working folder.
		config = config.CachePath(filepath.Join(temp, "archive"))
	}
	server := embedded.NewDatabase(config)
	startErr := server.Start()
	if startErr == nil {
		if err := server.Stop(); err != nil {
			return fmt.Errorf("stop the first server of the downloaded binaries: %w", err)
		}
	}
	if _, err := os.Stat(filepath.Join(unpacked, "bin", exe("postgres"))); err != nil {
		if startErr == nil {
			startErr = err
		}
		return startErr
	}
	return nil
}

// openUp lets every user of the machine enter the folders, whatever the umask was.
func openUp(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return os.Chmod(path, 0o755)
	})
}
