package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/problems"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestStop_AStopHandsTheLanesBackAndNothingIsPublishedTwice(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	pool, b := setup(t, 4), newBroker()
	var warned bytes.Buffer // a stop that could not save, release or leave says so
	logger := slog.New(slog.NewTextHandler(&warned, &slog.HandlerOptions{Level: slog.LevelWarn}))
	n := 0
	for range 5 {
		stop := run(t, pool, b, relay.Config{BatchSize: 3, Logger: logger})
		for range 40 {
			write(t, pool, event(fmt.Sprintf("k%d", n%7), fmt.Sprint(n)))
			n++
		}
		stop() // while there is a backlog
		if warned.Len() > 0 {
			t.Fatalf("the stop was not an orderly one: %s", warned.String())
		}
		if owned := pgtest.Count(t, pool, "select count(*) from holdfast.lane where owner is not null"); owned > 0 {
			t.Fatalf("%d lanes were not handed back", owned)
		}
		if left := pgtest.Count(t, pool, "select count(*) from holdfast.relay"); left > 0 {
			t.Fatalf("%d relays still count themselves in", left)
		}
	}
	run(t, pool, b, relay.Config{})
	wait.Until(t, "everything arrives", func() bool { return len(b.events()) >= n })
	wantOnce(t, b)
}

// The lanes that a claim took from the table when the stop came between are handed back, too.
func TestStop_AStopRightAfterTheStartLeavesNoLaneOwned(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	pool, b := setup(t, 8), newBroker()
	for i := range 25 {
		r, err := relay.New(pool, b, relay.Config{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*2*time.Millisecond)
		err = r.Run(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if owned := pgtest.Count(t, pool, "select count(*) from holdfast.lane where owner is not null"); owned > 0 {
			t.Fatalf("stopped after %d ms, the relay left %d lanes owned", i*2, owned)
		}
	}
}

type hung struct{ entered chan struct{} }

func (h hung) Publish(ctx context.Context, events []holdfast.Event) []error {
	select {
	case h.entered <- struct{}{}:
	default:
	}
	<-ctx.Done() // as Publish must: it gives up when its context ends
	errs := make([]error, len(events))
	for i := range errs {
		errs[i] = ctx.Err()
	}
	return errs
}

func TestStop_AStopCutsAPublicationThatDoesNotEnd(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	t.Parallel()
	pool, h := setup(t, 1), hung{make(chan struct{}, 1)}
	r, err := relay.New(pool, h, relay.Config{Logger: quiet, StopTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	write(t, pool, event("k", "1"))
	<-h.entered
	began := time.Now()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 12*time.Second { // the default is 15 s
		t.Errorf("Run returned %v after its context's end, its StopTimeout is 300ms", took)
	}
	b := newBroker()
	run(t, pool, b, relay.Config{})
	arrives(t, b, "1")
}

// Not parallel: it counts the goroutines of the whole program.
func TestStop_NothingOfARelayRunsOnAfterRun(t *testing.T) {
	pool, b := setup(t, 8), newBroker()
	before := relayGoroutines()
	for range 3 {
		stop := run(t, pool, b, relay.Config{})
		write(t, pool, event("k", "1"))
		wait.Until(t, "the lanes run", func() bool { return relayGoroutines() >= before+8 })
		stop()
	}
	wait.Until(t, "every goroutine has ended", func() bool { return relayGoroutines() <= before })
}

func relayGoroutines() int {
	buf := make([]byte, 8<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "holdfast/relay.(*")
}

func TestStop_WakePublishesAtOnceWhereThePollIsSlow(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	r, err := relay.New(pool, b, relay.Config{Logger: quiet, Lease: time.Hour, PollMin: time.Hour, PollMax: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	// Each publication commits the next event, just when the lane's reader looks for more and finds nothing yet.
	const n = 60
	next := 0
	b.delay = func() {
		if next++; next < n {
			write(t, pool, event("k", fmt.Sprint(next)))
			r.Wake()
		}
	}
	write(t, pool, event("k", "0"))
	go func() { done <- r.Run(ctx) }() // reads the first at the claim
	arrives(t, b, fmt.Sprint(n-1))
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestStop_TheRelayWorksInEveryModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 2), newBroker()
			config := pool.Config()
			config.ConnConfig.DefaultQueryExecMode = mode
			its, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(its.Close)
			at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
			full := holdfast.Event{ID: "full", Source: "s", Type: "t", Topic: "orders", Key: "k", Payload: []byte{0, 1, 0xff, '\''}, Headers: map[string]string{"h": `v"'\`}, Time: at}
			write(t, pool, full, event("k", "bad"), event("k", "2"), holdfast.Event{Topic: "missing", Key: "n", Type: "t", Payload: []byte("topic")}, scheduled("k", "due", time.Now().Add(200*time.Millisecond)))
			b.set(func(e holdfast.Event) error {
				switch string(e.Payload) {
				case "bad":
					return refusal(publish.FaultRecord)
				case "topic":
					return refusal(publish.FaultTopic)
				}
				return nil
			})
			stop := run(t, its, b, relay.Config{Retry: swift, HoldKey: true, BatchSize: 3})
			wait.Until(t, "a letter is written", func() bool { return letters(t, pool) == 1 })
			b.set(nil)
			replay(t, pool, pgtest.Count(t, pool, "select id from holdfast.letter"))
			arrives(t, b, "bad", "2", "due", "topic")
			if did, err := relay.Adopt(t.Context(), its, holdfast.SchemaConfig{}); err != nil || did != "nothing to adopt" {
				t.Errorf("Adopt did %q, %v", did, err)
			}
			stop()
			wantFirsts(t, b, "k", string(full.Payload), "bad", "2", "due")
			for _, e := range b.events() {
				if e.ID == "full" && (e.Headers["h"] != full.Headers["h"] || !e.Time.Equal(at) || e.Source != "s" || e.Type != "t") {
					t.Errorf("got %+v, want %+v", e, full)
				}
			}
			wantOnce(t, b)
		})
	}
}

// counter counts statements.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counter) now() int                                                        { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

func TestStop_AnIdleRelayMakesAtMostFifteenStatementsASecond(t *testing.T) {
	skip.InShort(t, "it judges a rate over seconds")
	t.Parallel()
	pool, b := setup(t, 8), newBroker()
	c := &counter{}
	config := pool.Config()
	config.ConnConfig.Tracer = c
	counted, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(counted.Close)
	var lost atomic.Int32
	run(t, counted, b, relay.Config{Lease: 5 * time.Second, // the default: a longer one asks for fewer statements
		Observer: relay.Observer{OnLost: func(int, bool, error) { lost.Add(1) }}})
	write(t, pool, event("k", "1"))
	arrives(t, b, "1")
	rate := func(span time.Duration) float64 {
		from, began := c.now(), time.Now()
		time.Sleep(span) // sleep: a rate of statements at a real Postgres needs a span of time
		return float64(c.now()-from) / time.Since(began).Seconds()
	}
	// On a busy machine what the event made it do takes longer than a second.
	wait.Until(t, "it is idle", func() bool { return rate(time.Second) <= 15 })
	var got float64
	for before := int32(-1); before != lost.Load(); { // one that has lost lanes, because the machine stood still, is not idle: it claims them again
		before = lost.Load()
		got = rate(4 * time.Second) // this is a rate: it takes its time
	}
	if got > 15 {
		t.Errorf("%.1f statements a second while idle, want at most 15", got)
	}
}

func TestStop_NewNamesEveryProblemOfItsConfiguration(t *testing.T) {
	t.Parallel()
	_, err := relay.New(nil, nil, relay.Config{Lease: time.Millisecond, BatchSize: -1, ParkAfter: -2, SegmentBytes: 1, StopTimeout: -1, Schema: "No!"})
	if err == nil {
		t.Fatal("New accepted it")
	}
	problems.HaveForm(t, err)
	for _, part := range []string{"pool is nil", "publisher is nil", "lease is 1ms", "batch size is -1", "park after is -2ns", "segment bytes is 1", "stop timeout is -1ns", "No!"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	if errors.Unwrap(err) == nil {
		t.Error("the problems cannot be unwrapped")
	}
}
