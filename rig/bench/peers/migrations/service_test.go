// Package migrations runs the files of docs/guides/migrate on live tables: Watermill's and River's are made, written and
// read by these projects themselves, which this module has. It has no code but tests.
package migrations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, kafkatest.Stop)) }

const (
	writers = 4
	keys    = 6
	some    = 60 // events that must have had their effects before a test goes on
)

// service is a service that moves to holdfast: the whole path of its events, and the folder with its scripts.
type service struct {
	*endtoend.Path
	folder string

	// lockFirst has writers draw their xid under their key's lock, for an old relay that publishes in the order of xids. An
	// UPDATE draws it before it waits for the row.
	lockFirst bool
}

func setup(t *testing.T, db *pgtest.DB, folder string) *service {
	t.Helper()
	return &service{Path: endtoend.Setup(t, db, kafkatest.New(t), 3), folder: filepath.Join("../../../../docs/guides/migrate", folder)}
}

func (s *service) text(file string) string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.folder, file))
	if err != nil {
		s.Fatal(err)
	}
	return string(text)
}

// try runs a script on a connection of its own, as psql would.
func (s *service) try(file string) error {
	s.Helper()
	return s.tryText(s.text(file))
}

func (s *service) tryText(sql string) error {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	conn, err := pgx.Connect(ctx, s.Dsn)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close(ctx)
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// run runs a script again until it has got its locks, as its first lines say.
func (s *service) run(file string) {
	s.Helper()
	s.Await(file+" gets its locks", func() bool {
		err := s.try(file)
		if err != nil && !isLockTimeout(err) {
			s.Fatalf("%s: %v", file, err)
		}
		return err == nil
	})
	s.Logf("%s ran", file)
}

func isLockTimeout(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "55P03"
}

// refuses wants a script to fail with a message, and to change nothing: it is run again later.
func (s *service) refuses(file, message string) {
	s.Helper()
	var refused *pgconn.PgError
	if err := s.try(file); !errors.As(err, &refused) || refused.Message != message {
		s.Errorf("%s: %v, want %q", file, err, message)
	}
}

// says is the answer of a script that asks for true or false.
func (s *service) says(file string) (yes bool) {
	s.Helper()
	if err := s.Db.QueryRow(context.Background(), s.text(file)).Scan(&yes); err != nil {
		s.Fatal(err)
	}
	return yes
}

func (s *service) awaitPublished() {
	s.Helper()
	s.Await("published.sql says true", func() bool { return s.says("../published.sql") })
}

// checks wants check.sql to find nothing, and to find what spoil has made in the same transaction.
func (s *service) checks(spoil, why string) {
	s.Helper()
	ctx := context.Background()
	tx, err := s.Db.Begin(ctx)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	ask := func() []string {
		rows, err := tx.Query(ctx, s.text("check.sql"))
		if err != nil {
			s.Fatal(err)
		}
		found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (found string, err error) {
			var id any
			return found, row.Scan(&id, &found)
		})
		if err != nil {
			s.Fatal(err)
		}
		return found
	}
	if found := ask(); len(found) > 0 {
		s.Errorf("check.sql finds %q", found)
	}
	pgtest.Exec(s, tx, spoil)
	if found := ask(); len(found) != 1 || found[0] != why {
		s.Errorf("check.sql finds %q, want %q", found, why)
	}
}

// put is how a service writes an event in its transaction.
type put func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error

// direct is a service whose code has been changed.
func direct(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { return outbox.Write(ctx, tx, e) }

// write runs writers until stop is called: each transaction is a change of one key, under its row lock, and its event. Half
// of them have drawn their xid before they get the lock, and some roll back.
func (s *service) write(how put) (stop func()) {
	s.Helper()
	pgtest.Exec(s, s.Db, "insert into aggregate select 'k' || g from generate_series(0, $1::int - 1) g on conflict do nothing", keys)
	pool := s.Pool(writers)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for ctx.Err() == nil {
				err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error { return s.change(tx, how) })
				if err != nil && !errors.Is(err, errAbort) {
					s.Errorf("writer: %v", err)
					return
				}
				time.Sleep(time.Duration(10+rand.IntN(40)) * time.Millisecond) // sleep: the pace of the writers
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	s.Cleanup(stop)
	return stop
}

var errAbort = errors.New("the change failed")

func (s *service) change(tx pgx.Tx, how put) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	key := fmt.Sprint("k", rand.IntN(keys))
	if s.lockFirst {
		if err := outbox.Lock(ctx, tx, key); err != nil {
			return err
		}
	} else if rand.IntN(2) == 0 {
		if _, err := tx.Exec(ctx, "insert into other values (1)"); err != nil {
			return err
		}
	}
	var number int64
	if err := tx.QueryRow(ctx, "update aggregate set n = n + 1 where key = $1 returning n", key).Scan(&number); err != nil {
		return err
	}
	if err := s.record(ctx, tx, s.event(key, number), number, how); err != nil {
		return err
	}
	time.Sleep(time.Duration(rand.IntN(8)) * time.Millisecond) // sleep: transactions overlap
	if rand.IntN(10) == 0 {
		return errAbort
	}
	return nil
}

// record writes an event and the truth about it.
func (s *service) record(ctx context.Context, tx pgx.Tx, e holdfast.Event, number int64, how put) error {
	if _, err := tx.Exec(ctx, "insert into written values ($1, $2, $3, $4)", e.ID, e.Topic, e.Key, number); err != nil {
		return err
	}
	return how(ctx, tx, e)
}

// event is the number-th of a key. Its payload is text as jsonb gives it.
func (s *service) event(key string, number int64) holdfast.Event {
	return holdfast.Event{ID: watermill.NewUUID(), Topic: s.Topic(), Key: key, Type: "changed", Payload: fmt.Appendf(nil, `{"key": %q, "number": %d}`, key, number)}
}

// goesOn waits until some more events that are written from now on have had their effects.
func (s *service) goesOn(what string) {
	s.Helper()
	before := s.Count("select coalesce(max(n), 0) from effect")
	s.Await(what, func() bool { return s.Count("select count(*) from effect where n > $1", before) >= some })
}

// relay runs holdfast's relay.
func (s *service) relay(partitioner func(holdfast.Event, int) int) (stop func()) {
	s.Helper()
	r, err := endtoend.NewRelay(s.Pool(4), s.Cluster.Brokers, kafkago.PublisherConfig{PartitionFunc: partitioner}, relay.Config{Logger: s.Tail.Logger("relay")})
	if err != nil {
		s.Fatal(err)
	}
	return s.Run("relay", r.Run)
}

// oldEvent is an event as an old relay reads it.
type oldEvent struct{ ID, Key, Type, Payload string }

// sender publishes for the old relays that are written here, to the partitions of Java's client. The headers that an inbox
// reads are what the guide asks of an old relay.
func (s *service) sender() *kafka.Writer {
	w := &kafka.Writer{Addr: kafka.TCP(s.Cluster.Brokers...), Topic: s.Topic(), Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond}
	s.Cleanup(func() { w.Close() })
	return w
}

func messages(events []oldEvent) (messages []kafka.Message) {
	for _, e := range events {
		messages = append(messages, kafka.Message{Key: []byte(e.Key), Value: []byte(e.Payload), Headers: []kafka.Header{
			{Key: "ce_id", Value: []byte(e.ID)}, {Key: "ce_type", Value: []byte(e.Type)}}})
	}
	return messages
}

// repeat runs turn until stop is called, which waits for the last one to end: an old relay that is stopped in good order.
func (s *service) repeat(what string, turn func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := turn(context.Background()); err != nil && !errors.Is(err, kafka.UnknownTopicOrPartition) { // The topic is new.
				s.Errorf("%s: %v", what, err)
				return
			}
			time.Sleep(5 * time.Millisecond) // sleep: it polls
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	s.Cleanup(stop)
	return stop
}

// published says how often each event is in Kafka: by the old relay, and by holdfast's, which alone writes ce_specversion.
func (s *service) published() (old, new map[string]int, byNew []kafkatest.Record) {
	s.Helper()
	old, new = map[string]int{}, map[string]int{}
	for _, r := range s.Cluster.ReadAll(s, s.Topic()) {
		id, _ := r.Header("ce_id")
		if _, holdfasts := r.Header("ce_specversion"); holdfasts {
			new[id]++
			byNew = append(byNew, r)
		} else {
			old[id]++
		}
	}
	return old, new, byNew
}

// nothingTwice wants no event to have been published by both relays.
func (s *service) nothingTwice() {
	s.Helper()
	old, new, _ := s.published()
	if len(old) < some || len(new) < some {
		s.Errorf("%d events were published by the old relay and %d by the new one: that was no migration", len(old), len(new))
	}
	both := 0
	for id := range old {
		if new[id] > 0 {
			both++
		}
	}
	if both > 0 {
		s.Errorf("%d events were published by both relays", both)
	}
	s.Logf("published by the old relay %d, by the new one %d", len(old), len(new))
}

// number is that of an event, from its payload.
func number(t testing.TB, payload []byte) (key string, number int64) {
	t.Helper()
	var content struct {
		Key    string
		Number int64
	}
	if err := json.Unmarshal(payload, &content); err != nil {
		t.Fatal(err)
	}
	return content.Key, content.Number
}
