package lint

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// workflow is what the lint looks at in a file of .github/workflows.
type workflow struct {
	On          map[string]any
	Permissions any
	Jobs        map[string]struct {
		Permissions any
		Env         map[string]string
		Strategy    struct {
			Matrix struct{ Part []string }
		}
		Steps []struct {
			Uses, Run string
			With      map[string]any
		}
	}
}

// pinned is an action by its commit, with the version beside it for a person.
var pinned = regexp.MustCompile(`^\s*(?:- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d`)

// faults says what is wrong with the text of a workflow.
func faults(text string) (found []string) {
	var w workflow
	if err := yaml.Unmarshal([]byte(text), &w); err != nil {
		return []string{"it does not parse: " + err.Error()}
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "uses:") && !pinned.MatchString(line) {
			found = append(found, "an action is not pinned by a commit, with its version as a comment: "+strings.TrimSpace(line))
		}
	}
	if p, ok := w.Permissions.(map[string]any); !ok || len(p) != 1 || p["contents"] != "read" {
		found = append(found, "permissions are not contents: read and nothing else")
	}
	if regexp.MustCompile(`\$\{\{[^}]*secrets`).MatchString(text) {
		found = append(found, "it uses a secret")
	}
	if _, runs := w.On["pull_request_target"]; runs {
		found = append(found, "pull_request_target runs the code of strangers with the rights of the repository")
	}
	runs, looks := false, false
	for name, job := range w.Jobs {
		if job.Permissions != nil {
			found = append(found, name+" has permissions of its own")
		}
		for _, step := range job.Steps {
			runs = runs || step.Run == ".ci/run"
			looks = looks || step.Run == ".ci/nightly ${{ matrix.part }}" && job.Env["REQUIRE_VULNERABILITY_CHECK"] == "1" &&
				slices.Contains(job.Strategy.Matrix.Part, "vulnerabilities")
			if strings.HasPrefix(step.Uses, "actions/checkout@") && step.With["persist-credentials"] != false {
				found = append(found, name+" leaves the token in the checkout")
			}
		}
	}
	if !runs {
		found = append(found, "no job runs .ci/run")
	}
	if !looks {
		found = append(found, "no job runs .ci/nightly vulnerabilities with REQUIRE_VULNERABILITY_CHECK=1")
	}
	return found
}

func TestCI_ThePublicCIRunsWhatCIRunsAndPinsItsActions(t *testing.T) {
	const name = ".github/workflows/ci.yml"
	text := read(t, name)
	for _, fault := range faults(text) {
		t.Errorf("%s: %s", name, fault)
	}
	files, err := os.ReadDir(filepath.Join(root, ".github", "workflows"))
	if err != nil || len(files) != 1 {
		t.Errorf("there are %v and %v in .github/workflows: this lint reads ci.yml alone", files, err)
	}
	for change, to := range map[string][2]string{
		"an action by its tag":          {regexp.MustCompile(`checkout@[0-9a-f]{40} # v`).FindString(text), "checkout@v"},
		"a pin without its version":     {regexp.MustCompile(` # v7\.0\.1`).FindString(text), ""},
		"permission to write":           {"contents: read", "contents: write"},
		"a secret":                      {".ci/run\n        run: .ci/run", "secret\n        run: .ci/run ${{ secrets.TOKEN }}"},
		"the code of strangers":         {"  pull_request:", "  pull_request_target:"},
		"another command":               {"        run: .ci/run", "        run: go test ./..."},
		"no look at vulnerabilities":    {`REQUIRE_VULNERABILITY_CHECK: "1"`, `OTHER: "1"`},
		"the token left in the folder":  {"persist-credentials: false", "persist-credentials: true"},
		"a file that is no YAML at all": {"jobs:\n", "jobs: [\n"},
	} {
		changed := strings.Replace(text, to[0], to[1], 1)
		if to[0] == "" || changed == text {
			t.Errorf("%s: nothing was changed: the test has gone blind", change)
		}
		if len(faults(changed)) == 0 {
			t.Errorf("%s is not found", change)
		}
	}
}

// vulnerabilities runs .ci/vulnerabilities.
func vulnerabilities(t *testing.T, db string, required string, packages ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(root, ".ci", "vulnerabilities"), packages...)
	cmd.Env = append(os.Environ(), "GOVULNDB="+db, "REQUIRE_VULNERABILITY_CHECK="+required)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

func TestCI_AVulnerabilityCheckThatDidNotRunSaysSo(t *testing.T) {
	const nobody = "http://127.0.0.1:1"
	if out, code := vulnerabilities(t, nobody, ""); code != 0 || !strings.Contains(out, "NOT RUN: govulncheck: "+nobody) {
		t.Errorf("without a database it ended with %d: %s", code, out)
	}
	if out, code := vulnerabilities(t, nobody, "1"); code != 1 || !strings.Contains(out, "NOT RUN") {
		t.Errorf("without a database that is required it ended with %d: %s", code, out)
	}
}

// A database of our own says that a function which package retry calls is vulnerable.
func TestCI_AVulnerabilityThatTheCodeReachesFailsTheCheck(t *testing.T) {
	skip.InShort(t, "it takes 30 s beside the others")
	const path = "github.com/cenkalti/backoff/v4"
	if !slices.Contains(goList(t, "retry"), path) {
		t.Fatalf("retry does not import %s: the test needs another module", path)
	}
	db := t.TempDir()
	put := func(name string, value any) {
		t.Helper()
		text, err := json.Marshal(value)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(db, name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(db, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const id, day = "GO-2026-99999", "2026-01-01T00:00:00Z"
	type object = map[string]any
	put("index/db.json", object{"modified": day})
	put("index/modules.json", []object{{"path": path, "vulns": []object{{"id": id, "modified": day}}}})
	put("index/vulns.json", []object{{"id": id, "modified": day}})
	put("ID/"+id+".json", object{"schema_version": "1.3.1", "id": id, "modified": day, "published": day, "summary": "a test", "details": "a test",
		"database_specific": object{"url": "https://example.com/" + id},
		"affected": []object{{
			"package":            object{"name": path, "ecosystem": "Go"},
			"ranges":             []object{{"type": "SEMVER", "events": []object{{"introduced": "0"}}}},
			"ecosystem_specific": object{"imports": []object{{"path": path}}},
		}}})
	out, code := vulnerabilities(t, "file://"+filepath.ToSlash(db), "", "./retry")
	if strings.Contains(out, "no required module provides") || strings.Contains(out, "dial tcp") {
		skip.Without(t, "govulncheck", "go online once", errors.New(out))
	}
	if code == 0 || !strings.Contains(out, id) || !strings.Contains(out, "Your code is affected by 1 vulnerability") {
		t.Errorf("it ended with %d: %s", code, out)
	}
}
