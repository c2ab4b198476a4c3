package inbox

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// lined is a job of one event. Its name is "key number", with "!" behind it where it is handled alone.
func lined(name string, offset int64) *job {
	key, _, _ := strings.Cut(name, " ")
	e := holdfast.Event{ID: name, Key: strings.TrimPrefix(key, "-"), Type: "t"}
	j := &job{ds: []*delivery{{e: e, from: &origin{offset: offset}}}, kind: jobBatch}
	if strings.HasSuffix(name, "!") {
		j.kind = jobAlone
	}
	return j
}

func names(js ...*job) []string {
	var names []string
	for _, j := range js {
		var ids []string
		for _, d := range j.ds {
			ids = append(ids, d.e.ID)
		}
		names = append(names, strings.Join(ids, ", "))
	}
	return names
}

func TestScheduler_EventsOfBusyKeysJoinALaterBatch(t *testing.T) {
	l := newScheduler(3)
	add := func(offset int64, name string, want ...string) *job {
		t.Helper()
		j := l.add(lined(name, offset))
		var got []string
		if j != nil {
			got = names(j)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s: %s", name, diff)
		}
		return j
	}
	add(0, "a 0")
	add(1, "b 1")
	first := add(2, "a 2", "a 0, b 1, a 2") // One key may come twice.
	add(3, "a 3")                           // is left out
	add(4, "c 4")
	add(5, "a 5!") // waits behind a 3
	add(6, "b 6")  // is left out
	add(7, "b 7")
	add(8, "b 8")
	single := add(9, "d 9!", "d 9!")
	add(10, "d 10!")
	if diff := cmp.Diff([]string{"a 3, c 4, b 6"}, names(l.done(first)...)); diff != "" { // In the order of the log; b 7 finds it full.
		t.Fatal(diff)
	}
	add(11, "e 11")
	if diff := cmp.Diff([]string{"d 10!"}, names(l.follower(single, 1))); diff != "" {
		t.Fatal(diff)
	}
	l.adding = true
	if got := l.offers(); got != nil {
		t.Fatalf("offered while more is added: %q", names(got...))
	}
	l.adding = false
	offered := l.offers()
	if diff := cmp.Diff([]string{"e 11"}, names(offered...)); diff != "" || l.offers() != nil {
		t.Fatal(diff, "or it was offered twice")
	}
	add(12, "f 12") // An offered batch grows until it is taken.
	offered[0].close()
	if diff := cmp.Diff([]string{"e 11, f 12"}, names(offered...)); diff != "" {
		t.Fatal(diff)
	}
	add(13, "e 13")
}

func TestScheduler_WhatFollowsComesTogetherUpToSoManyEventsAndBytes(t *testing.T) {
	l := newScheduler(10)
	first := l.add(lined("k 0!", 0))
	for i, bytes := range []int{600 << 10, 300 << 10, 300 << 10, 0, 0, 0, 2 << 20, 0} {
		j := lined(fmt.Sprintf("k %d!", i+1), int64(i+1))
		j.ds[0].e.Payload = make([]byte, bytes)
		if l.add(j) != nil {
			t.Fatal("it does not wait for the one before it")
		}
	}
	var got []string
	for j := l.follower(first, 4); j != nil; j = l.follower(j, 4) {
		got = append(got, names(j)...)
	}
	if diff := cmp.Diff([]string{"k 1!, k 2!", "k 3!, k 4!, k 5!, k 6!", "k 7!", "k 8!"}, got); diff != "" {
		t.Error(diff)
	}
}

// Whatever is read, done, split, redone and taken in whatever order: events of a key are begun one after the other, in
// their order, and each is begun.
func TestScheduler_ALineupKeepsTheOrderOfEachKeyAndForgetsNothing(t *testing.T) {
	seed := seed.New(t)
	grouped := 0
	for round := range uint64(400) {
		t.Run("", func(t *testing.T) { grouped += lineupHistory(t, seed+round) })
		if t.Failed() {
			t.Fatalf("seed %d", seed+round)
		}
	}
	if grouped < 100 {
		t.Errorf("events came together behind their key %d times in all", grouped)
	}
}

func lineupHistory(t *testing.T, seed uint64) (grouped int) {
	r := rand.New(rand.NewPCG(seed, 1))
	l := newScheduler(1 + r.IntN(6))
	var ready, running []*job // with the workers, and what they have begun
	busy := map[string]*job{}
	next := map[string]int64{}
	apart := map[*delivery]bool{}
	split := func(j *job) []*job {
		for _, d := range j.ds {
			apart[d] = true
		}
		return l.split(j)
	}
	handled, read := 0, int64(0)
	const all, most = 150, 4
	take := func(j *job) { // a worker begins it
		j.close()
		for _, key := range j.keys() {
			if busy[key] != nil {
				t.Fatalf("%q is begun beside %q", names(j), names(busy[key]))
			}
			busy[key] = j
		}
		switch together := len(j.ds); {
		case j.kind == jobFollowers && (together < 2 || together > most || len(j.keys()) != 1):
			t.Fatalf("%q come together behind their key", names(j))
		case j.kind != jobFollowers && (together > l.most || together > 1 && j.kind != jobBatch):
			t.Fatalf("%q come together", names(j))
		}
		if j.kind == jobFollowers {
			grouped++
			for _, d := range j.ds {
				if apart[d] {
					t.Fatalf("%s was to come alone, and comes in %q", d.e.ID, names(j))
				}
			}
		}
		for i, d := range j.ds {
			if i > 0 && d.from.offset <= j.ds[i-1].from.offset {
				t.Fatalf("a batch is out of order: %q", names(j))
			}
		}
		running = append(running, j)
	}
	end := func(j *job) {
		for _, d := range j.ds {
			if d.e.Key != "" && d.from.offset < next[d.e.Key] {
				t.Fatalf("%s came after a later one of its key", d.e.ID)
			}
			next[d.e.Key] = d.from.offset
			handled++
		}
	}
	out := func(list *[]*job, i int) *job {
		j := (*list)[i]
		*list = append((*list)[:i:i], (*list)[i+1:]...)
		return j
	}
	for step := 0; handled < all; step++ {
		if step > 100*all {
			t.Fatalf("%d of %d events are left", all-handled, all)
		}
		switch what := r.IntN(10); {
		case what < 4 && read < all:
			l.adding = true
			for range r.IntN(8) {
				if read == all {
					break
				}
				key := fmt.Sprint(r.IntN(6))
				if key == "5" {
					key = "-" // none
				}
				name := fmt.Sprintf("%s %d", key, read)
				if r.IntN(5) == 0 {
					name += "!"
				}
				j := lined(name, read)
				j.ds[0].e.Type = fmt.Sprint(r.IntN(2))
				read++
				if j = l.add(j); j != nil {
					ready = append(ready, j)
				}
			}
			l.adding = false
			ready = append(ready, l.offers()...)
		case what < 7 && len(ready) > 0:
			take(out(&ready, 0))
		case len(running) > 0:
			j := out(&running, r.IntN(len(running)))
			for _, key := range j.keys() {
				delete(busy, key)
			}
			if len(j.ds) > 1 && r.IntN(3) == 0 {
				ready = append(ready, split(j)...)
				break
			}
			if follower := l.follower(j, 1+r.IntN(most)); follower != nil {
				if r.IntN(2) == 0 {
					end(j)
					take(follower)
					break
				}
				l.putBack(j)
				if len(j.ds) > 1 { // It could not be committed.
					ready = append(ready, split(j)...)
					break
				}
			}
			end(j)
			ready = append(ready, l.done(j)...)
		}
	}
	if len(ready) > 0 || len(running) > 0 {
		t.Errorf("%q and %q came twice", names(ready...), names(running...))
	}
	for key := range l.keys { // what was begun last by follower is done by now too
		t.Errorf("key %s is still in hand", key)
	}
	if len(l.batches) > 0 {
		t.Error("a batch is open")
	}
	return grouped
}
