//go:build unix

package pgserver

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/testkit/internal/freeport"
)

// repository serves testdata/postgres.txz as the archive of any version: three shell scripts, of
// which postgres tells its version and initdb fails, as the real one does for root.
func repository(t *testing.T) (url string, downloads *atomic.Int64) {
	t.Helper()
	archive, err := os.ReadFile("testdata/postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	w := zip.NewWriter(&jar)
	f, err := w.Create("postgres.txz")
	if err == nil {
		_, err = f.Write(archive)
	}
	if err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(jar.Bytes())
	downloads = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
			return
		}
		downloads.Add(1)
		_, _ = w.Write(jar.Bytes())
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

func TestMissingBinariesAreDownloadedAndKept(t *testing.T) {
	t.Parallel()
	url, downloads := repository(t)
	cache := cacheDir(t)
	opts := Options{noBinaries: true, repositoryURL: url, downloadDir: filepath.Join(cache, "postgres")}
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

func TestADownloadChoosesAnotherPortWhenOneIsTaken(t *testing.T) {
	t.Parallel()
	url, _ := repository(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	asked := 0
	opts := Options{noBinaries: true, repositoryURL: url, downloadDir: filepath.Join(cacheDir(t), "postgres"),
		choosePort: func() (int, error) {
			if asked++; asked < 3 {
				return taken.Addr().(*net.TCPAddr).Port, nil
			}
			return freeport.Find()
		}}
	a, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := download(t.Context(), a, opts); err != nil {
		t.Error(err)
	}
	if asked != 3 {
		t.Errorf("asked for %d ports, want 3", asked)
	}
}

func TestWithoutBinariesAndWithoutADownloadTheErrorSaysWhatToDo(t *testing.T) {
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

func TestBinariesThatAreTooOldOrMissingAreNamed(t *testing.T) {
	t.Parallel()
	dir := cacheDir(t)
	if _, err := Start(t.Context(), Options{BinDir: dir}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("an empty folder: %v", err)
	}
	for name, script := range map[string]string{
		"initdb":   "#!/bin/sh\nexit 1\n",
		"postgres": "#!/bin/sh\necho 'postgres (PostgreSQL) 14.18 (Debian 14.18-1)'\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Start(t.Context(), Options{BinDir: dir}); err == nil || !strings.Contains(err.Error(), "PostgreSQL 14, this build needs 15") {
		t.Errorf("version 14: %v", err)
	}
}

func TestVersionsAreReadOutOfFolders(t *testing.T) {
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
