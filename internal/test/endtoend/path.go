// Package endtoend is the whole path for a test, outbox.Write to dead letter, on a real Postgres and a real Kafka, from the
// outside only: it starts the parts, writes the truth of what was committed beside each event, and asks the oracle in the end.
package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// Path is what one test needs of the whole path.
type Path struct {
	testing.TB
	Db      *pgtest.DB // for the test itself, straight to the server
	Cluster *kafkatest.Cluster
	Topics  []string // whose records the oracle reads
	Dsn     string   // for the parts of the path
	Mode    pgx.QueryExecMode
	Tail    *tail
}

// Setup makes a database with holdfast's schema and the tables of the tests, and one topic.
func Setup(t testing.TB, db *pgtest.DB, cluster *kafkatest.Cluster, partitions int) *Path {
	t.Helper()
	p := &Path{
		TB:      t,
		Db:      db,
		Cluster: cluster,
		Topics:  []string{cluster.Topic(t, partitions)},
		Dsn:     db.DSN,
		Mode:    pgx.QueryExecModeCacheStatement,
		Tail:    &tail{},
	}
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		// The truth of what was committed, written in the transaction of each event: no process has to report it.
		"create table written (id text primary key, topic text not null, key text not null, number bigint not null)",
		"create table aggregate (key text primary key, n bigint not null default 0)",
		"create table other (x bigint)",
		// No key on id: an effect that happens twice must be visible.
		"create table effect (n bigint generated always as identity primary key, consumer text not null, id text not null, key text not null)",
		"create table state (consumer text, key text, id text, primary key (consumer, key))",
	} {
		pgtest.Exec(t, db, sql)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last lines of the logs:\n%s", p.Tail)
		}
	})
	return p
}

func (p *Path) Topic() string { return p.Topics[0] }

// Pool returns a pool for one part of the path, as a process of its own would have.
func (p *Path) Pool(connections int) *pgxpool.Pool {
	p.Helper()
	pool, err := OpenPool(p.Dsn, p.Mode, connections)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(pool.Close)
	return pool
}

func OpenPool(dsn string, mode pgx.QueryExecMode, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("open pool: the test's connection string cannot be parsed")
	}
	config.MaxConns = int32(connections)
	config.ConnConfig.DefaultQueryExecMode = mode
	config.ConnConfig.ConnectTimeout = wait.Limit() / 3
	return pgxpool.NewWithConfig(context.Background(), config)
}

// Run starts a part of the path and returns a function that stops it. It must end without an error, and soon.
func (p *Path) Run(what string, f func(context.Context) error) (stop func()) {
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
		case <-time.After(wait.Limit()):
			p.Errorf("%s does not stop", what)
		}
	}
	p.Cleanup(stop)
	return stop
}

// Relay runs a relay.
func (p *Path) Relay(change func(*relay.Config)) (stop func()) {
	p.Helper()
	c := relay.Config{Logger: p.Tail.Logger("relay")}
	if change != nil {
		change(&c)
	}
	r, err := NewRelay(p.Pool(4), p.Cluster.Brokers, kafkago.PublisherConfig{}, c)
	if err != nil {
		p.Fatal(err)
	}
	return p.Run("relay", r.Run)
}

func NewRelay(pool *pgxpool.Pool, brokers []string, k kafkago.PublisherConfig, c relay.Config) (*relay.Relay, error) {
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: brokers}, k)
	if err != nil {
		return nil, err
	}
	return relay.New(pool, publisher, c)
}

// Consume runs one node of a consumer on the path's topics. Every event is of the type "changed".
func (p *Path) Consume(consumer string, h inbox.Handler, change func(*inbox.Config)) (stop func()) {
	p.Helper()
	c := inbox.Config{Consumer: consumer, Logger: p.Tail.Logger(consumer)}
	if change != nil {
		change(&c)
	}
	in, err := inbox.New(p.Pool(10), c)
	if err != nil {
		p.Fatal(err)
	}
	in.Handle("changed", h)
	g := GroupOf(consumer, p.Topics)
	return p.Run("consumer "+consumer, func(ctx context.Context) error { return ConsumeGroup(ctx, in, p.Cluster.Brokers, g) })
}

func GroupOf(consumer string, topics []string) kafkago.GroupConfig {
	return kafkago.GroupConfig{
		GroupID:           consumer + " of " + topics[0],
		Topics:            topics,
		SessionTimeout:    20 * time.Second,
		HeartbeatInterval: 500 * time.Millisecond,
		WatchInterval:     time.Second,
	}
}

func ConsumeGroup(ctx context.Context, in *inbox.Inbox, brokers []string, g kafkago.GroupConfig) error {
	group, err := kafkago.NewGroup(kafkago.Connection{Brokers: brokers}, g)
	if err != nil {
		return err
	}
	return in.Consume(ctx, group)
}

// Committed is the offset that billing's group has committed, -1 if none; known is false if the broker gives no answer.
func (p *Path) Committed(topic string, partition int) (offset int64, known bool) {
	res, err := p.Cluster.Client.OffsetFetch(p.Context(), &kafka.OffsetFetchRequest{GroupID: GroupOf("billing", p.Topics).GroupID,
		Topics: map[string][]int{topic: {partition}}})
	if err != nil || res.Error != nil || len(res.Topics[topic]) != 1 {
		return 0, false
	}
	return res.Topics[topic][0].CommittedOffset, true
}

type executor interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// EffectOf is the handler of most tests: it writes a row of effect. The lock on the key's row of state makes the numbers
// of a key's effects tell the order of their commits.
func EffectOf(consumer string) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { return PutEffect(ctx, tx, consumer, e) }
}

func PutEffect(ctx context.Context, db executor, consumer string, e holdfast.Event) error {
	b := &pgx.Batch{}
	if e.Key != "" {
		b.Queue("insert into state (consumer, key, id) values ($1, $2, $3) on conflict (consumer, key) do update set id = excluded.id", consumer, e.Key, e.ID)
	}
	b.Queue("insert into effect (consumer, id, key) values ($1, $2, $3)", consumer, e.ID, e.Key)
	return db.SendBatch(ctx, b).Close()
}

// Await looks again and again until cond is true.
func (p *Path) Await(what string, cond func() bool) {
	p.Helper()
	if !p.happens(what, cond) {
		p.FailNow()
	}
}

// happens is Await for a test that goes on after a failure, to see what else is wrong.
func (p *Path) happens(what string, cond func() bool) bool {
	p.Helper()
	ok := wait.For(wait.Limit(), cond)
	if !ok {
		p.Errorf("not within %v: %s\n%s", wait.Limit(), what, p.Census())
	}
	return ok
}

func (p *Path) Count(sql string, args ...any) int64 {
	p.Helper()
	return pgtest.Count(p, p.Db, sql, args...)
}

// Census says where events are, for a test that has waited too long.
func (p *Path) Census() string {
	var text string
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := p.Db.QueryRow(ctx, `select format('%s written; %s effects; parked: %s; stored: %s; letters: %s; positions: %s; lanes: %s',
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

// Arrive waits until every committed event has had its effect with each of the consumers, and nothing waits any more.
func (p *Path) Arrive(consumers ...string) {
	p.Helper()
	p.happens("every event has its effects, and nothing waits", func() bool {
		return p.Count(`select count(*) from written w cross join unnest($1::text[]) c
				where not exists (select 1 from effect e where e.consumer = c and e.id = w.id)
				and not exists (select 1 from holdfast.letter l where l.event_id = w.id and l.consumer in (c, '') and l.state = 'open')`, consumers) == 0 &&
			p.Count("select (select count(*) from holdfast.parked) + (select count(*) from holdfast.stored)") == 0
	})
}

// Finish ends a test's path in order: relays first, then the consumers once they have read all that is in Kafka, so that
// a late duplicate has its chance to do harm. Then the oracle looks at everything.
func (p *Path) Finish(stopRelays, stopConsumers []func(), consumers ...string) Verdict {
	p.Helper()
	p.Arrive(consumers...)
	for _, stop := range stopRelays {
		stop()
	}
	records := 0
	for _, topic := range p.Topics {
		records += len(p.Cluster.ReadAll(p, topic))
	}
	p.happens("the consumers have read all of Kafka", func() bool {
		return p.Count(`select count(*) from unnest($1::text[]) c
			where (select coalesce(sum(position), 0) from holdfast.consumer_position where consumer = c and topic = any($3)) < $2`, consumers, records, p.Topics) == 0
	})
	for _, stop := range stopConsumers {
		stop()
	}
	return p.Judge(consumers...)
}

// Event is the number-th of a key.
func (p *Path) Event(key string, number int64) holdfast.Event {
	return holdfast.Event{
		ID:      newID(),
		Source:  "shop",
		Type:    "changed",
		Topic:   p.Topic(),
		Key:     key,
		Payload: fmt.Appendf(nil, "%s/%d", key, number),
	}
}

// Write is one event and the truth about it, in the caller's transaction.
func (p *Path) Write(tx pgx.Tx, number int64, e holdfast.Event) error {
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

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")...)
	if most := 40; len(t.lines) > 2*most {
		t.lines = slices.Delete(t.lines, 0, len(t.lines)-most)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "\n")
}

func (t *tail) Logger(part string) *slog.Logger { return TextLogger(t, part) }

func TextLogger(w io.Writer, part string) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, nil)).With("part", part)
}
