package lint

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// A module that go.work does not name is built by no command of a clone: CI's vet, lint and test go by go.work ("work").
func TestWorkspace_GoWorkNamesEveryModule(t *testing.T) {
	found, named := modulesBelow(t, os.DirFS(root)), modules(t)
	slices.Sort(named)
	for _, dir := range found {
		if !slices.Contains(named, dir) {
			t.Errorf("%s has a go.mod and is not in go.work: add it there, or nothing builds it", dir)
		}
	}
	for _, dir := range named {
		if !slices.Contains(found, dir) {
			t.Errorf("go.work names %s, which has no go.mod", dir)
		}
	}
}

// modulesBelow are the folders with a go.mod, but for hidden ones and those of test data.
func modulesBelow(t *testing.T, tree fs.FS) (dirs []string) {
	t.Helper()
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata"):
			return fs.SkipDir
		case d.Name() == "go.mod" && path == "go.mod":
			dirs = append(dirs, "") // as modules calls the root
		case d.Name() == "go.mod":
			dirs = append(dirs, filepath.ToSlash(filepath.Dir(path)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

func TestWorkspace_TheLintOfGoWorkSeesModules(t *testing.T) {
	tree := fstest.MapFS{"go.mod": {}, "a/b/go.mod": {}, "a/testdata/go.mod": {}, ".hidden/go.mod": {}, "c/main.go": {}}
	if got := modulesBelow(t, tree); !slices.Equal(got, []string{"a/b", ""}) {
		t.Errorf("got %q", got)
	}
}
