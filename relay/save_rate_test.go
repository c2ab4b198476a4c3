package relay

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// Rule 18: while something keeps Postgres from pruning, each save is slower than the one before. The saver itself leaves the
// time in between, however much there is to save.
func TestSaveRate_TheSaverRestsForAHundredTimesASave(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		took        time.Duration
		least, most int // saves in ten seconds
	}{{0, 190, 201}, {4 * time.Millisecond, 22, 26}, {50 * time.Millisecond, 2, 4}} {
		synctest.Test(t, func(t *testing.T) {
			saves := 0
			db := simdb.New(2, time.Now, rand.New(rand.NewPCG(1, 1)))
			conn := &simdb.Conn{DB: db, Hooks: simdb.Hooks{Before: func(name string) error {
				if name == "save" {
					saves++
					time.Sleep(c.took) // sleep: of the bubble's clock
				}
				return nil
			}}}
			r := newRelay(conn, nil, Config{Name: "relay", Lease: time.Minute, Logger: noLog}.withDefaults(), simStatements)
			r.env.start = func(_ context.Context, l *lane) { l.lost = func(error) {}; r.enter(l) }
			if err := r.maintainClaims(t.Context(), t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var noting sync.WaitGroup
			noting.Go(func() {
				for ctx.Err() == nil { // there is always something to save
					r.saver.note()
					time.Sleep(time.Millisecond) // sleep: of the bubble's clock
				}
			})
			r.saver.run(ctx)
			noting.Wait()
			if saves < c.least || saves > c.most {
				t.Errorf("%d saves of %v each in ten seconds, want %d to %d", saves, c.took, c.least, c.most)
			}
		})
	}
}
