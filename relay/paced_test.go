package relay

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// argsOf notes the arguments of a statement.
type argsOf struct {
	database
	statement string
	args      [][]any
}

func (a *argsOf) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if sql == a.statement {
		a.args = append(a.args, slices.Clone(args))
	}
	return a.database.QueryRow(ctx, sql, args...)
}

// pacedRelay is a relay with the one lane of a database in memory. Called is called before each statement.
func pacedRelay(t *testing.T, p Publisher, called func(name string)) (*simdb.DB, *Relay, *lane) {
	t.Helper()
	db := simdb.New(1, time.Now, rand.New(rand.NewPCG(1, 1)))
	conn := &simdb.Conn{DB: db, Hooks: simdb.Hooks{
		Before: func(name string) error { called(name); return nil },
		After:  func(string) error { return nil }}}
	r := newRelay(conn, p, Config{Name: "relay", Schema: "holdfast", Lease: time.Minute, BatchSize: 1, SegmentBytes: 1 << 30, Logger: noLog}, simStatements)
	r.env.start = func(_ context.Context, l *lane) { l.lost = func(error) {}; r.enter(l) }
	if err := r.maintainClaims(t.Context(), t.Context()); err != nil || len(r.owned()) != 1 {
		t.Fatalf("%d lanes are claimed, %v", len(r.owned()), err)
	}
	return db, r, r.owned()[0]
}

// runFor runs something for a while of the bubble's clock.
func runFor(t *testing.T, d time.Duration, f func(ctx context.Context)) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), d)
	defer stop()
	f(ctx)
}

// A try to empty a segment delays readers and writes WAL (rule 15).
func TestPaced_SegmentsAreLookedAtEveryFewSecondsAndOftenerUnderLoad(t *testing.T) {
	for _, c := range []struct {
		name        string
		unread      bool // an older segment has events that are not read
		least, most int
	}{
		{"nothing but the current segment holds events", false, 9, 10},
		{"an older segment is unread", true, 100, 120},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				looks, tries := 0, 0
				db, r, _ := pacedRelay(t, nil, func(name string) {
					switch name {
					case "segments":
						looks++
					case "reclaim":
						tries++
					}
				})
				if c.unread {
					tx := db.Begin()
					tx.Append(1, simdb.Event{ID: "e", Topic: "orders"})
					if err := tx.Commit(); err != nil {
						t.Fatal(err)
					}
				}
				spy := &argsOf{database: r.pool, statement: r.sql.In(reclaimSegment)}
				r.pool = spy
				runFor(t, 30*time.Second+time.Millisecond, r.maintainSegments)
				if looks < c.least || looks > c.most {
					t.Errorf("%d looks in 30 s, want %d to %d", looks, c.least, c.most)
				}
				if (tries > 0) != c.unread {
					t.Errorf("%d segments were tried", tries)
				}
				for _, args := range spy.args {
					// Readers come and go within that time, and none waits for longer.
					if wait := args[2].(int); wait < 20 || wait > 100 {
						t.Fatalf("a lock is waited for %d ms, want 20 to 100", wait)
					}
				}
			})
		})
	}
}

// A save takes a hundredth of the time at most: rule 18.
func TestPaced_SavesRestForAHundredTimesAsLongAsTheyTake(t *testing.T) {
	for _, c := range []struct {
		name        string
		takes       time.Duration
		least, most int // saves in ten seconds
	}{
		{"saves that take no time", 0, 190, 201},
		{"saves of 2 ms", 2 * time.Millisecond, 45, 51},
		{"saves of 10 ms", 10 * time.Millisecond, 9, 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				saves := 0
				_, r, _ := pacedRelay(t, nil, func(name string) {
					if name == "save" {
						saves++
						time.Sleep(c.takes) // the bubble's clock: this is how long a save takes
					}
				})
				runFor(t, 10*time.Second, func(ctx context.Context) {
					var moving sync.WaitGroup
					moving.Go(func() { // cursors move all the time
						for ctx.Err() == nil {
							r.saver.note()
							time.Sleep(time.Millisecond)
						}
					})
					r.saver.run(ctx)
					moving.Wait()
				})
				if saves < c.least || saves > c.most {
					t.Errorf("%d saves in 10 s, want %d to %d", saves, c.least, c.most)
				}
			})
		})
	}
}
