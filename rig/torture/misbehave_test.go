//go:build linux

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

func TestMisbehave_AHandlerMisbehavesOncePerEventWhileItIsTold(t *testing.T) {
	t.Parallel()
	c := &conduct{}
	ids := []string{}
	for i := range 600 {
		ids = append(ids, strings.Repeat("x", i%7)+time.Duration(i).String())
	}
	count := func() (n int) {
		for _, id := range ids {
			if c.of(id) == panics {
				n++
			}
		}
		return n
	}
	before := count()
	c.set(panics)
	first, second := count(), count()
	c.set("")
	if before != 0 || first < 50 || first > 150 || second != 0 || count() != 0 {
		t.Errorf("of 600 events %d panic before, %d while it is told, and %d again", before, first, second)
	}
}

func TestMisbehave_AnEventWhoseHandlerCommitsEndsOnce(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	known := oracle.Run{
		Written: []oracle.Written{{ID: "dead"}, {ID: "handled"}, {ID: "lost"}, {ID: "other"}, {ID: "stored"}, {ID: "both"}},
		Effects: []oracle.Effect{{ID: "handled"}, {ID: "other"}, {ID: "stored"}, {ID: "both"}},
		Letters: []oracle.Letter{{EventID: "dead"}, {EventID: "stored"}, {EventID: "both"}},
		Entries: []history.Entry{
			{At: at, Op: history.Fault, Text: "handlers-" + setsRole},
			{At: at.Add(time.Second), Op: history.Log, Text: "waiting for the database: SQLSTATE 42501"},
			{At: at.Add(2 * time.Second), Op: history.Recovered, Text: "handlers-" + setsRole},
			{At: at.Add(time.Second + roleLeft), Op: history.Log, Text: "waiting for the database: SQLSTATE 42501"},
			{At: at.Add(3*time.Second + roleLeft), Op: history.Log, Text: "waiting for the database: SQLSTATE 42501"},
			{At: at.Add(4 * time.Second), Op: history.Log, IDs: []string{"dead", "handled", "lost", "stored", "both"}, Text: misbehaves + commits},
			{At: at.Add(5 * time.Second), Op: history.Receive, IDs: []string{"stored"}, Text: "stored"},
			{At: at.Add(5 * time.Second), Op: history.Receive, IDs: []string{"both"}, Text: "duplicate"},
		},
	}
	problems := endings(&known)
	if len(problems) != 2 || !strings.HasPrefix(problems[0], "both,") || !strings.HasPrefix(problems[1], "lost,") {
		t.Errorf("it says %q", problems)
	}
	if len(known.Written) != 4 || known.Written[0].ID != "handled" || len(known.Letters) != 1 || len(known.Effects) != 3 {
		t.Errorf("what is left to judge is %+v", known)
	}
	if len(known.Entries) != 6 || known.Entries[2].At != at.Add(3*time.Second+roleLeft) {
		t.Errorf("the entries that are left are %+v", known.Entries)
	}
}
