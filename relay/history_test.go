package relay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// history is what writers did: for every key the payloads in the order of its commits, decided by the row lock under
// which the number was drawn, not by clocks.
type history struct {
	mu        sync.Mutex
	committed map[string]bool // payload "key/n" of committed events
	aborted   map[string]bool
}

func (h *history) note(payloads []string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range payloads {
		if ok {
			h.committed[p] = true
		} else {
			h.aborted[p] = true
		}
	}
}

// writers write until ctx is done: transactions on one or two keys, under row locks taken in order, with savepoints,
// rolled-back savepoints, rollbacks, pauses between lock and write and between write and commit, and several Writes.
// Their xids are often drawn long before the locks, by a write to another table: a
// reader that takes the numbers for the order of the commits loses events by that.
func writers(ctx context.Context, t testing.TB, pool *pgxpool.Pool, n, keys int, seed uint64, isolation pgx.TxIsoLevel) (*history, *sync.WaitGroup) {
	t.Helper()
	pgtest.Exec(t, pool, "create table if not exists aggregate (key text primary key, n bigint not null default 0)")
	pgtest.Exec(t, pool, "create table if not exists other (x bigint)")
	pgtest.Exec(t, pool, "insert into aggregate select 'k' || g from generate_series(0, $1::int - 1) g on conflict do nothing", keys)
	// Connections of their own: writers that hold transactions open would keep a relay from its few.
	config := pool.Config()
	config.MaxConns = int32(n)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	h := &history{committed: map[string]bool{}, aborted: map[string]bool{}}
	var wg sync.WaitGroup
	for w := range n {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			for ctx.Err() == nil {
				var payloads []string
				fail := rng.IntN(10) == 0
				err := pgx.BeginTxFunc(context.Background(), pool, pgx.TxOptions{IsoLevel: isolation}, func(tx pgx.Tx) error {
					bg := context.Background()
					if rng.IntN(2) == 0 { // an early xid
						if _, err := tx.Exec(bg, "insert into other values ($1)", w); err != nil {
							return err
						}
						pause(rng, 4)
					}
					a, b := rng.IntN(keys), rng.IntN(keys)
					if a > b {
						a, b = b, a
					}
					picks := []int{a}
					if b != a && rng.IntN(3) == 0 {
						picks = append(picks, b)
					}
					for _, k := range picks {
						key := fmt.Sprintf("k%d", k)
						var number int64
						if err := tx.QueryRow(bg, "update aggregate set n = n + 1 where key = $1 returning n", key).Scan(&number); err != nil {
							return err
						}
						pause(rng, 2)
						one := func(tx pgx.Tx, p string) error {
							return outbox.Write(bg, tx, holdfast.Event{Topic: "orders", Type: "t", Key: key, Payload: []byte(p)})
						}
						p := fmt.Sprintf("%s/%d", key, number)
						switch rng.IntN(4) {
						case 0: // under a savepoint, after one that is rolled back
							sp, err := tx.Begin(bg)
							if err != nil {
								return err
							}
							if err := one(sp, "ghost of "+p); err != nil {
								return err
							}
							if err := sp.Rollback(bg); err != nil {
								return err
							}
							if err := pgx.BeginFunc(bg, tx, func(sp pgx.Tx) error { return one(sp, p) }); err != nil {
								return err
							}
						default:
							if err := one(tx, p); err != nil {
								return err
							}
						}
						payloads = append(payloads, p)
					}
					pause(rng, 3)
					if fail {
						return errAbort
					}
					return nil
				})
				if err != nil && !fail && isolation == "" {
					t.Errorf("writer: %v", err)
					return
				}
				h.note(payloads, err == nil)
			}
		})
	}
	return h, &wg
}

var errAbort = fmt.Errorf("the change failed")

func pause(rng *rand.Rand, ms int) {
	if rng.IntN(3) == 0 {
		// sleep: transactions of drawn lengths overtake each other at a real Postgres
		time.Sleep(time.Duration(rng.IntN(ms*1000)) * time.Microsecond)
	}
}

// longTransaction keeps one writing transaction open all the time, and lets each write one event before it ends.
func longTransaction(ctx context.Context, t testing.TB, pool *pgxpool.Pool, h *history, wg *sync.WaitGroup) {
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			p := fmt.Sprintf("long/%d", i)
			err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
				if err := outbox.Write(context.Background(), tx, holdfast.Event{Topic: "orders", Type: "t", Key: "long", Payload: []byte(p)}); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
				case <-time.After(700 * time.Millisecond):
				}
				return nil
			})
			if err != nil {
				t.Errorf("long transaction: %v", err)
			}
			h.note([]string{p}, err == nil)
		}
	})
}

// check is the oracle: nothing lost, no ghosts, every key in order of its first deliveries. It returns the duplicates.
func (h *history) check(t testing.TB, got []holdfast.Event) (duplicates int) {
	t.Helper()
	last := map[string]int64{}
	seen := map[string]bool{}
	lost, ghosts, broken := 0, 0, 0
	for _, e := range got {
		p := string(e.Payload)
		if seen[p] {
			duplicates++
			continue
		}
		seen[p] = true
		if !h.committed[p] {
			ghosts++
			if ghosts < 4 {
				t.Errorf("ghost: %q was published but never committed (aborted: %v)", p, h.aborted[p])
			}
		}
		var n int64
		if _, err := fmt.Sscanf(p[len(e.Key)+1:], "%d", &n); err != nil {
			t.Errorf("unreadable payload %q", p)
		}
		if prev, known := last[e.Key]; known && n < prev {
			broken++
			if broken < 4 {
				t.Errorf("order: %q was published after %d of its key", p, prev)
			}
		}
		last[e.Key] = n
	}
	for p := range h.committed {
		if !seen[p] {
			lost++
			if lost < 4 {
				t.Errorf("lost: %q was committed but never published", p)
			}
		}
	}
	if lost+ghosts+broken > 0 {
		t.Errorf("%d committed, %d lost, %d ghosts, %d orders broken, %d duplicates", len(h.committed), lost, ghosts, broken, duplicates)
	}
	return duplicates
}

func (h *history) complete(b *broker) bool {
	seen := map[string]bool{}
	for _, e := range b.events() {
		seen[string(e.Payload)] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.committed {
		if !seen[p] {
			return false
		}
	}
	return true
}

func TestHistory_NothingIsLostWhileWritersCommitOutOfOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		isolation pgx.TxIsoLevel
		config    relay.Config
	}{
		{"pages of 2,000", "", relay.Config{}},
		{"pages of 3", "", relay.Config{BatchSize: 3}},
		{"repeatable read writers", pgx.RepeatableRead, relay.Config{BatchSize: 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := setup(t, 4)
			b := newBroker()
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			h, wg := writers(ctx, t, pool, 8, 12, seed.New(t), c.isolation)
			longTransaction(ctx, t, pool, h, wg)
			stop := run(t, pool, b, c.config)
			wg.Wait()
			wait.Until(t, "all that was committed arrives", func() bool { return h.complete(b) })
			stop()
			dups := h.check(t, b.events())
			if dups > 0 {
				t.Errorf("%d duplicates without any fault", dups)
			}
			t.Logf("%d events", len(h.committed))
		})
	}
}

func TestHistory_ABacklogWithManyKindsOfTransactionsDrainsInOrder(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	pool := setup(t, 4)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	h, wg := writers(ctx, t, pool, 8, 12, seed.New(t), "")
	longTransaction(ctx, t, pool, h, wg)
	// One huge transaction among the small ones, written while they run: its window has to be planned.
	huge := make([]holdfast.Event, 5000)
	payloads := make([]string, len(huge))
	for i := range huge {
		payloads[i] = fmt.Sprintf("huge/%d", i)
		huge[i] = holdfast.Event{Topic: "orders", Type: "t", Key: "huge", Payload: []byte(payloads[i])}
	}
	write(t, pool, huge...)
	h.note(payloads, true)
	wg.Wait()
	// Cuts in every second row, so that windows are cut many times.
	b := newBroker()
	stop := run(t, pool, b, relay.Config{BatchSize: 50})
	wait.Until(t, "the backlog arrives", func() bool { return h.complete(b) })
	stop()
	if dups := h.check(t, b.events()); dups > 0 {
		t.Errorf("%d duplicates without any fault", dups)
	}
}

func TestHistory_RelaysThatComeAndGoShareTheLanesAndKeepTheOrder(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	pool := setup(t, 8)
	b := newBroker()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	h, wg := writers(ctx, t, pool, 6, 16, seed.New(t), "")
	takeovers, started := noteTakeovers(t, pool), 0
	var lost atomic.Int32 // on a machine so busy that a save takes half a second
	start := func() (string, func()) {
		started++
		name := fmt.Sprintf("relay %d", started)
		return name, run(t, pool, b, relay.Config{Name: name, Lease: time.Second, BatchSize: 20, Observer: relay.Observer{OnLost: func(int, bool, error) { lost.Add(1) }}})
	}
	var names [2]string
	var stops [2]func()
	for i := range stops {
		names[i], stops[i] = start()
	}
	rng := rand.New(rand.NewPCG(seed.New(t), 1))
	for ctx.Err() == nil {
		if !wait.For(wait.Limit(), func() bool { return ownedBy(t, pool, names[0]) == 4 && ownedBy(t, pool, names[1]) == 4 }) {
			t.Fatalf("the relays %q do not own four of eight lanes each: %s", names, lanesAndRelays(t, pool))
		}
		i := rng.IntN(2)
		stops[i]()
		names[i], stops[i] = start()
	}
	wg.Wait()
	wait.Until(t, "all that was committed arrives", func() bool { return h.complete(b) })
	for _, stop := range stops {
		stop()
	}
	if dups := h.check(t, b.events()); dups > 0 && lost.Load() == 0 && takeovers() == 0 {
		t.Errorf("%d duplicates, although every relay stopped in order and no lane was lost", dups)
	}
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.lane where owner is not null"); n > 0 {
		t.Errorf("%d lanes were not handed back", n)
	}
}

func ownedBy(t testing.TB, pool *pgxpool.Pool, name string) int64 {
	t.Helper()
	return pgtest.Count(t, pool, "select count(*) from holdfast.lane where owner = $1 and lease_until > now()", name)
}

// lanesAndRelays is the state of the claims, for a failure's message.
func lanesAndRelays(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	var text string
	if err := pool.QueryRow(context.Background(), `select (select string_agg(format('lane %s: %s until %s', lane, coalesce(owner, '-'), lease_until - now()), '; ' order by lane) from holdfast.lane)
		|| '; ' || (select string_agg(format('%s seen until %s', name, seen_until - now()), '; ') from holdfast.relay)`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}
