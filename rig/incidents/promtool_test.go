package incidents

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// testsOfRules are the files with promtool's tests.
var testsOfRules = []string{"holdfast.rules.test.yml", "holdfast.rules.day.test.yml"}

// promtool runs promtool where the rules are.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		skip.Without(t, "promtool", "install it: Debian's package prometheus has it", err)
	}
	run := exec.CommandContext(t.Context(), path, args...)
	run.Dir = dashboards
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestPromtool_PromtoolTakesTheRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "holdfast.rules.yml")
}

func TestPromtool_PromtoolsTestsOfTheRulesPass(t *testing.T) {
	skip.InShort(t, "promtool takes 25 s for them")
	t.Parallel()
	promtool(t, append([]string{"test", "rules"}, testsOfRules...)...)
}

func TestPromtool_EveryAlertIsTestedFiringAndQuiet(t *testing.T) {
	t.Parallel()
	type test struct {
		Tests []struct {
			Exprs []struct {
				Expr    string
				Samples []struct{ Value float64 } `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	tested := map[string][]float64{}
	for _, name := range testsOfRules {
		var file test
		if err := yaml.Unmarshal([]byte(read(t, dashboards+"/"+name)), &file); err != nil {
			t.Fatal(err)
		}
		for _, test := range file.Tests {
			for _, e := range test.Exprs {
				if name := alertName.FindString(e.Expr); len(e.Samples) == 1 {
					tested[name] = append(tested[name], e.Samples[0].Value)
				}
			}
		}
	}
	for _, r := range rules(t) {
		if got := tested[r.Alert]; !slices.Contains(got, 1) || !slices.Contains(got, 0) {
			t.Errorf("%s is tested with %v, want it firing and quiet", r.Alert, got)
		}
	}
}
