package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
var foreign = regexp.MustCompile(`containerd?/|containers?/|testcontainers|moby|docker|opentelemetry|kin-openapi|embedded-postgres|nats-server|franz-go|kfake|logrus|holdfast/rig\b`)

// mayHave are the foreign modules that a module of contrib is about.
var mayHave = map[string]*regexp.Regexp{
	"contrib/otel":           regexp.MustCompile("opentelemetry"),
	"contrib/prometheus":     regexp.MustCompile("prometheus|perks|xxhash|goautoneg|go.yaml.in|protobuf|x/sys"),
	"contrib/franz":          regexp.MustCompile("franz-go"),
	"contrib/schemaregistry": regexp.MustCompile("franz-go/pkg/sr|protobuf"),
}

// What a user gets who asks for the modules of a release: nobody else's go.work, replacements or sums.
func TestRelease_EveryPublicPackageCanBeHadAloneFromARelease(t *testing.T) {
	skip.InShort(t, "it takes 129 s beside the others")
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
	packages, commands := public(t, r)
	for _, name := range packages {
		may := mayHave[moduleOf(r, name)]
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
				if foreign.MatchString(m) && (may == nil || !may.MatchString(m)) {
					t.Errorf("a program that imports %s gets %s: take it out, or add it to mayHave where the module is about it", name, m)
				}
			}
			if strings.HasSuffix(name, "/outbox") && len(modules)-1 > mostFor {
				t.Errorf("%d modules, want %d or fewer", len(modules)-1, mostFor)
			}
		})
	}
	t.Run("what is packed is what is written", func(t *testing.T) { testPacked(t, r) })
	t.Run("a bill of materials", func(t *testing.T) { testBOM(t, r, "contrib/redis") })
	for _, command := range commands {
		t.Run("go install "+strings.TrimPrefix(command, holdfast), func(t *testing.T) {
			bin := t.TempDir()
			out, err := output(t.Context(), bin, append(r.env(), "GOBIN="+bin), "go", "install", command+"@"+version)
			if err != nil {
				t.Fatal(err, out)
			}
			built := user(t, bin, "version", "-m", filepath.Join(bin, filepath.Base(command)))
			if !strings.Contains(built, "\tmod\t"+command+"\t"+version) {
				t.Errorf("it was built from something else:\n%s", built)
			}
			if command == holdfast+"/cmd/holdfast" && foreign.MatchString(built) {
				t.Errorf("it links what no user of the command needs:\n%s", built)
			}
		})
	}
}

// The sums in go.sum are those of the tags only if each module is packed as the release writes it, go.work included.
func testPacked(t *testing.T, r *release) {
	name := filepath.Join(r.proxy, filepath.FromSlash(holdfast), "@v", r.version+".zip")
	packed, err := zip.OpenReader(name)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	seen := map[string]bool{}
	for _, f := range packed.File {
		file := strings.TrimPrefix(f.Name, holdfast+"@"+r.version+"/")
		want, err := os.ReadFile(filepath.Join(r.tree, file))
		if err != nil {
			t.Fatal(err)
		}
		content, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(content)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is packed as it was before the release: %v", file, err)
		}
		seen[file] = true
	}
	if !seen["go.work"] || !seen["go.mod"] {
		t.Errorf("%s has no go.work or go.mod: the test has gone blind", name)
	}
}

// A bill of materials has what a program gets that imports the module's packages, and no more.
func testBOM(t *testing.T, r *release, dir string) {
	tool, err := r.installBOMTool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(r.modules, func(m *module) bool { return m.dir == dir })
	m := r.modules[at]
	name := filepath.Join(t.TempDir(), bomName(m.path(), r.version))
	if err := r.bom(t.Context(), tool, m, name); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	type component struct {
		Name, Version, Purl string
		Hashes              []struct{ Alg, Content string }
	}
	var bom struct {
		BomFormat, SpecVersion string
		Metadata               struct{ Component component }
		Components             []component
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	if c := bom.Metadata.Component; bom.BomFormat != "CycloneDX" || c.Name != m.path() || c.Version != r.version {
		t.Errorf("it is a %s of %s %s, want one of %s %s", bom.BomFormat, c.Name, c.Version, m.path(), r.version)
	}
	var listed []string
	for _, c := range bom.Components {
		listed = append(listed, c.Name+" "+c.Version)
		if !strings.HasPrefix(c.Purl, "pkg:golang/"+c.Name+"@"+c.Version) || len(c.Hashes) == 0 {
			t.Errorf("%s has the purl %q and %d hashes", c.Name, c.Purl, len(c.Hashes))
		}
	}
	out, err := output(t.Context(), filepath.Join(r.tree, dir), r.env(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", "./...")
	if err != nil {
		t.Fatal(err)
	}
	linked := slices.Sorted(strings.Lines(out))
	for i, line := range linked {
		linked[i] = strings.TrimSpace(line)
	}
	linked = slices.DeleteFunc(slices.Compact(linked), func(line string) bool { return line == "" })
	slices.Sort(listed)
	if len(linked) < 3 || !slices.Equal(listed, linked) {
		t.Errorf("the bill of %s has\n%q\nand its packages import\n%q", m.path(), listed, linked)
	}
}

// public are the packages that users import and the commands that they install, of all modules that get a tag. Whatever is
// new is among them.
func public(t *testing.T, r *release) (packages, commands []string) {
	t.Helper()
	for _, m := range r.modules {
		if private(m.dir) {
			continue
		}
		out, err := output(t.Context(), filepath.Join(r.tree, m.dir), r.env(), "go", "list", "-f", "{{.Name}} {{.ImportPath}}", "./...")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			switch kind, name, _ := strings.Cut(strings.TrimSpace(line), " "); {
			case strings.Contains(name, "/internal"):
			case kind == "main" && name == m.path():
				commands = append(commands, name)
			case kind != "main":
				packages = append(packages, name)
			}
		}
	}
	for _, want := range []string{"", "/outbox", "/relay", "/inbox", "/dlq", "/retry", "/idempotency", "/webhook", "/kafkago", "/holdfasttest",
		"/contrib/franz", "/contrib/nats", "/contrib/otel", "/contrib/prometheus", "/contrib/redis", "/contrib/schemaregistry", "/contrib/sql", "/direct"} {
		if !slices.Contains(packages, holdfast+want) {
			t.Errorf("%s is not among the packages: the search has gone blind", holdfast+want)
		}
	}
	if !slices.Contains(commands, holdfast+"/cmd/holdfast") {
		t.Errorf("the commands are %q: the search has gone blind", commands)
	}
	return packages, commands
}

// moduleOf is the folder of the module that a package is of.
func moduleOf(r *release, pkg string) (dir string) {
	longest := ""
	for _, m := range r.modules {
		if (pkg == m.path() || strings.HasPrefix(pkg, m.path()+"/")) && len(m.path()) > len(longest) {
			longest, dir = m.path(), m.dir
		}
	}
	return dir
}

func TestRelease_ForeignModulesAreRecognised(t *testing.T) {
	for _, m := range []string{"github.com/moby/moby/api v1.55.0", "github.com/testcontainers/testcontainers-go v0.44.0",
		"github.com/fergusstrange/embedded-postgres v1.34.0", "github.com/twmb/franz-go/pkg/kfake v0.0.0", "go.opentelemetry.io/otel v1.44.0",
		"github.com/getkin/kin-openapi v0.152.0", "github.com/sirupsen/logrus v1.9.4", "github.com/containerd/log v0.1.0",
		"github.com/nats-io/nats-server/v2 v2.12.6", "github.com/holdfast-go/holdfast/rig v0.2.0"} {
		if !foreign.MatchString(m) {
			t.Errorf("%s is not recognised", m)
		}
	}
	if own := "github.com/jackc/pgx/v5 v5.12.0"; foreign.MatchString(own) {
		t.Errorf("%s is taken for foreign", own)
	}
}

// forget removes from a module cache what it has of our version.
func forget(t *testing.T, cache string) {
	var ours []string
	for _, root := range []string{filepath.Join(cache, holdfast+"@"+version), filepath.Join(cache, "cache", "download", holdfast), filepath.Join(cache, holdfast)} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			list, _ := os.ReadFile(path) // of versions, which the go command asks for again where it is not there
			if isList := d.Name() == "list" && strings.Contains(string(list), version); !isList && !strings.Contains(d.Name(), version) {
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
func TestRelease_EachModuleIsTaggedByItsFolder(t *testing.T) {
	r := &release{version: "v1.2.3", modules: []*module{{dir: "."}, {dir: "cmd/holdfast"}, {dir: "rig/bench"}}}
	if got := strings.Join(r.tags(), " "); got != "v1.2.3 cmd/holdfast/v1.2.3" {
		t.Errorf("the tags are %s", got)
	}
}

// A user checks a tag with git verify-tag, and the key that the project names.
func TestRelease_TagsAreSigned(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) (string, error) { return output(t.Context(), dir, nil, "git", args...) }
	must := func(args ...string) {
		t.Helper()
		if out, err := git(args...); err != nil {
			t.Fatal(err, out)
		}
	}
	key := filepath.Join(dir, "key")
	if _, err := output(t.Context(), dir, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "release", "-f", key); err != nil {
		skip.Without(t, "ssh-keygen", "install OpenSSH's client", err)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	signers := filepath.Join(dir, "signers")
	write(t, signers, "release@example.com "+string(public))
	must("init", "-q")
	for name, value := range map[string]string{"user.name": "release", "user.email": "release@example.com", "gpg.format": "ssh",
		"user.signingkey": key + ".pub", "gpg.ssh.allowedSignersFile": signers, "commit.gpgsign": "false"} {
		must("config", name, value)
	}
	must("commit", "-q", "--allow-empty", "-m", "holdfast: a release")
	if err := signTag(t.Context(), dir, "contrib/otel/v1.2.3", "holdfast v1.2.3"); err != nil {
		t.Fatal(err)
	}
	must("verify-tag", "contrib/otel/v1.2.3")
	write(t, signers, "release@example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n")
	if out, err := git("verify-tag", "contrib/otel/v1.2.3"); err == nil {
		t.Errorf("a key that nobody named verifies the tag: %s", out)
	}
	must("config", "user.signingkey", filepath.Join(dir, "nowhere.pub"))
	if err := signTag(t.Context(), dir, "v1.2.3", "holdfast v1.2.3"); err == nil {
		t.Error("a tag was made without a key")
	}
	if out, _ := git("tag"); out != "contrib/otel/v1.2.3\n" {
		t.Errorf("the tags are %q", out)
	}
}

func TestRelease_AVersionThatIsNoneIsRefused(t *testing.T) {
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
