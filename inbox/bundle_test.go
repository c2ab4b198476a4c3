package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/waiting"
)

func TestMain(m *testing.M) {
	if os.Getenv(deadlyChild) != "" {
		runDeadlyChild()
		return
	}
	os.Exit(pgtest.Main(m))
}

// bundle is what a test has: its own database with the schema and a table for effects, and what the inbox reported.
type bundle struct {
	*testing.T
	db       *pgtest.DB
	observed *observations
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, "create table effect (n bigint generated always as identity, id text, key text)")
	return &bundle{T: t, db: db, observed: newObservations()}
}

// effectOf is a handler that leaves a trace.
func effectOf(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	_, err := tx.Exec(ctx, "insert into effect (id, key) values ($1, $2)", e.ID, e.Key)
	return err
}

func (b *bundle) effects(id string) int64 {
	b.Helper()
	return pgtest.Count(b, b.db, "select count(*) from effect where id = $1", id)
}

func (b *bundle) count(sql string, args ...any) int64 {
	b.Helper()
	return pgtest.Count(b, b.db, sql, args...)
}

// config is quick: retries in milliseconds.
func (b *bundle) config() Config {
	return Config{
		Consumer:         "billing",
		Retry:            retry.Policy{Attempts: 3, Base: time.Millisecond, Cap: 5 * time.Millisecond},
		ImmediateRetries: -1,
		Timeout:          40 * time.Second, // longer than a busy machine keeps a handler waiting, and shorter than the shortest Retention here
		PollMin:          2 * time.Millisecond, PollMax: 20 * time.Millisecond,
		Observer: b.observed.observer(),
		Logger:   slog.New(slog.DiscardHandler),
	}
}

func (b *bundle) inbox(change ...func(*Config)) *Inbox {
	b.Helper()
	return b.inboxOn(b.db.Pool, change...)
}

func (b *bundle) inboxOn(pool *pgxpool.Pool, change ...func(*Config)) *Inbox {
	b.Helper()
	c := b.config()
	for _, f := range change {
		f(&c)
	}
	in, err := New(pool, c)
	if err != nil {
		b.Fatal(err)
	}
	return in
}

// waiting is what waits and matches a filter, as a person sees it.
func (b *bundle) waiting(f waiting.Filter) []waiting.Event {
	b.Helper()
	room, err := waiting.New(b.db.Pool, waiting.Config{})
	if err != nil {
		b.Fatal(err)
	}
	events, err := room.List(b.T.Context(), f)
	if err != nil {
		b.Fatal(err)
	}
	return events
}

// run runs f until the test ends or stop is called, and wants no error of it.
func (b *bundle) run(f func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					b.Errorf("Run returned %v", err)
				}
			case <-time.After(time.Minute):
				b.Error("Run did not stop")
			}
		})
	}
	b.Cleanup(stop)
	return stop
}

func event(id, key string) holdfast.Event {
	return holdfast.Event{ID: id, Source: "shop", Type: "order.placed", Topic: "orders", Key: key, Payload: []byte("payload of " + id)}
}

func (b *bundle) receive(in *Inbox, e holdfast.Event, want Outcome) {
	b.Helper()
	got, err := in.Receive(b.Context(), e)
	if err != nil || got != want {
		b.Fatalf("Receive(%s) = %q, %v; want %q", e.ID, got, err, want)
	}
}

// observations collects what an Observer reports, and wakes those who wait for it.
type observations struct {
	mu       sync.Mutex
	changed  chan struct{}
	outcomes map[string][]Outcome
	retries  []Retried
	dead     []DeadLettered
	hung     int
	held     []error
	errs     []error
	fenced   int
	lost     int
	assigned map[string]int64
	reread   map[string]int64
	settled  map[string]int64
	revoked  map[string]bool
}

func newObservations() *observations {
	return &observations{changed: make(chan struct{}), outcomes: map[string][]Outcome{}, assigned: map[string]int64{}, reread: map[string]int64{}, settled: map[string]int64{}, revoked: map[string]bool{}}
}

func (o *observations) record(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
	close(o.changed)
	o.changed = make(chan struct{})
}

func name(p Assignment) string { return p.Topic + "/" + strconv.Itoa(p.Partition) }

func (o *observations) observer() Observer {
	return Observer{
		OnReceive: func(r Received) {
			o.record(func() { o.outcomes[r.Event.ID] = append(o.outcomes[r.Event.ID], r.Outcome) })
		},
		OnRetry:       func(r Retried) { o.record(func() { o.retries = append(o.retries, r) }) },
		OnDead:        func(d DeadLettered) { o.record(func() { o.dead = append(o.dead, d) }) },
		OnHungHandler: func(_ holdfast.Event, n int) { o.record(func() { o.hung = n }) },
		OnError:       func(err error) { o.record(func() { o.errs = append(o.errs, err) }) },
		OnHeld:        func(_ Assignment, err error) { o.record(func() { o.held = append(o.held, err) }) },
		OnFenced:      func(Assignment) { o.record(func() { o.fenced++ }) },
		OnLeaseLost:   func(holdfast.Event) { o.record(func() { o.lost++ }) },
		OnAssigned:    func(p Assignment, start int64) { o.record(func() { o.assigned[name(p)] = start }) },
		OnReread:      func(p Assignment, offsets int64) { o.record(func() { o.reread[name(p)] = offsets }) },
		OnSettled:     func(p Assignment, position int64) { o.record(func() { o.settled[name(p)] = position }) },
		OnRevoked:     func(p Assignment, clean bool) { o.record(func() { o.revoked[name(p)] = clean }) },
	}
}

// await waits until what was reported makes cond true.
func (b *bundle) await(what string, cond func(o *observations) bool) {
	b.Helper()
	end := time.After(wait.Limit())
	for {
		b.observed.mu.Lock()
		ok, changed := cond(b.observed), b.observed.changed
		b.observed.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
			continue
		case <-end:
		}
		b.observed.mu.Lock()
		defer b.observed.mu.Unlock()
		b.Fatalf("waited in vain for %s; outcomes %.2000s, %d errors, the last of them %v", what, fmt.Sprint(b.observed.outcomes), len(b.observed.errs), b.observed.errs[max(len(b.observed.errs)-5, 0):])
	}
}

// nothingStored waits until every stored event is settled.
func (b *bundle) nothingStored() {
	b.Helper()
	if wait.For(wait.Limit(), func() bool { return b.count("select count(*) from holdfast.stored") == 0 }) {
		return
	}
	var rows string
	_ = b.db.QueryRow(b.Context(), `select string_agg(concat_ws(' ', event_id, key, place, attempts, next_at - now(), lease_until - now(), errors), E'\n')
		from holdfast.stored`).Scan(&rows)
	b.Fatalf("still stored:\n%s", rows)
}

// awaitHeld waits until a partition is held, and returns why.
func (b *bundle) awaitHeld() (why error) {
	b.Helper()
	b.await("a held partition", func(o *observations) bool {
		if len(o.held) > 0 {
			why = o.held[len(o.held)-1]
		}
		return why != nil
	})
	return why
}

func (b *bundle) awaitOutcome(id string, want Outcome) {
	b.Helper()
	b.await("outcome "+string(want)+" of "+id, func(o *observations) bool {
		for _, got := range o.outcomes[id] {
			if got == want {
				return true
			}
		}
		return false
	})
}

// giveOnce is the Next of a source that has one generation, which lasts.
func giveOnce(ctx context.Context, given *bool, g source.Generation) (source.Generation, error) {
	if !*given {
		*given = true
		return g, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// readAt chooses to read from an offset, and takes the position to be there.
func readAt(offset int64) func(int64) (position.Reading, error) {
	return func(int64) (position.Reading, error) { return position.Reading{Start: offset, Position: offset}, nil }
}

// raise gives partition 0 to a node.
func (b *bundle) raise(in *Inbox, group string, offset int64) position.Assigned {
	b.Helper()
	a, err := in.consumer.positions.Assign(b.Context(), "orders", 0, group, readAt(offset))
	if err != nil {
		b.Fatal(err)
	}
	return a
}

func (b *bundle) fenceWaiters() int64 {
	return b.count("select count(*) from pg_locks where locktype = 'advisory' and classid = $1 and not granted and database = (select oid from pg_database where datname = current_database())", int64(position.FenceClass))
}

// wantError wants an error that says what was being tried.
func (b *bundle) wantError(err error, says string) {
	b.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		b.Errorf("the error is %v, want one that says %q", err, says)
	}
}
