package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast"
	natsjs "github.com/holdfast-go/holdfast/contrib/nats"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
)

var quiet = slog.New(slog.DiscardHandler)

// shop is the whole path: a producer's database, a NATS server, a consumer's database.
type shop struct {
	*testing.T
	nats               *natsServer
	js                 jetstream.JetStream // of the test itself
	topic              string
	producer, consumer *pgtest.DB
	poison             atomic.Bool // events of type poison fail
	systems            sync.Map    // what the observers were told of
}

func newShop(t *testing.T, partitions int) *shop {
	t.Helper()
	n := startServer(t)
	js := n.connect()
	s := &shop{T: t, nats: n, js: js, topic: n.topic(js, partitions), producer: migrated.New(t), consumer: migrated.New(t)}
	// No unique constraint: an effect that happens twice must be visible.
	pgtest.Exec(t, s.consumer.Pool, "create table effect (n bigint generated always as identity, key text, what text)")
	return s
}

// runs runs a part until the function that it returns is called.
func (s *shop) runs(what string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := run(ctx); err != nil {
			s.Errorf("%s: %v", what, err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	s.Cleanup(stop)
	return stop
}

// relay runs a relay on a connection of its own.
func (s *shop) relay() (stop func()) {
	s.Helper()
	r, err := relay.New(s.producer.Pool, publisherOn(s, s.nats.connect(), natsjs.PublisherConfig{PublishTimeout: 2 * time.Second}),
		relay.Config{PollMin: 2 * time.Millisecond, PollMax: 20 * time.Millisecond, Logger: quiet, Observer: relay.Observer{
			OnPublish: func(ctx context.Context, p relay.Publishing) (context.Context, func([]error)) {
				s.systems.Store("publish "+p.System, true)
				return ctx, func([]error) {}
			}}})
	if err != nil {
		s.Fatal(err)
	}
	return s.runs("the relay", r.Run)
}

// inbox makes a node's inbox, which counts the partitions that it was assigned.
func (s *shop) inbox(assigned *atomic.Int64) *inbox.Inbox {
	s.Helper()
	in, err := inbox.New(s.consumer.Pool, inbox.Config{Consumer: "billing", Logger: quiet, StopTimeout: 2 * time.Second, Grace: time.Second,
		PollMin: 2 * time.Millisecond, PollMax: 20 * time.Millisecond, Retry: retry.Policy{Base: time.Millisecond, Cap: 10 * time.Millisecond, Attempts: 3},
		Observer: inbox.Observer{
			OnAssigned: func(inbox.Assignment, int64) { assigned.Add(1) },
			OnHandle: func(ctx context.Context, h inbox.Handling) (context.Context, func(error)) {
				s.systems.Store(fmt.Sprintf("handle what is %s of %s", h.FromState, h.System), true)
				return ctx, func(error) {}
			},
		}})
	if err != nil {
		s.Fatal(err)
	}
	handle := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Type == "poison" && s.poison.Load() {
			return errors.New("poison")
		}
		_, err := tx.Exec(ctx, "insert into effect (key, what) values ($1, $2)", e.Key, string(e.Payload))
		return err
	}
	in.Handle("counted", handle)
	in.Handle("poison", handle)
	return in
}

// node runs a member of the consumer on a connection of its own.
func (s *shop) node() (assigned *atomic.Int64, stop func()) {
	s.Helper()
	assigned = &atomic.Int64{}
	group := groupOn(s, s.nats.connect(), natsjs.GroupConfig{GroupID: "billing", Topics: []string{s.topic}, HeartbeatInterval: 100 * time.Millisecond, SessionTimeout: 10 * time.Second})
	in := s.inbox(assigned)
	return assigned, s.runs("a node", func(ctx context.Context) error { return in.Consume(ctx, group) })
}

func (s *shop) write(events ...holdfast.Event) {
	s.Helper()
	for i := range events {
		events[i].Topic, events[i].Source = s.topic, "shop"
	}
	if err := pgx.BeginFunc(s.Context(), s.producer.Pool, func(tx pgx.Tx) error { return outbox.Write(s.Context(), tx, events...) }); err != nil {
		s.Fatal(err)
	}
}

func counted(key string, n int) holdfast.Event {
	return holdfast.Event{Type: "counted", Key: key, Payload: []byte(fmt.Sprint(n))}
}

// effects are what was done for each key, in order.
func (s *shop) effects() map[string][]string {
	s.Helper()
	rows, err := s.consumer.Query(s.Context(), "select key, array_agg(what order by n) from effect group by key")
	if err != nil {
		s.Fatal(err)
	}
	by := map[string][]string{}
	var key string
	var all []string
	if _, err := pgx.ForEachRow(rows, []any{&key, &all}, func() error { by[key] = slices.Clone(all); return nil }); err != nil {
		s.Fatal(err)
	}
	return by
}

func (s *shop) awaitEffects(n int64) {
	s.Helper()
	if !wait.For(wait.Limit(), func() bool { return pgtest.Count(s, s.consumer.Pool, "select count(*) from effect") >= n }) {
		s.Fatalf("%d effects, want %d; the log has %v, effects are %v", pgtest.Count(s, s.consumer.Pool, "select count(*) from effect"), n, idsByKey(s, s.js, s.topic), s.effects())
	}
}

// inOrder wants each of so many keys to have the numbers from 0, once and in order.
func (s *shop) inOrder(keys, each int) {
	s.Helper()
	var want []string
	for n := range each {
		want = append(want, fmt.Sprint(n))
	}
	got := s.effects()
	for k := range keys {
		if key := fmt.Sprint("k", k); !slices.Equal(got[key], want) {
			s.Errorf("the effects of %s are %s, want 0 to %d", key, strings.Join(got[key], " "), each-1)
		}
	}
}

// The server is restarted three times while events are written, and a second node comes and goes.
func TestPath_ARestartOfTheServerLosesDoublesAndReordersNothing(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	s := newShop(t, 4)
	s.relay()
	s.node()
	const keys, each = 12, 40
	var stopSecond func()
	for n := range each {
		var events []holdfast.Event
		for k := range keys {
			events = append(events, counted(fmt.Sprint("k", k), n))
		}
		s.write(events...)
		switch n {
		case 8, 20, 32:
			s.awaitEffects(int64(keys * (n - 5))) // so that there is something in progress, and something done
			s.nats.restart()
		case 12:
			assigned, stop := s.node()
			stopSecond = stop
			wait.Until(t, "the second node has partitions", func() bool { return assigned.Load() > 0 })
		case 28:
			stopSecond()
		}
	}
	s.awaitEffects(keys * each)
	s.inOrder(keys, each)
	if letters := pgtest.Count(t, s.consumer.Pool, "select count(*) from holdfast.letter") + pgtest.Count(t, s.producer.Pool, "select count(*) from holdfast.letter"); letters != 0 {
		t.Errorf("%d dead letters", letters)
	}
	for key, ids := range idsByKey(t, s.js, s.topic) {
		if unique := slices.Compact(slices.Sorted(slices.Values(ids))); len(unique) != each || len(ids) != each {
			t.Errorf("the stream has %d events of %s, %d different ones, want %d: a repeat within the duplicate window is dropped", len(ids), key, len(unique), each)
		}
	}
}

func TestPath_APoisonEventBecomesADeadLetterAndIsReplayed(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	s := newShop(t, 2)
	s.poison.Store(true)
	s.relay()
	s.node()
	s.write(counted("k0", 0), holdfast.Event{Type: "poison", Key: "k0", Payload: []byte("1")}, counted("k0", 2), counted("k1", 0))
	s.awaitEffects(3)
	open := func() int64 {
		return pgtest.Count(t, s.consumer.Pool, "select count(*) from holdfast.letter where state = 'open'")
	}
	wait.Until(t, "the poison event is a dead letter", func() bool { return open() == 1 })
	for _, said := range []string{"publish nats", "handle what is none of nats"} {
		if _, known := s.systems.LoadAndDelete(said); !known {
			t.Errorf("the observers were not told: %s", said)
		}
	}
	s.systems.Range(func(said, _ any) bool { t.Errorf("the observers were told: %s", said); return true })
	if got := s.effects()["k0"]; !slices.Equal(got, []string{"0", "2"}) {
		t.Errorf("beside the dead letter the effects are %q", got)
	}
	s.poison.Store(false)
	letters, err := dlq.New(s.consumer.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.nats.restart() // The letter is in Postgres: a replay needs no broker.
	if _, err := letters.Replay(t.Context(), dlq.Filter{Consumer: "billing"}, dlq.ReplayOptions{By: "operator", Reason: "the handler is fixed"}); err != nil {
		t.Fatal(err)
	}
	s.awaitEffects(4)
	if got := s.effects()["k0"]; !slices.Equal(got, []string{"0", "2", "1"}) {
		t.Errorf("after the replay the effects are %q", got)
	}
	s.write(counted("k0", 3))
	s.awaitEffects(5)
}
