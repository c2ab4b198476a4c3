package holdfasttest_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/internal/test/ending"
)

// The flag of the tests' own binary, as a service defines it.
var _ = flag.Bool("update", false, "write golden files")

// mixed are events as two transactions may write them: by other keys in between, with ids and times of each run.
func mixed(run int) []holdfast.Event {
	id := func(n int) string { return fmt.Sprintf("0190-%d-%d", run, n) }
	at := time.Date(2026, 1, 1, run, 0, 0, 0, time.UTC)
	alice := []holdfast.Event{
		{ID: id(1), Topic: "orders", Key: "alice", Type: "order.placed", Source: "shop", Time: at, Headers: map[string]string{"z": "1", "cause": "by " + id(9)},
			Payload: []byte(`{"lines":[{"sku":"tea","n":2}],"cents":1200.50,"html":"<b>&</b>"}`)},
		{ID: id(2), Topic: "orders", Key: "alice", Type: "order.paid", Time: at, Payload: []byte(`{"of":"` + id(1) + `","big":9007199254740993}`)},
	}
	others := []holdfast.Event{
		{ID: id(9), Topic: "orders", Key: "bob", Type: "order.erased", Time: at},
		{ID: id(14), Topic: "mail", Type: "mail.queued", Time: at, Payload: []byte("1")},
		{ID: id(10), Topic: "mail", Type: "mail.first", NotBefore: at, Time: at, Payload: []byte("Dear Ms O'Neil\n")},
		{ID: id(11), Topic: "mail", Key: "x", Type: "mail.seen", Payload: []byte{0xff, 0}},
		{ID: id(12), Topic: "mail", Key: "y", Type: "mail.none", Payload: []byte("null")},
		{ID: id(13), Topic: "mail", Key: "z", Type: "mail.empty", Payload: []byte{}},
	}
	if run%2 == 0 {
		others[1], others[2] = others[2], others[1] // without a key there is no order
		return append(others, alice...)
	}
	return append(alice, others...)
}

// testdata/mixed.golden.json is read in review.
func TestGolden_AGoldenFileIsTheSameInEachRun(t *testing.T) {
	t.Parallel()
	for run := 1; run <= 4; run++ {
		holdfasttest.RequireGolden(t, "testdata/mixed.golden.json", mixed(run))
	}
	before := mixed(1)
	holdfasttest.Golden{ChangeFunc: func(e *holdfast.Event) {
		e.Headers = map[string]string{"z": "2"}
		e.Payload = append(e.Payload[:0], "1"...)
	}}.
		Require(t, "testdata/changed.golden.json", before)
	if diff := cmp.Diff(mixed(1), before); diff != "" {
		t.Errorf("the events were changed:\n%s", diff)
	}
	holdfasttest.Golden{KeepIDs: true, KeepTimes: true}.Require(t, "testdata/kept.golden.json", mixed(3))
}

func TestGolden_WhatIsNotInTheGoldenFileIsShown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(events []holdfast.Event) []holdfast.Event
		says   []string
	}{
		"a field of a payload": {func(events []holdfast.Event) []holdfast.Event {
			events[0].Payload = []byte(strings.Replace(string(events[0].Payload), "1200.50", "1300", 1))
			return events
		}, []string{"testdata/mixed.golden.json (- the file, + the events)", "run the test with -update", "\n-       \"cents\": 1200.50,\n+       \"cents\": 1300,\n", "\n  …\n"}},
		"a type":          {func(events []holdfast.Event) []holdfast.Event { events[1].Type = "order.settled"; return events }, []string{`-     "type": "order.paid"`, `+     "type": "order.settled"`}},
		"one event fewer": {func(events []holdfast.Event) []holdfast.Event { return events[:len(events)-1] }, []string{`-     "type": "mail.empty"`}},
		"the order of a key": {func(events []holdfast.Event) []holdfast.Event {
			events[0], events[1] = events[1], events[0]
			return events
		}, []string{`+     "type": "order.p`, `-     "type": "order.p`}},
		"a tombstone that is not": {func(events []holdfast.Event) []holdfast.Event { events[2].Payload = []byte("null"); return events }, []string{`-     "tombstone": true`, `+     "payload": null`}},
		"an id that is in no event": {func(events []holdfast.Event) []holdfast.Event {
			events[0].Headers["cause"] = "by nobody"
			return events
		}, []string{`-       "cause": "by id 8"`, `+       "cause": "by nobody"`}},
	} {
		t.Run(name, func(t *testing.T) {
			wantFailure(t, func(v testing.TB) { holdfasttest.RequireGolden(v, "testdata/mixed.golden.json", c.change(mixed(1))) }, c.says...)
		})
	}
	wantFailure(t, func(v testing.TB) { holdfasttest.RequireGolden(v, "testdata/absent.golden.json", nil) }, "read the golden file", "absent.golden.json", "-update")
	many := make([]holdfast.Event, 2000)
	wantFailure(t, func(v testing.TB) { holdfasttest.RequireGolden(v, "testdata/mixed.golden.json", many) }, "lines differ")
}

// Not parallel: the flag is the binary's.
func TestGolden_UpdateWritesTheGoldenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "a.golden.json")
	was := flag.Lookup("update").Value.String()
	if err := flag.Set("update", "true"); err != nil {
		t.Fatal(err)
	}
	holdfasttest.RequireGolden(t, file, mixed(1))
	v := ending.Of(t, func(v testing.TB) { holdfasttest.RequireGolden(v, filepath.Join(file, "below a file"), nil) })
	if err := flag.Set("update", "false"); err != nil {
		t.Fatal(err)
	}
	defer flag.Set("update", was)
	if !strings.Contains(v.Failed, "write the golden file") {
		t.Errorf("a file that cannot be written: %q", v.Failed)
	}
	holdfasttest.RequireGolden(t, file, mixed(2))
	want, err := os.ReadFile("testdata/mixed.golden.json")
	if err != nil {
		t.Fatal(err)
	}
	// As Git for Windows checks it out.
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(want), "\n", "\r\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	holdfasttest.RequireGolden(t, file, mixed(3))
}

func TestGolden_AClockStandsUntilItIsMoved(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := holdfasttest.NewClock(at)
	now := c.Now // what a handler is given
	c.Advance(time.Hour)
	c.Advance(-time.Minute)
	if got := now(); !got.Equal(at.Add(59 * time.Minute)) {
		t.Errorf("it is %s", got)
	}
}
