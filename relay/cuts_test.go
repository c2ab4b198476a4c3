package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// Rule 6. Writers of READ COMMITTED and REPEATABLE READ leave cuts, some of them much older than their events. Whenever a
// reader comes, as often or as rarely as it does, every committed event is read once, and those of a key in their order.
func TestCuts_ABacklogReadByCutsOfAnyIsolationIsOrderedAndWhole(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	windows := 0
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		db := simdb.New(1, time.Now, rng)
		db.CutEvery = 1 + rng.IntN(4)
		r := newRelay(&simdb.Conn{DB: db}, nil, Config{Name: "relay", Lease: time.Minute, BatchSize: 1 + rng.IntN(5), Logger: noLog}.withDefaults(), simStatements)
		r.env.start = func(_ context.Context, l *lane) { r.enter(l) }
		r.bounds.pageBytes = []int64{1, 50, 1 << 20}[rng.IntN(3)]
		if err := r.maintainClaims(t.Context(), t.Context()); err != nil {
			t.Fatal(err)
		}
		reader := &r.owned()[0].reader
		committed, read, last := 0, map[string]bool{}, map[string]int64{}
		next := func() bool {
			if rng.IntN(2) == 0 && reader.at.state == live {
				reader.at.state = lagging // it was away for a while
			}
			p, err := reader.next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if reader.at.cursor.upto != "" {
				windows++
			}
			for _, e := range p.events {
				if read[e.ID] || e.seq <= last[e.Key] {
					t.Fatalf("seed %d: event %s of key %s came twice, or after a later one", seed, e.ID, e.Key)
				}
				read[e.ID], last[e.Key] = true, e.seq
			}
			return !p.last
		}
		type writer struct {
			tx     *simdb.Tx
			events int
		}
		var open []*writer
		end := func(i int, commit bool) {
			w := open[i]
			open = append(open[:i], open[i+1:]...)
			if !commit {
				w.tx.Rollback()
				return
			}
			if err := w.tx.Commit(); err != nil {
				t.Fatal(err)
			}
			committed += w.events
		}
		for step := range 150 {
			switch n := rng.IntN(10); {
			case n < 3 && len(open) < 5:
				w := &writer{tx: db.Begin()}
				if rng.IntN(2) == 0 {
					w.tx.Repeatable()
				}
				if rng.IntN(2) == 0 {
					w.tx.Draw()
				}
				open = append(open, w)
			case n < 7 && len(open) > 0:
				w, key := open[rng.IntN(len(open))], fmt.Sprint("k", rng.IntN(3))
				if w.tx.Lock(key) {
					w.tx.Append(0, simdb.Event{ID: fmt.Sprint("e", step), Topic: "orders", Key: key, Payload: make([]byte, rng.IntN(30))})
					w.events++
				}
			case n < 9 && len(open) > 0:
				end(rng.IntN(len(open)), rng.IntN(5) > 0)
			case n == 9 && rng.IntN(4) == 0:
				next()
			}
		}
		for len(open) > 0 {
			end(0, true)
		}
		for next() {
		}
		if len(read) != committed {
			t.Fatalf("seed %d: %d events were read, %d are committed", seed, len(read), committed)
		}
	}
	if windows < 2000 {
		t.Errorf("only %d pages left a window open: the cuts were hardly used", windows)
	}
}
