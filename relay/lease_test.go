package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// gate is a Publisher that can be frozen: a call waits before it reaches the broker.
type gate struct {
	*broker
	mu      sync.Mutex
	closed  chan struct{}
	waiting atomic.Int32
}

func (g *gate) Publish(ctx context.Context, events []holdfast.Event) []error {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed != nil {
		g.waiting.Add(1)
		<-closed
		g.waiting.Add(-1)
	}
	return g.broker.Publish(ctx, events)
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

func TestLease_ARelayThatThawsWithoutItsLanesChangesNothing(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	for _, c := range []struct {
		name   string
		refuse func(holdfast.Event) error // what the zombie gets for an answer when it thaws
	}{
		{"its publication is acknowledged", nil},
		{"its publication is refused, and it wants to park", refusing(publish.FaultRecord, "2")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool, kafka := setup(t, 1), newBroker()
			frozen := &gate{broker: kafka}
			t.Cleanup(frozen.open)
			var lost atomic.Bool
			// Nobody loses a lane here because a machine is busy, and the heir's lease is none that the zombie could take for a clock's mistake.
			config := relay.Config{Name: "zombie", Lease: 8 * time.Second, Retry: untiring, BatchSize: 2, Observer: relay.Observer{
				OnLost:    func(int, bool, error) { lost.Store(true) },
				OnWaiting: func(p relay.Waiting) { t.Errorf("the zombie parked %q", p.Event.Payload) }}}
			write(t, pool, event("k", "0"))
			// Its saver must not keep the lease alive: a frozen process saves nothing. So its connections freeze, too.
			zombiePool, freeze := freezable(t, pool)
			run(t, zombiePool, frozen, config)
			arrives(t, kafka, "0")
			frozen.close()
			write(t, pool, event("k", "1"), event("k", "2"), event("k", "3"))
			wait.Until(t, "the relay is inside Publish", func() bool { return frozen.waiting.Load() >= 1 })
			thaw := freeze()
			run(t, pool, kafka, relay.Config{Name: "heir", Lease: 15 * time.Second, BatchSize: 2})
			arrives(t, kafka, "3")
			write(t, pool, event("k", "4"))
			arrives(t, kafka, "4")
			wantSettled(t, pool) // so that whoever claims the lane does not publish again, and meet what is meant for the zombie
			kafka.set(c.refuse)
			thaw()
			frozen.open()
			wait.Until(t, "the zombie drops the lane", lost.Load)
			kafka.set(nil)
			write(t, pool, event("k", "5"))
			arrives(t, kafka, "5")
			wantFirsts(t, kafka, "k", "0", "1", "2", "3", "4", "5")
			if n := parked(t, pool); n != 0 {
				t.Errorf("the zombie parked %d events", n)
			}
		})
	}
}

// freezable gives a pool to the same database whose every statement waits while it is frozen.
func freezable(t *testing.T, pool *pgxpool.Pool) (frozen *pgxpool.Pool, freeze func() (thaw func())) {
	t.Helper()
	config := pool.Config()
	f := &freezer{}
	config.ConnConfig.Tracer = f
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, f.freeze
}

type freezer struct {
	mu     sync.RWMutex
	frozen chan struct{}
}

func (f *freezer) freeze() (thaw func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen = make(chan struct{})
	return sync.OnceFunc(func() { f.mu.Lock(); defer f.mu.Unlock(); close(f.frozen); f.frozen = nil })
}

func (f *freezer) wait() {
	f.mu.RLock()
	frozen := f.frozen
	f.mu.RUnlock()
	if frozen != nil {
		<-frozen
	}
}

func (f *freezer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	f.wait()
	return ctx
}
func (f *freezer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (f *freezer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	f.wait()
	return ctx
}
func (f *freezer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (f *freezer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func TestLease_ARelayWhoseSavesFailStopsPublishingAtHalfItsLease(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	const lease = 10 * time.Second
	var mu sync.Mutex
	var calls []time.Time
	b.delay = func() { mu.Lock(); defer mu.Unlock(); calls = append(calls, time.Now()) } // when it publishes, not when it is back
	run(t, pool, b, relay.Config{Lease: lease})
	write(t, pool, event("k", "0"))
	arrives(t, b, "0")
	// Reading works, saving does not: another transaction holds the lane's row, as a hung client would.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	pgtest.Exec(t, tx, "select from holdfast.lane for update")
	began := time.Now()
	for i := 0; time.Since(began) < lease; i++ {
		write(t, pool, event("k", fmt.Sprint(i+1)))
		time.Sleep(20 * time.Millisecond) // sleep: a steady trickle for as long as the lease, by the clock of a real Postgres
	}
	mu.Lock()
	late := slices.DeleteFunc(calls, func(at time.Time) bool { return at.Sub(began) <= lease/2 })
	mu.Unlock()
	// Between its look at the lease and the broker a busy machine may do other things: for one call, as there is one at a time.
	if len(late) > 1 {
		t.Errorf("it still published %d times, last %v after the last save that can have worked: half the lease is %v", len(late), late[len(late)-1].Sub(began), lease/2)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, pool, event("k", "last"))
	arrives(t, b, "last")
}

func TestLease_ALeaseFarInTheFutureCountsAsRunOut(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	pgtest.Exec(t, pool, "update holdfast.lane set owner = 'dead', epoch = 7, lease_until = now() + interval '1 hour'")
	write(t, pool, event("k", "1"))
	run(t, pool, b, relay.Config{})
	arrives(t, b, "1")
}

func TestLease_ALeaseThatRunsIsRespected(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	began := time.Now() // before the lease begins, so that it cannot have run out sooner by this clock
	pgtest.Exec(t, pool, "update holdfast.lane set owner = 'alive', epoch = 7, lease_until = now() + interval '1500 milliseconds'")
	write(t, pool, event("k", "1"))
	run(t, pool, b, relay.Config{Lease: time.Second})
	arrives(t, b, "1")
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("the lane was taken after %v, its lease ran for 1.5 s", took)
	}
}

// A client that hangs in a transaction of ours keeps the lane's row locked: the claim passes over it although the lease
// ran out. So our transactions tell the server to end them.
func TestLease_ATransactionOfADeadRelayDoesNotKeepALaneForEver(t *testing.T) {
	skip.InShort(t, "it takes 11 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(refusing(publish.FaultRecord, "bad"))
	zombiePool, freeze := freezable(t, pool)
	p := &freezeOnCommit{freeze: freeze}
	zombieConfig := zombiePool.Config()
	zombieConfig.ConnConfig.Tracer = p
	hung, err := pgxpool.NewWithConfig(t.Context(), zombieConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hung.Close)
	p.stuck = make(chan struct{})
	t.Cleanup(func() { close(p.stuck) })
	write(t, pool, event("k", "bad"))
	r, err := relay.New(hung, b, relay.Config{Name: "zombie", Lease: 500 * time.Millisecond, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() { _ = r.Run(ctx) }()
	wait.Until(t, "the relay hangs before its COMMIT", p.hangs.Load)
	run(t, pool, b, relay.Config{Name: "heir", Lease: 6 * time.Second, Retry: untiring})
	wait.Until(t, "another relay parks the event", func() bool { return parked(t, pool) == 1 })
	if took := time.Since(p.since); took < 5*time.Second {
		t.Errorf("the lane was free after %v: the transaction did not hold it, so this test shows nothing", took)
	}
}

type freezeOnCommit struct {
	freeze func() func()
	once   sync.Once
	since  time.Time // its transaction began: what holds the lane from then on is the transaction
	hangs  atomic.Bool
	stuck  chan struct{}
}

func (f *freezeOnCommit) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(d.SQL, "begin") && !f.hangs.Load() {
		f.since = time.Now()
	}
	if d.SQL == "commit" {
		f.once.Do(func() { f.hangs.Store(true) })
	}
	if f.hangs.Load() {
		<-f.stuck
	}
	return ctx
}
func (f *freezeOnCommit) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestLease_RunRefusesToStartWhereItWouldLoseEvents(t *testing.T) {
	t.Parallel()
	t.Run("the default isolation is repeatable read", func(t *testing.T) {
		t.Parallel()
		pool := setup(t, 1)
		config := pool.Config()
		config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
		other, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Close)
		if err := runOnce(t, other); !errors.Is(err, relay.ErrIsolation) {
			t.Errorf("Run returned %v, want ErrIsolation", err)
		}
	})
	t.Run("the schema is missing", func(t *testing.T) {
		t.Parallel()
		if err := runOnce(t, pgtest.New(t).Pool); !errors.Is(err, holdfast.ErrSchemaMissing) {
			t.Errorf("Run returned %v, want ErrSchemaMissing", err)
		}
	})
}

// runOnce runs a relay that is expected to refuse at once.
func runOnce(t *testing.T, pool *pgxpool.Pool) error {
	t.Helper()
	r, err := relay.New(pool, newBroker(), relay.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
	defer cancel()
	return r.Run(ctx)
}
