//go:build linux

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

func TestUndone_WhatTheDatabaseHasLostIsForgottenAndNothingElse(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	known := oracle.Run{
		Records: []oracle.Record{{ID: "kept"}, {ID: "lost"}},
		Effects: []oracle.Effect{{ID: "kept"}, {ID: "lost"}},
		Letters: []oracle.Letter{{EventID: "lost"}, {EventID: "kept"}},
		Entries: []history.Entry{
			{At: at(1), Op: history.Receive, IDs: []string{"kept"}},
			{At: at(11), Op: history.Commit, How: history.OK, IDs: []string{"lost"}},
			{At: at(12), Op: history.Claim, Lane: 3, Epoch: 7},
			{At: at(13), Op: history.Publish, IDs: []string{"kept", "lost"}},
			{At: at(14), Op: history.Receive, Actor: "consumer/1", IDs: []string{"done again"}},
			{At: at(15), Op: history.Receive, Actor: "producer/1", IDs: []string{"handled before"}}, // as a wait found
			{At: at(21), Op: history.Claim, Lane: 3, Epoch: 7},
		},
	}
	forget(&known, []undoing{{since: at(10), until: at(20), ids: []string{"lost"}}})
	if len(known.Records) != 1 || len(known.Effects) != 1 || len(known.Letters) != 1 || known.Records[0].ID != "kept" {
		t.Errorf("records %v, effects %v, letters %v", known.Records, known.Effects, known.Letters)
	}
	var ops []history.Op
	for _, e := range known.Entries {
		ops = append(ops, e.Op)
		if slices.Contains(e.IDs, "lost") {
			t.Errorf("%v still speaks of what was undone", e)
		}
	}
	if want := []history.Op{history.Receive, history.Commit, history.Claim, history.Publish, history.Claim}; !slices.Equal(ops, want) {
		t.Errorf("the history is %q, want %q", ops, want)
	}
	if len(known.Undone) != 1 || !known.Undone[0].From.Equal(at(10)) || !known.Undone[0].Until.Equal(at(20)) {
		t.Errorf("%v was undone", known.Undone)
	}
	if !slices.Equal(known.Redone, []string{"done again"}) {
		t.Errorf("%q were done again", known.Redone)
	}
}
