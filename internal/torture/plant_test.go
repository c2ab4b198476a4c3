//go:build linux

package torture

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/kafkatest"
	"github.com/holdfast-go/holdfast/internal/oracle"
)

func TestMain(m *testing.M) {
	if IsPart() {
		os.Exit(RunPart())
	}
	status := m.Run()
	kafkatest.Stop()
	os.Exit(status)
}

// atOnce bounds the runs that share this machine with all other tests.
var atOnce = make(chan struct{}, 2)

// small is a run of some seconds on a broker that it shares.
func small(t *testing.T, o Options) *Report {
	t.Helper()
	o.shared = kafkatest.Container(t).Server
	o.prefix = fmt.Sprintf("%s-%d-", strings.ToLower(o.plant), time.Now().UnixNano())
	o.Producers, o.Consumers, o.Rate = 1, 1, 25
	o.Faults = []string{"kill-relay", "kill-backend"}
	o.For, o.whole = 6*time.Second, true
	o.Dir = t.TempDir()
	atOnce <- struct{}{}
	defer func() { <-atOnce }()
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	return report
}

func TestWithoutABugAllOraclesAgree(t *testing.T) {
	t.Parallel()
	if r := small(t, Options{Seed: 1}); !r.Holds() {
		t.Error("an oracle finds something although there is nothing to find")
	}
}

func TestEveryOracleSeesTheBugThatIsPlantedForIt(t *testing.T) {
	t.Parallel()
	seen := make(map[oracle.Oracle]bool)
	for _, bug := range []struct {
		plant string
		by    oracle.Oracle
		waits string // what all that waits at the end has in its name: a slow machine leaves other events as well; "" is not asked
	}{
		{plantLose, oracle.NoLoss, ""},
		{plantDualWrite, oracle.NoGhost, ""},
		{plantOutside, oracle.EffectOnce, ""},
		{plantReverse, oracle.KeyOrder, ""},
		{plantRepeat, oracle.Duplicates, ""},
		{plantTakeBack, oracle.Fencing, ""},
		{plantMeddle, oracle.Fencing, ""},
		{plantAhead, oracle.CursorTruth, ""},
		{plantStuck, oracle.Liveness, fmt.Sprintf("of key %q", stuckKey)},
		{plantFalseOK, oracle.HonestErrors, ""},
		{plantLeak, oracle.Hygiene, ""},
		{plantMute, oracle.AlarmsSounded, ""},
	} {
		seen[bug.by] = true
		t.Run(bug.plant, func(t *testing.T) {
			t.Parallel()
			r := small(t, Options{Seed: 2, plant: bug.plant, limit: 5 * time.Second}) // not to wait long for what a bug prevents
			if r.Holds() || !slices.Contains(r.Verdict.Broken(), bug.by) {
				t.Errorf("%s does not see it", bug.by)
			}
			if bug.waits != "" && !says(r.Verdict, bug.by, oracle.StillWaits, bug.waits) {
				t.Errorf("%s does not say %q", bug.by, bug.waits)
			}
		})
	}
	for o := oracle.NoLoss; o <= oracle.AlarmsSounded; o++ {
		if !seen[o] {
			t.Errorf("no bug is planted for %s", o)
		}
	}
}

// says tells whether an oracle's finding of a kind has examples, and all of them say a text.
func says(v oracle.Verdict, by oracle.Oracle, kind oracle.Kind, text string) bool {
	for _, f := range v.Findings {
		if f.Oracle == by && f.Kind == kind {
			return !slices.ContainsFunc(f.Examples, func(e string) bool { return !strings.Contains(e, text) })
		}
	}
	return false
}

func TestOptionsSayEverythingThatIsWrongAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), Options{For: time.Millisecond, Relays: 50, Rate: -1, Faults: []string{"kill-*", "kil-relay"}})
	if err == nil {
		t.Fatal("it ran")
	}
	for _, want := range []string{"for is 1ms", "relays is 50", "rate is -1", `"kil-relay"`, "-list"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestFaultsHaveNamesOfTheirOwnAndSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range catalogue() {
		if seen[f.name] || f.what == "" || f.begin == nil || f.hold[1] < f.hold[0] {
			t.Errorf("%q (%s): its name is another's, or it is not whole", f.name, f.what)
		}
		seen[f.name] = true
	}
}
