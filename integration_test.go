package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/kafkatest"
	"github.com/holdfast-go/holdfast/internal/oracle"
	"github.com/holdfast-go/holdfast/internal/pgtest"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// The integration tests are of the whole path, outbox.Write to dead letter, on a real Postgres and a real Kafka, from
// the outside only. Each ends with the oracle of integration_oracle_test.go.

// patience is how long something may take that has to happen: these tests share their machine with others.
const patience = 150 * time.Second

// path is what one test needs of the whole way.
type path struct {
	testing.TB
	db      *pgtest.DB // for the test itself, straight to the server
	cluster *kafkatest.Cluster
	topics  []string // whose records the oracle reads
	dsn     string   // for the parts of the path
	mode    pgx.QueryExecMode
	tail    *tail
}

// setupPath makes a database with holdfast's schema and the tables of the tests, and one topic.
func setupPath(t testing.TB, db *pgtest.DB, cluster *kafkatest.Cluster, partitions int) *path {
	t.Helper()
	p := &path{TB: t, db: db, cluster: cluster, topics: []string{cluster.Topic(t, partitions)}, dsn: db.DSN,
		mode: pgx.QueryExecModeCacheStatement, tail: &tail{}}
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		// The truth of what was committed, written in the transaction of each event: it needs nobody's word.
		"create table written (id text primary key, topic text not null, key text not null, number bigint not null)",
		"create table aggregate (key text primary key, n bigint not null default 0)",
		"create table other (x bigint)",
		// No key on id: an effect that happens twice is to be seen.
		"create table effect (n bigint generated always as identity primary key, consumer text not null, id text not null, key text not null)",
		"create table state (consumer text, key text, id text, primary key (consumer, key))",
	} {
		pgtest.Exec(t, db, sql)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last lines of the logs:\n%s", p.tail)
		}
	})
	return p
}

func (p *path) topic() string { return p.topics[0] }

// pool is one that a part of the path has for itself, as a process of its own would.
func (p *path) pool(connections int) *pgxpool.Pool {
	p.Helper()
	pool, err := openPool(p.dsn, p.mode, connections)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(pool.Close)
	return pool
}

func openPool(dsn string, mode pgx.QueryExecMode, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("open pool: the test's connection string cannot be parsed")
	}
	config.MaxConns = int32(connections)
	config.ConnConfig.DefaultQueryExecMode = mode
	config.ConnConfig.ConnectTimeout = patience / 3
	return pgxpool.NewWithConfig(context.Background(), config)
}

// run starts a part of the path and returns what stops it. It must end without an error, and soon.
func (p *path) run(what string, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil {
			p.Errorf("%s ended: %v", what, err)
		}
	}()
	stop = func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			p.Errorf("%s does not stop", what)
		}
	}
	p.Cleanup(stop)
	return stop
}

// relay runs a relay.
func (p *path) relay(change func(*relay.Config)) (stop func()) {
	p.Helper()
	c := relay.Config{Logger: p.tail.logger("relay")}
	if change != nil {
		change(&c)
	}
	r, err := newRelay(p.pool(4), p.cluster.Brokers, kafkago.PublisherConfig{}, c)
	if err != nil {
		p.Fatal(err)
	}
	return p.run("relay", r.Run)
}

func newRelay(pool *pgxpool.Pool, brokers []string, k kafkago.PublisherConfig, c relay.Config) (*relay.Relay, error) {
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: brokers}, k)
	if err != nil {
		return nil, err
	}
	return relay.New(pool, publisher, c)
}

// consume runs one node of a consumer on the path's topics. Every event is of the type "changed".
func (p *path) consume(consumer string, h inbox.Handler, change func(*inbox.Config)) (stop func()) {
	p.Helper()
	c := inbox.Config{Consumer: consumer, Logger: p.tail.logger(consumer)}
	if change != nil {
		change(&c)
	}
	in, err := inbox.New(p.pool(10), c)
	if err != nil {
		p.Fatal(err)
	}
	in.Handle("changed", h)
	g := groupOf(consumer, p.topics)
	return p.run("consumer "+consumer, func(ctx context.Context) error { return consumeGroup(ctx, in, p.cluster.Brokers, g) })
}

func groupOf(consumer string, topics []string) kafkago.GroupConfig {
	return kafkago.GroupConfig{GroupID: consumer + " of " + topics[0], Topics: topics,
		SessionTimeout: 20 * time.Second, HeartbeatInterval: 500 * time.Millisecond, WatchInterval: time.Second}
}

func consumeGroup(ctx context.Context, in *inbox.Inbox, brokers []string, g kafkago.GroupConfig) error {
	group, err := kafkago.NewGroup(kafkago.Connection{Brokers: brokers}, g)
	if err != nil {
		return err
	}
	return in.Consume(ctx, group)
}

// committed is the offset that billing's group has committed, -1 where it has none; known is false where nobody says.
func (p *path) committed(topic string, partition int) (offset int64, known bool) {
	res, err := p.cluster.Client.OffsetFetch(p.Context(), &kafka.OffsetFetchRequest{GroupID: groupOf("billing", p.topics).GroupID,
		Topics: map[string][]int{topic: {partition}}})
	if err != nil || res.Error != nil || len(res.Topics[topic]) != 1 {
		return 0, false
	}
	return res.Topics[topic][0].CommittedOffset, true
}

type executor interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// effectOf is the handler of most tests: it writes a row of effect. The lock on the key's row of state makes the numbers
// of a key's effects tell the order of their commits.
func effectOf(consumer string) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { return putEffect(ctx, tx, consumer, e) }
}

func putEffect(ctx context.Context, db executor, consumer string, e holdfast.Event) error {
	b := &pgx.Batch{}
	if e.Key != "" {
		b.Queue("insert into state (consumer, key, id) values ($1, $2, $3) on conflict (consumer, key) do update set id = excluded.id", consumer, e.Key, e.ID)
	}
	b.Queue("insert into effect (consumer, id, key) values ($1, $2, $3)", consumer, e.ID, e.Key)
	return db.SendBatch(ctx, b).Close()
}

// await looks again and again until cond is true.
func (p *path) await(what string, cond func() bool) {
	p.Helper()
	if !p.happens(what, cond) {
		p.FailNow()
	}
}

// happens is await for a test that goes on, to see what else is wrong.
func (p *path) happens(what string, cond func() bool) bool {
	p.Helper()
	begun := time.Now()
	for !cond() {
		if time.Since(begun) > patience {
			p.Errorf("waited %v for this: %s\n%s", patience, what, p.census())
			return false
		}
		time.Sleep(20 * time.Millisecond)
	}
	return true
}

func (p *path) count(sql string, args ...any) int64 {
	p.Helper()
	return pgtest.Count(p, p.db, sql, args...)
}

// census says where events are, for a test that waits in vain.
func (p *path) census() string {
	var text string
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := p.db.QueryRow(ctx, `select format('%s written; %s effects; parked: %s; stored: %s; letters: %s; positions: %s; lanes: %s',
		(select count(*) from written),
		(select string_agg(consumer || ' ' || n, ', ') from (select consumer, count(distinct id) n from effect group by 1) x),
		(select string_agg(why || ' ' || n, ', ') from (select why, count(*) n from holdfast.parked group by 1) x),
		(select count(*) from holdfast.stored),
		(select string_agg(reason, '; ') from (select reason from holdfast.letter limit 5) x),
		(select string_agg(format('%s/%s/%s at %s epoch %s clean %s', consumer, right(topic, 4), partition, position, epoch, clean), ', ') from holdfast.consumer_position),
		(select string_agg(format('%s owner %s lease until %s', lane, owner, lease_until - now()), ', ') from holdfast.lane))`).Scan(&text)
	if err != nil {
		return err.Error()
	}
	return text
}

// arrive waits until every committed event has had its effect with each of the consumers, and nothing waits any more.
func (p *path) arrive(consumers ...string) {
	p.Helper()
	p.happens("every event has its effects, and nothing waits", func() bool {
		return p.count(`select count(*) from written w cross join unnest($1::text[]) c
				where not exists (select 1 from effect e where e.consumer = c and e.id = w.id)
				and not exists (select 1 from holdfast.letter l where l.event_id = w.id and l.consumer in (c, '') and l.state = 'open')`, consumers) == 0 &&
			p.count("select (select count(*) from holdfast.parked) + (select count(*) from holdfast.stored)") == 0
	})
}

// finish ends a test's path in order: relays first, then the consumers once they have read all that is in Kafka, so that
// a late duplicate has its chance to do harm. Then the oracle looks at everything.
func (p *path) finish(stopRelays, stopConsumers []func(), consumers ...string) verdict {
	p.Helper()
	p.arrive(consumers...)
	for _, stop := range stopRelays {
		stop()
	}
	records := 0
	for _, topic := range p.topics {
		records += len(p.cluster.ReadAll(p, topic))
	}
	p.happens("the consumers have read all of Kafka", func() bool {
		return p.count(`select count(*) from unnest($1::text[]) c
			where (select coalesce(sum(position), 0) from holdfast.consumer_position where consumer = c and topic = any($3)) < $2`, consumers, records, p.topics) == 0
	})
	for _, stop := range stopConsumers {
		stop()
	}
	return p.judge(consumers...)
}

func TestTheWholeWayFromOutboxToTheEffectsOfTwoConsumers(t *testing.T) {
	t.Parallel()
	p := setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), 6)
	var duplicates, lost atomic.Int64
	var mu sync.Mutex
	seen := map[string]holdfast.Event{}
	billing := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		mu.Lock()
		seen[e.ID] = e
		mu.Unlock()
		return putEffect(ctx, tx, "billing", e)
	}
	observe := func(c *inbox.Config) {
		c.Observer.OnReceive = func(r inbox.Received) {
			if r.Outcome == inbox.Duplicate {
				duplicates.Add(1)
			}
		}
	}
	watch := func(c *relay.Config) { c.Observer.OnLost = func(relay.Lost) { lost.Add(1) } }
	relays := []func(){p.relay(watch), p.relay(watch)}
	consumers := []func(){p.consume("billing", billing, observe), p.consume("mail", effectOf("mail"), observe)}

	// 1. Many keys, some events without one, some tombstones, headers on all.
	keys, each := 40, 25
	if testing.Short() {
		keys, each = 20, 10
	}
	begun := time.Now()
	wrote := map[string]holdfast.Event{}
	pool := p.pool(4)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for n := 1; n <= each; n++ {
				for k := w; k < keys; k += 4 {
					e := p.event(fmt.Sprintf("key-%d ü", k), int64(n))
					e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": fmt.Sprint("t", k), "empty": ""}
					e.Time = time.Date(2024, 2, 29, 23, 59, 59, 123456000, time.UTC)
					switch {
					case k == 7:
						e.Key = ""
					case n%10 == 0:
						e.Payload = nil
					case n%10 == 1:
						e.Payload = []byte{}
					}
					err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error { return p.write(tx, int64(n), e) })
					if err != nil {
						t.Errorf("write: %v", err)
						return
					}
					mu.Lock()
					wrote[e.ID] = e
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	v := p.finish(relays, consumers, "billing", "mail")
	t.Logf("in %v, %d lanes lost: %s", time.Since(begun).Round(time.Millisecond), lost.Load(), v)
	v.mustHold(t)
	// A machine that stands still for half a lease is a fault. Without one there is nothing to repeat.
	if lost.Load() == 0 && (v.Figures.Duplicates > 0 || duplicates.Load() > 0) {
		t.Errorf("without any fault Kafka has %d duplicates, and consumers met %d", v.Figures.Duplicates, duplicates.Load())
	}

	// 2. The handler is given what was written.
	for id, want := range wrote {
		got := seen[id]
		if got.Key != want.Key || got.Type != want.Type || got.Topic != want.Topic || got.Source != want.Source || !got.Time.Equal(want.Time) ||
			string(got.Payload) != string(want.Payload) || (got.Payload == nil) != (want.Payload == nil) || !maps.Equal(got.Headers, want.Headers) {
			t.Fatalf("the handler was given %+v, written was %+v", got, want)
		}
	}

	// 3. Kafka's records are CloudEvents.
	for _, r := range p.cluster.ReadAll(t, p.topic()) {
		id, _ := r.Header("ce_id")
		want := wrote[id]
		for name, value := range map[string]string{"ce_specversion": "1.0", "ce_source": "shop", "ce_type": "changed", "ce_time": "2024-02-29T23:59:59.123456Z",
			"traceparent": want.Headers["traceparent"], "tenant": want.Headers["tenant"], "empty": ""} {
			if got, ok := r.Header(name); !ok || got != value {
				t.Fatalf("record %d/%d: header %s is %q, want %q", r.Partition, r.Offset, name, got, value)
			}
		}
		if string(r.Key) != want.Key || (r.Key == nil) != (want.Key == "") || string(r.Value) != string(want.Payload) || (r.Value == nil) != (want.Payload == nil) {
			t.Fatalf("record %d/%d is %q: %q, want %q: %q", r.Partition, r.Offset, r.Key, r.Value, want.Key, want.Payload)
		}
	}
}

// The oracle must see what it is there to see: this handler writes past its transaction, as a pool in a closure would.
func TestTheOracleSeesEffectsThatAreWrittenOutsideTheTransaction(t *testing.T) {
	t.Parallel()
	p := setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), 2)
	pool := p.pool(4)
	var mu sync.Mutex
	failed := map[string]bool{}
	stopRelay := p.relay(nil)
	stopConsumer := p.consume("billing", func(ctx context.Context, _ pgx.Tx, e holdfast.Event) error {
		if err := putEffect(ctx, pool, "billing", e); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if !failed[e.ID] {
			failed[e.ID] = true
			return errors.New("the first try fails")
		}
		return nil
	}, nil)
	for n := range int64(5) {
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return p.write(tx, n+1, p.event("k", n+1)) }); err != nil {
			t.Fatal(err)
		}
	}
	v := p.finish([]func(){stopRelay}, []func(){stopConsumer}, "billing")
	t.Log(v)
	if n := v.Count(oracle.Doubles); n != 5 {
		t.Errorf("the oracle sees %d double effects, want 5", n)
	}
}

// event is the number-th of a key.
func (p *path) event(key string, number int64) holdfast.Event {
	return holdfast.Event{ID: newID(), Source: "shop", Type: "changed", Topic: p.topic(), Key: key, Payload: fmt.Appendf(nil, "%s/%d", key, number)}
}

// write is one event and the truth about it, in the caller's transaction.
func (p *path) write(tx pgx.Tx, number int64, e holdfast.Event) error {
	ctx := context.Background()
	if _, err := tx.Exec(ctx, "insert into written values ($1, $2, $3, $4)", e.ID, e.Topic, e.Key, number); err != nil {
		return err
	}
	return outbox.Write(ctx, tx, e)
}

// tail keeps the last lines of the logs of a path: they are shown when its test fails.
type tail struct {
	mu    sync.Mutex
	lines []string
}

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")...)
	if most := 40; len(l.lines) > 2*most {
		l.lines = slices.Delete(l.lines, 0, len(l.lines)-most)
	}
	return len(b), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func (l *tail) logger(part string) *slog.Logger { return textLogger(l, part) }

func textLogger(w io.Writer, part string) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, nil)).With("part", part)
}
