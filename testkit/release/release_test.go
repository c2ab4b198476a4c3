package main

import (
	"context"
	"crypto/rand"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

const (
	holdfast = "github.com/holdfast-go/holdfast"
	mostFor  = 40 // modules of a program that imports outbox alone
)

// version is no release, and no other test's either.
var version = "v0.97.3-test." + "x" + strings.ToLower(rand.Text())

// foreign are modules that no user of the library may get: containers, telemetry, OpenAPI, embedded servers, imitations.
var foreign = regexp.MustCompile(`containers?/|testcontainers|moby|docker|opentelemetry|kin-openapi|embedded-postgres|franz-go|kfake|logrus|/testkit`)

// What a user gets who asks for the modules of a release: nobody else's go.work, replacements or sums.
func TestEveryPublicPackageCanBeHadAloneFromARelease(t *testing.T) {
	needProxy(t)
	work := t.TempDir()
	// The machine's own modules: those of others are compiled already. What is packed here does not stay in it.
	cache := goEnv("GOMODCACHE")
	t.Cleanup(func() { forget(t, cache) })
	root, err := rootDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := prepare(t.Context(), root, work, cache, version)
	if err != nil {
		t.Fatal(err)
	}
	user := func(t *testing.T, dir string, args ...string) string {
		t.Helper()
		out, err := output(t.Context(), dir, r.env(), "go", args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	packages := map[string]string{} // by import path: what it may have of foreign
	for _, name := range []string{"", "/outbox", "/relay", "/inbox", "/dlq", "/retry", "/idempotency", "/webhook", "/kafkago", "/holdfasttest", "/contrib/redis"} {
		packages[holdfast+name] = "^$"
	}
	packages[holdfast+"/contrib/otel"] = "opentelemetry"
	for name, may := range packages {
		t.Run(strings.TrimPrefix(name, holdfast), func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), "module example.com/shop\n\ngo 1.25.0\n")
			write(t, filepath.Join(dir, "main.go"), "package main\n\nimport _ \""+name+"\"\n\nfunc main() {}\n")
			user(t, dir, "get", name+"@"+version)
			user(t, dir, "mod", "tidy")
			user(t, dir, "build", "-o", os.DevNull, ".")
			modules := strings.Split(strings.TrimSpace(user(t, dir, "list", "-m", "all")), "\n")
			sums, _ := os.ReadFile(filepath.Join(dir, "go.sum"))
			t.Logf("%d modules, %d lines of go.sum", len(modules)-1, strings.Count(string(sums), "\n"))
			for _, m := range modules {
				if foreign.MatchString(m) && !regexp.MustCompile(may).MatchString(m) {
					t.Errorf("a program that imports %s gets %s", name, m)
				}
			}
			if strings.HasSuffix(name, "/outbox") && len(modules)-1 > mostFor {
				t.Errorf("%d modules, want %d or fewer", len(modules)-1, mostFor)
			}
		})
	}
	for _, command := range []string{"/cmd/holdfast", "/cmd/holdfast-torture"} {
		t.Run("go install "+command, func(t *testing.T) {
			bin := t.TempDir()
			out, err := output(t.Context(), bin, append(r.env(), "GOBIN="+bin), "go", "install", holdfast+command+"@"+version)
			if err != nil {
				t.Fatal(err, out)
			}
			built := user(t, bin, "version", "-m", filepath.Join(bin, filepath.Base(command)))
			if !strings.Contains(built, "\tmod\t"+holdfast+command+"\t"+version) {
				t.Errorf("it was built from something else:\n%s", built)
			}
			if command == "/cmd/holdfast" && foreign.MatchString(built) {
				t.Errorf("it links what no user of the command needs:\n%s", built)
			}
		})
	}
}

// forget removes from a module cache what it has of our version.
func forget(t *testing.T, cache string) {
	var ours []string
	for _, root := range []string{filepath.Join(cache, holdfast+"@"+version), filepath.Join(cache, "cache", "download", holdfast), filepath.Join(cache, holdfast)} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.Contains(d.Name(), version) {
				return nil
			}
			if ours = append(ours, path); d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		})
	}
	if len(ours) == 0 {
		t.Errorf("nothing of %s is in %s: it was not used", version, cache)
	}
	for _, path := range ours {
		removeAll(path)
	}
}

// The tags that the script makes are where the go command looks for a module's versions.
func TestEachModuleIsTaggedByItsFolder(t *testing.T) {
	r := &release{version: "v1.2.3", modules: []*module{{dir: "."}, {dir: "cmd/holdfast"}, {dir: "bench"}}}
	if got := strings.Join(r.tags(), " "); got != "v1.2.3 cmd/holdfast/v1.2.3" {
		t.Errorf("the tags are %s", got)
	}
}

func TestAVersionThatIsNoneIsRefused(t *testing.T) {
	for _, bad := range []string{"1.2.3", "v1.2", "latest"} {
		if _, err := prepare(t.Context(), ".", t.TempDir(), t.TempDir(), bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// needProxy skips the test where modules of others cannot be had.
func needProxy(t *testing.T) {
	t.Helper()
	first, _, _ := strings.Cut(goEnv("GOPROXY"), ",")
	if !strings.HasPrefix(first, "http") {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, first+"/golang.org/x/mod/@v/list", nil)
	if err == nil {
		var res *http.Response
		if res, err = http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
		}
	}
	if err != nil {
		skip.Without(t, "a proxy of Go modules", "go online or set GOPROXY", err)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
