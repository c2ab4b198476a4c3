package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The program of the page for beginners, with an adapter beside it, in a folder of its own.
func TestUse_AModuleOutsideTakesAllFromTheClone(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	needProxy(t)
	root, err := rootDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, err := os.ReadFile(filepath.Join(root, "examples/hello/own/main.go"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "main.go"), string(program))
	write(t, filepath.Join(dir, "traces.go"), "package main\n\nimport _ \""+holdfast+"/contrib/otel\"\n")
	write(t, filepath.Join(dir, "go.mod"), "module example.com/shop\n\ngo 1.25.0\n\nreplace "+holdfast+" => ../old\n\nreplace example.com/other => ../other\n")
	if err := run(t.Context(), options{version: unreleased, use: dir}); err != nil {
		t.Fatal(err)
	}
	alone := append(os.Environ(), "GOWORK=off")
	for _, args := range [][]string{{"mod", "tidy"}, {"build", "-o", os.DevNull, "."}} {
		if _, err := output(t.Context(), dir, alone, "go", args...); err != nil {
			t.Fatal(err)
		}
	}
	from, err := output(t.Context(), dir, alone, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}", holdfast, holdfast+"/contrib/otel")
	if want := holdfast + " " + root + "\n" + holdfast + "/contrib/otel " + filepath.Join(root, "contrib/otel") + "\n"; err != nil || from != want {
		t.Errorf("it takes\n%s\nwant\n%s\n%v", from, want, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	replaced := map[string]int{}
	for _, r := range file.Replace {
		replaced[r.Old.Path]++
		if name := strings.TrimPrefix(r.Old.Path, holdfast+"/"); private(name) {
			t.Errorf("it replaces %s, which nobody requires", r.Old.Path)
		}
	}
	for _, m := range []string{holdfast, holdfast + "/contrib/franz", holdfast + "/cmd/holdfast", "example.com/other"} {
		if replaced[m] != 1 {
			t.Errorf("it replaces %s %d times, want once", m, replaced[m])
		}
	}
}

func TestUse_AFolderThatIsNoModuleIsRefused(t *testing.T) {
	dir := t.TempDir()
	refused := func(o options, says string) {
		t.Helper()
		if err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", o, err, says)
		}
	}
	refused(options{version: unreleased, use: dir}, "go mod init")
	refused(options{version: unreleased, use: filepath.Join(dir, "missing")}, "no such file")
	refused(options{version: unreleased, use: dir, check: true}, "leave the other flags out")
	write(t, filepath.Join(dir, "go.mod"), "module")
	refused(options{version: unreleased, use: dir}, "go.mod:1")
}

// A replace line in a module of the clone would make the clone useless.
func TestUse_AModuleOfTheCloneIsRefused(t *testing.T) {
	outer := t.TempDir()
	clone := filepath.Join(outer, "clone")
	deep := filepath.Join(clone, "examples", "mine")
	for _, dir := range []string{outer, clone, deep} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "go.mod"), "module example.com/"+filepath.Base(dir)+"\n")
	}
	write(t, filepath.Join(clone, "go.work"), "go 1.25.0\n\nuse .\n")
	for _, dir := range []string{outer, clone, deep} {
		if err := use(clone, dir); err == nil || !strings.Contains(err.Error(), "beside each other") {
			t.Errorf("%s: %v", dir, err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err != nil || strings.Contains(string(text), "replace") {
			t.Errorf("%s was changed: %s, %v", dir, text, err)
		}
	}
	beside := filepath.Join(outer, "shop")
	if err := os.Mkdir(beside, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(beside, "go.mod"), "module example.com/shop\n")
	if err := use(clone, beside); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(beside, "go.mod")); err != nil || !strings.Contains(string(text), "replace example.com/clone => ../clone\n") {
		t.Errorf("it is\n%s\n%v", text, err)
	}
}
