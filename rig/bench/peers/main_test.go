package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The figures of so small a run say nothing; that every contestant does its whole job is what this shows: each run checks
// that all events arrived.
func TestPeers_EveryContestantDoesTheWholeJob(t *testing.T) {
	skip.InShort(t, "it takes 43 s beside the others")
	var out strings.Builder
	if err := run(t.Context(), 400, 1, regexp.MustCompile(""), false, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{"holdfast relay", "watermill forwarder", "hand-written relay", "watermill forwarder, queue", "holdfast inbox, a transaction each", "holdfast inbox, handlers that share", "watermill router", "river"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no figure for %s:\n%s", want, &out)
		}
	}
}
