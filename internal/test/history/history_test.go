package history

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestHistory_WhatManyActorsRecordIsReadBackInTheOrderOfItsTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var wg sync.WaitGroup
	for _, actor := range []string{"relay/0", "producer/1"} {
		r, err := Open(dir, actor)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for n := range int64(500) {
				r.Add(Entry{Op: Intend, Num: n, Text: "a line\nwith a break"})
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	entries, torn, err := Read(dir)
	if err != nil || torn != 0 || len(entries) != 1000 {
		t.Fatalf("%d entries, %d torn, %v", len(entries), torn, err)
	}
	next := map[string]int64{}
	for i, e := range entries {
		if e.Num != next[e.Actor] || e.PID != os.Getpid() || e.Text != "a line\nwith a break" {
			t.Fatalf("entry %d is %+v, want number %d", i, e, next[e.Actor])
		}
		next[e.Actor]++
		if i > 0 && e.At.Before(entries[i-1].At) {
			t.Fatalf("entry %d is older than the one before", i)
		}
	}
}

func TestHistory_ALineThatAKillToreIsCountedAndTheNextProcessGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	record := func(text string) {
		r, err := Open(dir, "relay/0")
		if err != nil {
			t.Fatal(err)
		}
		r.Add(Entry{Op: Begin, Text: text})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	record("first")
	f, err := os.OpenFile(filepath.Join(dir, "relay-0.history"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"at":"2026-01-01T00:00:00Z","op":"pub`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	record("second")
	entries, torn, err := Read(dir)
	if err != nil || torn != 1 || len(entries) != 2 || entries[0].Text != "first" || entries[1].Text != "second" {
		t.Errorf("got %+v, %d torn, %v", entries, torn, err)
	}
}

func TestHistory_AHistoryThatCannotBeWrittenStopsTheRun(t *testing.T) {
	t.Parallel()
	r, err := Open(t.TempDir(), "relay/0")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if said, _ := recover().(string); !strings.HasPrefix(said, "history: ") {
			t.Errorf("got %q, want a panic of the history", said)
		}
	}()
	r.Add(Entry{Op: Begin})
}
