package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// repositoryURL is where archives are downloaded from.
const repositoryURL = "https://repo1.maven.org/maven2"

// downloadTimeout bounds the download, some 15 to 35 MB, and unpacking it.
const downloadTimeout = 5 * time.Minute

// maxArchive bounds what is read of a download, in bytes.
const maxArchive = 128 << 20

// thisArchive is what may be downloaded for this machine.
func thisArchive() (archive, error) {
	_, err := os.Stat("/etc/alpine-release")
	return pinnedArchive(downloadVersion, platformName(runtime.GOOS, runtime.GOARCH, err == nil), pinnedSums)
}

// downloadDir is where an archive's binaries are kept for the next time. Another user than root
// may have to run what root downloaded, so root's own folder will not do.
func downloadDir(a archive) (string, error) {
	base, err := os.UserCacheDir()
	if os.Geteuid() == 0 {
		base, err = "/var/cache", nil
	}
	if err != nil {
		return "", fmt.Errorf("find a folder to keep downloads in: %w", err)
	}
	return filepath.Join(base, "holdfast", a.dirName()), nil
}

// download gets the binaries and returns their folder. They are unpacked beside the final place
// and moved there, so that a program that is killed or two that run at once leave no half of it.
func download(ctx context.Context, acc *account, opts Options) (string, error) {
	wanted, err := thisArchive()
	if opts.archive != nil {
		wanted, err = *opts.archive, nil
	}
	if err != nil {
		return "", err
	}
	final := opts.downloadDir
	if final == "" {
		if final, err = downloadDir(wanted); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	content, err := fetch(ctx, opts.repository(), wanted)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", fmt.Errorf("make the folder for downloads: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(final), "unpack-")
	if err != nil {
		return "", fmt.Errorf("make the folder for downloads: %w", err)
	}
	defer os.RemoveAll(temp)
	unpacked := filepath.Join(temp, "postgres")
	if err := unpack(ctx, content, unpacked); err != nil {
		return "", fmt.Errorf("unpack PostgreSQL %s: %w", wanted.version, err)
	}
	bin := filepath.Join(final, "bin")
	if err := os.Rename(unpacked, final); err != nil {
		if _, statErr := os.Stat(bin); statErr != nil { // otherwise another process was first
			return "", fmt.Errorf("keep the downloaded binaries: %w", err)
		}
	}
	return bin, usable(ctx, acc, bin)
}

// fetch downloads an archive, and returns it only where it is the pinned one.
func fetch(ctx context.Context, repository string, wanted archive) ([]byte, error) {
	url := repository + "/" + wanted.path()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", url, err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("download: %w", err) // it names the address
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("download %s: the answer is %s", url, res.Status)
	}
	content, err := io.ReadAll(io.LimitReader(res.Body, maxArchive+1))
	if err == nil && len(content) > maxArchive {
		err = errors.New("it is longer than any archive")
	}
	if err == nil {
		err = wanted.check(content)
	}
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", url, err)
	}
	return content, nil
}
