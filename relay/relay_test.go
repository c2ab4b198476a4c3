package relay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// broker is a Publisher that keeps what it acknowledged, in order, and refuses what the test tells it to.
type broker struct {
	mu      sync.Mutex
	got     []holdfast.Event
	calls   int
	refuse  func(e holdfast.Event) error // nil = acknowledge
	delay   func()
	arrived chan struct{}
}

func newBroker() *broker { return &broker{arrived: make(chan struct{}, 1)} }

func (b *broker) Publish(_ context.Context, events []holdfast.Event) []error {
	if b.delay != nil {
		b.delay()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	errs := make([]error, len(events))
	stuck := map[string]error{}
	for i, e := range events {
		if err := stuck[e.Topic+"\x00"+e.Key]; err != nil && e.Key != "" {
			errs[i] = fmt.Errorf("not sent, an earlier event of its key was refused: %w", err)
			continue
		}
		if b.refuse != nil {
			if errs[i] = b.refuse(e); errs[i] != nil {
				stuck[e.Topic+"\x00"+e.Key] = errs[i]
				continue
			}
		}
		b.got = append(b.got, e)
	}
	select {
	case b.arrived <- struct{}{}:
	default:
	}
	return errs
}

// Partition puts what a test calls down into a partition of its own.
func (b *broker) Partition(e holdfast.Event) (partition, partitions int) {
	if e.Key == "down" || e.Type == "down" {
		return 1, 2
	}
	return 0, 2
}

func (b *broker) set(refuse func(e holdfast.Event) error) {
	b.mu.Lock()
	b.refuse = refuse
	b.mu.Unlock()
}

func (b *broker) events() []holdfast.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]holdfast.Event(nil), b.got...)
}

// payloads of the events of one key, first deliveries only.
func (b *broker) firsts(key string) []string {
	var out []string
	seen := map[string]bool{}
	for _, e := range b.events() {
		if e.Key == key && !seen[e.ID] {
			seen[e.ID] = true
			out = append(out, string(e.Payload))
		}
	}
	return out
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// setup gives a database with the schema.
func setup(t testing.TB, lanes int) *pgxpool.Pool {
	t.Helper()
	return migrated.Lanes(t, lanes).Pool
}

// run starts a relay and returns the func that stops it and waits. Where a test does not say how long the lease is, it is
// so long that no save on a busy machine comes too late: a lane that is lost is published again from its last save.
func run(t testing.TB, pool *pgxpool.Pool, p relay.Publisher, c relay.Config) (stop func()) {
	t.Helper()
	if c.Logger == nil {
		c.Logger = quiet
	}
	if c.Lease == 0 {
		c.Lease = 2 * time.Minute
	}
	r, err := relay.New(pool, p, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(wait.Limit()):
			t.Errorf("Run did not return within %v of its context's end", wait.Limit())
		}
	}
	t.Cleanup(stop)
	return stop
}

func write(t testing.TB, pool *pgxpool.Pool, events ...holdfast.Event) {
	t.Helper()
	err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error { return outbox.Write(context.Background(), tx, events...) })
	if err != nil {
		t.Fatal(err)
	}
}

func event(key, payload string) holdfast.Event {
	return holdfast.Event{Topic: "orders", Key: key, Type: "order.placed", Payload: []byte(payload)}
}

func TestRelay_AnEventThatWasCommittedIsPublishedAsItWasWritten(t *testing.T) {
	t.Parallel()
	pool := setup(t, 8)
	b := newBroker()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	want := holdfast.Event{ID: "o-1", Source: "shop", Type: "order.placed", Topic: "orders", Key: "k", Payload: []byte{0, 1, 0xff}, Headers: map[string]string{"traceparent": "00-ab-cd-01"}, Time: at}
	write(t, pool, want, holdfast.Event{ID: "o-2", Topic: "orders", Key: "k", Type: "order.removed"})
	run(t, pool, b, relay.Config{})
	wait.Until(t, "both events arrive", func() bool { return len(b.events()) == 2 })
	got := b.events()
	if g := got[0]; g.ID != want.ID || g.Source != want.Source || g.Type != want.Type || g.Topic != want.Topic || g.Key != want.Key ||
		string(g.Payload) != string(want.Payload) || g.Headers["traceparent"] != "00-ab-cd-01" || !g.Time.Equal(at) {
		t.Errorf("got %+v, want %+v", g, want)
	}
	if got[1].Payload != nil {
		t.Errorf("a tombstone arrived with the payload %q", got[1].Payload)
	}
}

func TestRelay_AnEventOfARolledBackTransactionIsNeverPublished(t *testing.T) {
	t.Parallel()
	pool := setup(t, 2)
	b := newBroker()
	run(t, pool, b, relay.Config{})
	for i := range 20 {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if err := outbox.Write(t.Context(), tx, event("k", fmt.Sprint(i))); err != nil {
				return err
			}
			if i%2 == 1 {
				return errors.New("the change failed")
			}
			return nil
		})
		if (err != nil) != (i%2 == 1) {
			t.Fatal(err)
		}
	}
	wait.Until(t, "ten events arrive", func() bool { return len(b.events()) == 10 })
	for _, e := range b.events() {
		if n := int(e.Payload[len(e.Payload)-1] - '0'); n%2 == 1 {
			t.Errorf("the ghost %q was published", e.Payload)
		}
	}
}
