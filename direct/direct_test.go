package direct_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/direct"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/badly"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/relay/publishertest"
	"github.com/holdfast-go/holdfast/retry"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var quiet = slog.New(slog.DiscardHandler)

// newInbox makes an inbox of a consumer in a database with the schema.
func newInbox(t testing.TB, pool *pgxpool.Pool, c inbox.Config) *inbox.Inbox {
	t.Helper()
	c.Consumer, c.Logger = cmp.Or(c.Consumer, "billing"), quiet
	c.PollMin, c.PollMax = 2*time.Millisecond, 20*time.Millisecond
	in, err := inbox.New(pool, c)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func newPublisher(t testing.TB, routes map[string][]direct.Store, c direct.Config) *direct.Publisher {
	t.Helper()
	p, err := direct.New(routes, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stored are the events of a topic that an inbox has stored: those of a key by their places, those without one as they came.
func stored(t testing.TB, pool *pgxpool.Pool, topic string) []holdfast.Event {
	t.Helper()
	rows, err := pool.Query(t.Context(), "select event_id, source, type, topic, key, time, coalesce(headers::text, '{}'), payload from holdfast.stored where topic = $1 order by case when key = '' then 0 else place end, first_at", topic)
	if err != nil {
		t.Fatal(err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e holdfast.Event, err error) {
		var headers string
		if err := row.Scan(&e.ID, &e.Source, &e.Type, &e.Topic, &e.Key, &e.Time, &headers, &e.Payload); err != nil {
			return e, err
		}
		return e, json.Unmarshal([]byte(headers), &e.Headers)
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func TestDirect_APublisherToInboxesKeepsThePromises(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	routes := map[string][]direct.Store{}
	var free []string
	for i := range 60 {
		free = append(free, fmt.Sprint("topic-", i))
		// Events of the suite have the same ids in each topic, so that each has a consumer of its own. Without handlers it stores all.
		routes[free[i]] = []direct.Store{newInbox(t, db.Pool, inbox.Config{Consumer: free[i]})}
	}
	p := newPublisher(t, routes, direct.Config{})
	nowhere, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/nothing?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	var mu sync.Mutex
	partitions := map[string]int{} // as the suite asked for them
	publishertest.Run(t, publishertest.Options{
		Publisher: p,
		Topic: func(_ testing.TB, n int) string {
			mu.Lock()
			defer mu.Unlock()
			topic := free[0]
			free = free[1:]
			partitions[topic] = n
			return topic
		},
		Read: func(t testing.TB, topic string) (all []publishertest.Stored) {
			for _, e := range stored(t, db.Pool, topic) {
				if e.ID == "bare" { // It was given without a time, which no event of a log is; the inbox gave it one.
					e.Time = time.Time{}
				}
				partition, _ := p.Partition(e)
				mu.Lock()
				if partitions[topic] == 1 { // The suite reads one partition in order, and several in any.
					partition = 0
				}
				mu.Unlock()
				all = append(all, publishertest.Stored{Partition: partition, Record: publish.RecordOf(e)})
			}
			return all
		},
		Refuse: func(e holdfast.Event) holdfast.Event {
			e.Headers = map[string]string{"a": "NUL \x00"}
			return e
		},
		Missing:     "missing",
		Unreachable: newPublisher(t, map[string][]direct.Store{"orders": {newInbox(t, nowhere, inbox.Config{})}}, direct.Config{Timeout: time.Second}),
	})
}

func TestDirect_ARouteOrASettingThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]direct.Config{"partitions is 65": {Partitions: 65}, "partitions is -1": {Partitions: -1}, "timeout is -1s": {Timeout: -time.Second}} {
		if _, err := direct.New(nil, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
	_, err := direct.New(map[string][]direct.Store{"o": {nil}, "p": {storesOf{}, nil}}, direct.Config{Partitions: 65})
	for _, want := range []string{"partitions is 65", "an inbox of topic o is nil", "an inbox of topic p is nil"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
	if _, err := direct.New(nil, direct.Config{}); err == nil || !strings.Contains(err.Error(), "routes are empty") {
		t.Errorf("got %v", err)
	}
	// A Store may be what cannot be compared.
	newPublisher(t, map[string][]direct.Store{"o": {storesOf{}, storesOf{}}}, direct.Config{})
	nobody := newPublisher(t, map[string][]direct.Store{"o": nil}, direct.Config{})
	if err := errors.Join(nobody.Publish(t.Context(), []holdfast.Event{{ID: "1", Topic: "o", Type: "t"}})...); err != nil {
		t.Errorf("events that nobody wants: %v", err)
	}
}

type storesOf []string

func (storesOf) Store(context.Context, holdfast.Event) (inbox.Outcome, error) {
	return inbox.Stored, nil
}

// storeFunc is a Store of a function.
type storeFunc struct {
	f   func(e holdfast.Event) error
	out inbox.Outcome // Stored if it is ""
}

func (s *storeFunc) Store(_ context.Context, e holdfast.Event) (inbox.Outcome, error) {
	return cmp.Or(s.out, inbox.Stored), s.f(e)
}

// Of several inboxes one that is full or away holds its own topics.
func TestDirect_AnInboxThatIsAwayHoldsItsTopicsAlone(t *testing.T) {
	t.Parallel()
	var took []string
	works := &storeFunc{f: func(e holdfast.Event) error { took = append(took, e.ID); return nil }}
	for fault, err := range map[publish.Fault]error{publish.FaultTopic: errors.New("no route to host"), publish.FaultRecord: retry.Permanent(errors.New("no"))} {
		took = nil
		fails := &storeFunc{f: func(holdfast.Event) error { return err }}
		p := newPublisher(t, map[string][]direct.Store{"both": {works, fails}, "one": {works}}, direct.Config{})
		answers := p.Publish(t.Context(), []holdfast.Event{{ID: "1", Topic: "both", Key: "k"}, {ID: "2", Topic: "one", Key: "k"}, {ID: "3", Topic: "both", Key: "k"}})
		if publish.FaultOf(answers[0]) != fault || answers[1] != nil || !errors.Is(answers[2], answers[0]) || !slices.Equal(took, []string{"1", "2"}) {
			t.Errorf("%s: answers %v, and %q are stored", fault, answers, took)
		}
	}
	full := &storeFunc{f: func(holdfast.Event) error { return fmt.Errorf("store event: %w", inbox.ErrFull) }}
	if got := publish.FaultOf(newPublisher(t, map[string][]direct.Store{"o": {full}}, direct.Config{}).Publish(t.Context(), []holdfast.Event{{ID: "1", Topic: "o"}})[0]); got != publish.FaultTopic {
		t.Errorf("a full inbox is the fault of %q", got)
	}
}

func TestDirect_AStoreWhoseErrorMayPanicRefuses(t *testing.T) {
	t.Parallel()
	for _, bad := range badly.Errors() {
		p := newPublisher(t, map[string][]direct.Store{"o": {&storeFunc{f: func(holdfast.Event) error { return bad.Err }}}}, direct.Config{})
		want := publish.FaultBroker
		if retry.IsPermanent(bad.Err) {
			want = publish.FaultRecord
		}
		answers := p.Publish(t.Context(), []holdfast.Event{{ID: "1", Topic: "o", Key: "k"}, {ID: "2", Topic: "o", Key: "k"}})
		if text := fmt.Sprint(answers[1]); publish.FaultOf(answers[0]) != want || !strings.Contains(text, bad.Says) {
			t.Errorf("%s: the fault of %q, %q; want %q and %q", bad.Name, publish.FaultOf(answers[0]), text, want, bad.Says)
		}
	}
}

// A consumer that does not know a type yet must not lose its events: nobody else keeps them.
func TestDirect_AnEventOfAnUnknownTypeIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	e := holdfast.Event{ID: "1", Source: "shop", Topic: "orders", Type: "order.placed", Key: "k", Time: time.Now()}
	rows := func() int64 { return pgtest.Count(t, db.Pool, "select count(*) from holdfast.stored") }
	handling := func(c inbox.Config, types ...string) *inbox.Inbox {
		in := newInbox(t, db.Pool, c)
		for _, name := range types {
			in.Handle(name, func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
		}
		return in
	}
	send := func(s direct.Store) error {
		return newPublisher(t, map[string][]direct.Store{"orders": {s}}, direct.Config{}).Publish(t.Context(), []holdfast.Event{e})[0]
	}
	skipped := 0
	observed := inbox.Observer{OnUnknownType: func(string, string) { skipped++ }, OnReceive: func(inbox.Received) { skipped++ }}
	unaware := handling(inbox.Config{Observer: observed}, "order.paid")
	for name, s := range map[string]direct.Store{"an inbox": unaware, "a store around one": &storeFunc{out: inbox.Skipped, f: func(holdfast.Event) error { return nil }}} {
		err := send(s)
		if publish.FaultOf(err) != publish.FaultTopic || rows() != 0 || skipped != 0 {
			t.Errorf("%s: %v, %d rows, %d reports; want the topic's fault, and that nothing is stored or told as skipped", name, err, rows(), skipped)
		}
		for _, want := range []string{`the type "order.placed"`, "topic orders", "start a node with a handler", "inbox.UnknownStore", "inbox.UnknownSkip"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s: it says %v, want %q", name, err, want)
			}
		}
		if name == "an inbox" && !strings.Contains(fmt.Sprint(err), "consumer billing") {
			t.Errorf("it says %v, and not whose inbox", err)
		}
	}
	if err := send(handling(inbox.Config{UnknownType: inbox.UnknownSkip, Observer: observed}, "order.paid")); err != nil || rows() != 0 || skipped != 2 {
		t.Errorf("with UnknownSkip set: %v, %d rows, %d reports", err, rows(), skipped)
	}
	if err := send(handling(inbox.Config{UnknownType: inbox.UnknownStore}, "order.paid")); err != nil || rows() != 1 {
		t.Errorf("with UnknownStore set: %v, %d rows", err, rows())
	}
	e.ID = "2"
	if err := send(handling(inbox.Config{}, "order.placed")); err != nil || rows() != 2 {
		t.Errorf("with a handler: %v, %d rows", err, rows())
	}
}

// The producer is deployed with a new type, and its consumer later.
func TestDirect_AProducerBeforeItsConsumerLosesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t) // which handles order.placed
	stop := s.relay()
	if err := pgx.BeginFunc(t.Context(), s.producer.Pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, holdfast.Event{Topic: "orders", Type: "order.refunded", Key: "bob", Source: "shop"}, holdfast.Event{Topic: "orders", Type: "order.placed", Key: "bob", Source: "shop", Payload: []byte("after")})
	}); err != nil {
		t.Fatal(err)
	}
	if !wait.For(wait.Limit(), func() bool { return s.held.Load() > 0 }) {
		t.Fatal("the topic is not held")
	}
	if n := pgtest.Count(t, s.consumer.Pool, "select count(*) from holdfast.inbox"); n != 0 {
		t.Errorf("%d events are in the inbox", n)
	}
	stop()
	billing := newInbox(t, s.consumer.Pool, inbox.Config{Consumer: "billing of a later version"})
	for _, name := range []string{"order.refunded", "order.placed"} {
		billing.Handle(name, func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			_, err := tx.Exec(ctx, "insert into invoice (key, what) values ($1, $2)", e.Key, e.Type)
			return err
		})
	}
	s.publisher = newPublisher(t, map[string][]direct.Store{"orders": {billing}}, direct.Config{Timeout: 10 * time.Second})
	s.runs("the later consumer", billing.Run)
	s.relay()
	if got := s.invoices(2, "bob"); !slices.Equal(got, []string{"order.refunded", "order.placed"}) {
		t.Errorf("handled are %q", got)
	}
	if n := pgtest.Count(t, s.producer.Pool, "select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// shop is a producer's database, and a consumer's in another one.
type shop struct {
	*testing.T
	producer, consumer *pgtest.DB
	publisher          *direct.Publisher
	refused            atomic.Int64 // answers of the inbox that were errors
	held               atomic.Int64 // calls of the publisher with an answer that holds a topic
}

// watched counts the errors of a Store.
type watched struct {
	store  direct.Store
	errors *atomic.Int64
}

func (w watched) Store(ctx context.Context, e holdfast.Event) (inbox.Outcome, error) {
	out, err := w.store.Store(ctx, e)
	if err != nil {
		w.errors.Add(1)
	}
	return out, err
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{T: t, producer: migrated.New(t), consumer: migrated.New(t)}
	pgtest.Exec(t, s.consumer.Pool, "create table invoice (n bigint generated always as identity, key text, what text)")
	billing := newInbox(t, s.consumer.Pool, inbox.Config{Retry: retry.Policy{Base: time.Millisecond, Cap: 10 * time.Millisecond}})
	failed := false // the first event of alice fails once; only the worker of her key touches it
	billing.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Key == "alice" && !failed {
			failed = true
			return errors.New("planned")
		}
		_, err := tx.Exec(ctx, "insert into invoice (key, what) values ($1, $2)", e.Key, fmt.Sprintf("%.20s", e.Payload))
		return err
	})
	s.publisher = newPublisher(t, map[string][]direct.Store{"orders": {watched{billing, &s.refused}}}, direct.Config{Timeout: 10 * time.Second})
	s.runs("the consumer", billing.Run)
	return s
}

// runs runs a part until the test ends, or until stop is called.
func (s *shop) runs(what string, run func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := run(ctx); err != nil {
			s.Errorf("%s: %v", what, err)
		}
	}()
	stop = func() { cancel(); <-ended }
	s.Cleanup(stop)
	return stop
}

func (s *shop) relay() (stop func()) {
	s.Helper()
	r, err := relay.New(s.producer.Pool, s.publisher, relay.Config{PollMin: 2 * time.Millisecond, PollMax: 20 * time.Millisecond, Logger: quiet, Observer: relay.Observer{
		OnPublish: func(ctx context.Context, p relay.Publishing) (context.Context, func([]error)) {
			if p.System != "holdfast" {
				s.Errorf("what is published without a broker is of the system %q", p.System)
			}
			return ctx, func(errs []error) {
				if slices.ContainsFunc(errs, func(err error) bool { return publish.FaultOf(err) == publish.FaultTopic }) {
					s.held.Add(1)
				}
			}
		},
	}})
	if err != nil {
		s.Fatal(err)
	}
	return s.runs("the relay", r.Run)
}

func (s *shop) write(key string, payloads ...string) {
	s.Helper()
	var events []holdfast.Event
	for _, p := range payloads {
		events = append(events, holdfast.Event{Topic: "orders", Type: "order.placed", Key: key, Source: "shop", Payload: []byte(p)})
	}
	if err := pgx.BeginFunc(s.Context(), s.producer.Pool, func(tx pgx.Tx) error { return outbox.Write(s.Context(), tx, events...) }); err != nil {
		s.Fatal(err)
	}
}

// invoices waits for n invoices, and returns those of a key.
func (s *shop) invoices(n int64, key string) (all []string) {
	s.Helper()
	wait.Until(s, fmt.Sprint(n, " invoices"), func() bool { return pgtest.Count(s, s.consumer.Pool, "select count(*) from invoice") >= n })
	if err := s.consumer.QueryRow(s.Context(), "select coalesce(array_agg(what order by n), '{}') from invoice where key = $1", key).Scan(&all); err != nil {
		s.Fatal(err)
	}
	if got := pgtest.Count(s, s.consumer.Pool, "select count(*) from invoice"); got != n {
		s.Errorf("%d invoices, want %d", got, n)
	}
	return all
}

func TestDirect_EventsReachAnotherDatabaseInTheOrderOfTheirKeys(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	s := newShop(t)
	s.relay()
	var want []string
	for i := range 40 {
		want = append(want, fmt.Sprint(i))
		s.write("alice", fmt.Sprint(i))
		s.write("bob", fmt.Sprint(i))
	}
	large := string(bytes.Repeat([]byte("large "), 170_000)) // 1,020,000 bytes
	s.write("large", large)
	if got := s.invoices(81, "alice"); !slices.Equal(got, want) {
		t.Errorf("alice's invoices are %q", got)
	}
	if got := s.invoices(81, "bob"); !slices.Equal(got, want) {
		t.Errorf("bob's invoices are %q", got)
	}
}

// A relay that died before it saved sends again what it had sent.
func TestDirect_AnEventThatIsSentAgainIsHandledOnce(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	s := newShop(t)
	events := []holdfast.Event{{ID: "1", Source: "shop", Topic: "orders", Type: "order.placed", Key: "k", Payload: []byte("a")}, {ID: "2", Source: "shop", Topic: "orders", Type: "order.placed", Key: "k", Payload: []byte("b")}}
	for range 3 {
		if err := errors.Join(s.publisher.Publish(t.Context(), events)...); err != nil {
			t.Fatal(err)
		}
		if got := s.invoices(2, "k"); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("the invoices are %q", got)
		}
	}
}

func TestDirect_AnInboxThatIsDownGetsItsEventsLater(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	s := newShop(t)
	s.relay()
	s.write("k", "0")
	s.invoices(1, "k")
	// What is sent to it fails as it does where the server says no. (A table that is missing would end the consumer.)
	pgtest.Exec(t, s.consumer.Pool, "create function away() returns trigger language plpgsql as $$ begin raise exception 'away' using errcode = '57P03'; end $$")
	pgtest.Exec(t, s.consumer.Pool, "create trigger away before insert on holdfast.stored for each statement execute function away()")
	s.write("k", "1", "2")
	s.write("k", "3")
	wait.Until(t, "the relay to be told no", func() bool { return s.refused.Load() > 0 })
	pgtest.Exec(t, s.consumer.Pool, "drop trigger away on holdfast.stored")
	if got := s.invoices(4, "k"); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("the invoices are %q", got)
	}
	if n := pgtest.Count(t, s.producer.Pool, "select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}
