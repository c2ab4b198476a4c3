//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/rig/internal/heavy"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

func TestMain(m *testing.M) {
	if IsPart() {
		os.Exit(RunPart())
	}
	heavy.Wait()
	os.Exit(pgtest.Main(m, func() { stopShared() }))
}

// shared is the broker of all small runs, and stopShared ends it.
var shared, stopShared = sync.OnceValues(func() (*kafkaserver.Server, error) {
	broker, err := kafkaserver.Container(context.Background(), kafkaserver.ContainerOptions{})
	if err == nil {
		stopShared = broker.Stop
	}
	return broker, err
}), func() {}

// atOnce bounds the runs that share this machine with all other tests.
var atOnce = make(chan struct{}, 2)

// small is a run of some seconds on a broker that it shares.
func small(t *testing.T, o Options) *Report {
	t.Helper()
	report, err := smallUntil(t, t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// smallUntil is a small run that ctx may break off.
func smallUntil(t *testing.T, ctx context.Context, o Options) (*Report, error) {
	t.Helper()
	broker, err := shared()
	if err != nil {
		skip.Without(t, "real Kafka", "start Docker", err)
	}
	atOnce <- struct{}{}
	defer func() { <-atOnce }()
	return smallOn(t, ctx, broker, o)
}

// smallOn is a small run on some broker, or on a cluster.
func smallOn(t *testing.T, ctx context.Context, broker *kafkaserver.Server, o Options) (*Report, error) {
	t.Helper()
	o.shared = broker
	o.prefix = fmt.Sprintf("%s-%d-", strings.ToLower(o.bug), time.Now().UnixNano())
	o.Producers, o.Consumers, o.Rate = 1, 1, 25
	if o.Faults == nil {
		o.Faults = []string{"kill-relay", "kill-backend"}
	}
	o.For, o.Repeat = max(o.For, 6*time.Second), 1
	o.Dir = t.TempDir()
	report, err := Run(ctx, o)
	t.Log(report)
	return report, err
}

// Somebody ends a long run: what it has shown until then is not lost.
func TestBugs_ARunThatIsInterruptedIsJudgedUpToThere(t *testing.T) {
	skip.InShort(t, "it runs the fault suite")
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	told := writerFunc(func(line []byte) (int, error) {
		if bytes.Contains(line, []byte("recovered in")) {
			interrupt()
		}
		return len(line), nil
	})
	report, err := smallUntil(t, ctx, Options{Seed: 3, Out: told})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the run was not broken off: %v", err)
	}
	if !report.Judged() || !report.Holds() || report.Verdict.Figures.Events == 0 {
		t.Errorf("what it had shown was not judged, or was found wrong: %v", report)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(line []byte) (int, error) { return f(line) }

func TestBugs_WithoutABugAllOraclesAgree(t *testing.T) {
	skip.InShort(t, "it runs the fault suite")
	t.Parallel()
	if r := small(t, Options{Seed: 1}); !r.Holds() {
		t.Error("an oracle finds something although there is nothing to find")
	}
}

func TestBugs_EveryOracleSeesTheBugThatIsInjectedForIt(t *testing.T) {
	skip.InShort(t, "it runs the fault suite")
	t.Parallel()
	seen := make(map[oracle.Oracle]bool)
	for _, bug := range []struct {
		name string
		by   oracle.Oracle
		what oracle.Kind // of its findings: another kind would be another bug's
		all  string      // what all examples of it have in them: a slow machine leaves other events waiting as well; "" is not asked
	}{
		{bugLose, oracle.NoLoss, oracle.Lost, ""},
		{bugHasty, oracle.NoLoss, oracle.TooSoon, ""},
		{bugDualWrite, oracle.NoGhost, oracle.Ghosts, ""},
		{bugHurry, oracle.NoGhost, oracle.Hurried, ""},
		{bugOutside, oracle.EffectOnce, oracle.Doubles, ""},
		{bugReverse, oracle.KeyOrder, oracle.Overtaken, ""},
		{bugRepeat, oracle.Duplicates, oracle.Unexplained, ""},
		{bugForget, oracle.Duplicates, oracle.TooLate, ""},
		{bugRemember, oracle.NoLoss, oracle.Lost, ""},
		{bugTakeBack, oracle.Fencing, oracle.EpochFell, ""},
		{bugMeddle, oracle.Fencing, oracle.ChangedByOther, ""},
		{bugIntrude, oracle.Fencing, oracle.TakenByOther, ""},
		{bugAhead, oracle.CursorTruth, oracle.SkippedByCursor, ""},
		{bugStuck, oracle.Liveness, oracle.StillWaits, fmt.Sprintf("of key %q", stuckKey)},
		{bugFalseOK, oracle.HonestErrors, oracle.FalseOK, ""},
		{bugEarly, oracle.HonestErrors, oracle.SaidTooEarly, ""},
		{bugUndead, oracle.HonestErrors, oracle.SentAfter, discards},
		{bugDisown, oracle.Fencing, oracle.TakenEarly, rolePerson},
		{bugUnlease, oracle.Fencing, oracle.TakenFromCall, rolePerson},
		{bugLinger, oracle.Hygiene, oracle.LeftBehind, "goroutines"},
		{bugLeak, oracle.Hygiene, oracle.LeftBehind, "prepared transaction"},
		{bugMute + roleRelay, oracle.AlarmsSounded, oracle.Silent, "no relay"},
		{bugMute + roleConsumer, oracle.AlarmsSounded, oracle.Silent, "no consumer"},
	} {
		seen[bug.by] = true
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			// Not to wait long for what a bug prevents, nor to run long.
			o := Options{Seed: 2, bug: bug.name, limit: 5 * time.Second, unsaved: 2 * time.Second}
			switch bug.name {
			case bugForget:
				// A relay that says that it cannot save is believed, for most of such a run; and between two kills there has
				// to be more than what is allowed.
				o.Faults, o.For, o.unsaved = []string{"kill-relay"}, 15*time.Second, time.Second
			case bugRemember:
				o.Faults = []string{"cold-copy"}
			case bugUndead, bugDisown:
				o.Faults = []string{"misspelt-topic"}
			case bugUnlease:
				o.Faults = []string{"decide-in-calls"}
			case bugAhead:
				o.limit = 2 * time.Second
			case bugStuck:
				o.limit = 20 * time.Second // What is not stuck has to have arrived by then.
			}
			r := small(t, o)
			if r.Holds() || !says(r.Verdict, bug.by, bug.what, bug.all) {
				t.Errorf("%s does not see it: no finding %q whose examples all have %q", bug.by, bug.what, bug.all)
			}
		})
	}
	for o := oracle.NoLoss; o <= oracle.AlarmsSounded; o++ {
		if !seen[o] {
			t.Errorf("no bug is injected for %s", o)
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

func TestBugs_OptionsSayEverythingThatIsWrongAtOnce(t *testing.T) {
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

func TestBugs_FaultsHaveNamesOfTheirOwnAndSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range catalogue() {
		if seen[f.name] || f.what == "" || f.begin == nil || f.hold[1] < f.hold[0] {
			t.Errorf("%q (%s): its name is another's, or it is not whole", f.name, f.what)
		}
		seen[f.name] = true
	}
}
