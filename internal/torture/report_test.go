//go:build linux

package torture

import (
	"os"
	"path/filepath"
	"testing"
)

func TestEvidenceStaysWhereSomethingIsWrong(t *testing.T) {
	t.Parallel()
	for _, troubles := range [][]string{nil, {"relay/0 does not stop"}} {
		r := &Report{troubles: troubles}
		r.Options.Dir = filepath.Join(t.TempDir(), "run")
		if err := os.Mkdir(r.Options.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dir := r.Options.Dir
		r.tidy()
		if _, err := os.Stat(dir); (err == nil) != (len(troubles) > 0) {
			t.Errorf("troubles are %q: the folder says %v", troubles, err)
		}
	}
}
