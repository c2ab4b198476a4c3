package relay_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

func TestSegments_TheLogStaysSmallUnderLoadAndNothingIsLost(t *testing.T) {
	skip.InShort(t, "it takes 11 s beside the others")
	t.Parallel()
	pool, b := setup(t, 8), newBroker()
	var emptied, busy, unread atomic.Int32
	stop := run(t, pool, b, relay.Config{SegmentBytes: 1 << 20, BatchSize: 100, Observer: relay.Observer{OnReclaimed: func(_ int, result string) {
		switch {
		case result == "emptied":
			emptied.Add(1)
		case result == "busy":
			busy.Add(1)
		case result == "unread":
			unread.Add(1)
		default:
			t.Errorf("reclaim says %q", result)
		}
	}}})
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit()) // it ends as soon as three segments were emptied
	defer cancel()
	var written atomic.Int64
	var most int64
	var wg sync.WaitGroup
	payload := strings.Repeat("x", 1000)
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("w%d k%d", w, i%5)
				events := make([]holdfast.Event, 10)
				for j := range events {
					events[j] = event(key, fmt.Sprintf("%010d %s", i*10+j, payload))
				}
				if err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error { return outbox.Write(context.Background(), tx, events...) }); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				written.Add(10)
			}
		})
	}
	size := func() int64 {
		return pgtest.Count(t, pool, "select sum(pg_relation_size('holdfast.event_' || n)) from generate_series(0, 3) n")
	}
	for ctx.Err() == nil && emptied.Load() < 3 {
		most = max(most, size())
		time.Sleep(50 * time.Millisecond) // sleep: between samples; nothing is waited for
	}
	cancel()
	wg.Wait()
	wait.Until(t, "everything arrives", func() bool { return int64(len(b.events())) >= written.Load() })
	wait.Until(t, "all segments but the current one are empty", func() bool {
		return pgtest.Count(t, pool, "select count(*) from generate_series(0, 3) n where pg_relation_size('holdfast.event_' || n) > 0") <= 1
	})
	stop()
	wantOnce(t, b)
	last := map[string]string{}
	for _, e := range b.events() {
		if n := string(e.Payload[:10]); n <= last[e.Key] && last[e.Key] != "" {
			t.Fatalf("key %s: %s came after %s", e.Key, n, last[e.Key])
		} else {
			last[e.Key] = n
		}
	}
	t.Logf("%d events, segments emptied %d times, busy %d, unread %d, at most %d KiB", written.Load(), emptied.Load(), busy.Load(), unread.Load(), most>>10)
	if emptied.Load() < 3 {
		t.Errorf("segments were emptied %d times", emptied.Load())
	}
}

// The window of a page that was full to the last event stays open. Nobody may have to wait for another event of the lane
// until its segment can be emptied.
func TestSegments_ASegmentIsEmptiedAlthoughTheLastPageWasFull(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	for i := range 6 {
		write(t, pool, event("k", fmt.Sprint(i)), event("another", fmt.Sprint(i)))
	}
	pgtest.Exec(t, pool, "update holdfast.segments set current = 1")
	run(t, pool, b, relay.Config{BatchSize: 3})
	wait.Until(t, "the segment that was left is emptied", func() bool {
		return pgtest.Count(t, pool, "select pg_relation_size('holdfast.event_0')") == 0
	})
	if got := len(b.events()); got != 12 {
		t.Errorf("%d events arrived, want 12", got)
	}
}

func TestSegments_WhatIsUnreadIsNeverTruncated(t *testing.T) {
	t.Parallel()
	pool := setup(t, 2)
	token := func() (token string) {
		if err := pool.QueryRow(t.Context(), "select token::text from holdfast.incarnation").Scan(&token); err != nil {
			t.Fatal(err)
		}
		return token
	}
	reclaim := func(q interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}, segment int) (result string) {
		t.Helper()
		if err := q.QueryRow(t.Context(), "select holdfast.reclaim($1, $2::text::uuid, 50)", segment, token()).Scan(&result); err != nil {
			t.Fatal(err)
		}
		return result
	}
	pgtest.Exec(t, pool, "update holdfast.segments set current = 2")
	if got := reclaim(pool, 2); !strings.HasPrefix(got, "refused") {
		t.Errorf("the current segment: %q", got)
	}
	if got := reclaim(pool, 0); got != "emptied" {
		t.Errorf("an empty segment: %q", got)
	}
	// A writer that read `current` before the rotation writes into a segment that was left.
	stale := begin(t, pool)
	pgtest.Exec(t, stale.tx, "insert into holdfast.event_1 (lane, id, type, topic, key) values (1, 'stale', 't', 'orders', 'k')")
	if got := reclaim(pool, 1); got != "busy" {
		t.Errorf("while a transaction writes: %q", got)
	}
	stale.commit()
	if got := reclaim(pool, 1); got != "unread" {
		t.Errorf("with a committed event that nobody has read: %q", got)
	}
	// Everything is read now, except for what was in flight at `done`.
	long := begin(t, pool)
	pgtest.Exec(t, long.tx, "insert into holdfast.event_3 (lane, id, type, topic, key) values (0, 'long', 't', 'orders', 'k')")
	pgtest.Exec(t, pool, "update holdfast.lane set done = pg_current_snapshot()")
	long.commit()
	if got := reclaim(pool, 3); got != "unread" {
		t.Errorf("with an event of a transaction that was in flight at done: %q", got)
	}
	if got := reclaim(pool, 1); got != "emptied" {
		t.Errorf("a segment that is read: %q", got)
	}
	pgtest.Exec(t, pool, "insert into holdfast.event_1 (lane, id, type, topic, key) values (77, 'no lane', 't', 'orders', 'k')")
	pgtest.Exec(t, pool, "update holdfast.lane set done = pg_current_snapshot()")
	if got := reclaim(pool, 1); got != "unread" {
		t.Errorf("with an event of a lane that is not there: %q", got)
	}
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if got := reclaim(tx, 0); !strings.Contains(got, "READ COMMITTED") {
		t.Errorf("under repeatable read: %q", got)
	}
	_ = tx.Rollback(t.Context())
	pgtest.Exec(t, pool, "update holdfast.lane set done = '900000000:900000000:' where lane = 1")
	if got := reclaim(pool, 0); !strings.Contains(got, "future") {
		t.Errorf("with a cursor in the future: %q", got)
	}
	var result string
	if err := pool.QueryRow(t.Context(), "select holdfast.reclaim(0, gen_random_uuid(), 50)").Scan(&result); err != nil || !strings.Contains(result, "crash") {
		t.Errorf("under another incarnation: %q, %v", result, err)
	}
}

// The segment is looked at once more when it is locked: the lock waits for the writer, whose event is unread.
func TestSegments_ASegmentIsLookedAtOnceMoreWhenItIsLocked(t *testing.T) {
	t.Parallel()
	pool := setup(t, 2)
	pgtest.Exec(t, pool, "update holdfast.segments set current = 2")
	writer := begin(t, pool)
	pgtest.Exec(t, writer.tx, "insert into holdfast.event_1 (lane, id, type, topic, key) values (1, 'late', 't', 'orders', 'k')")
	answer := make(chan string)
	go func() {
		var result string
		if err := pool.QueryRow(t.Context(), "select holdfast.reclaim(1, (select token from holdfast.incarnation), 600000)").Scan(&result); err != nil {
			result = err.Error()
		}
		answer <- result
	}()
	wait.Until(t, "the segment is asked for", func() bool {
		return pgtest.Count(t, pool, "select count(*) from pg_locks where relation = 'holdfast.event_1'::regclass and mode = 'AccessExclusiveLock' and not granted") == 1
	})
	writer.commit()
	if got := <-answer; got != "unread" {
		t.Errorf("it says %q", got)
	}
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.event"); n != 1 {
		t.Errorf("the log has %d events, want the one that was committed", n)
	}
}

// A cursor has not read the transaction at which its snapshot ends.
func TestSegments_TheTransactionAtTheEndOfACursorIsUnread(t *testing.T) {
	t.Parallel()
	pool := setup(t, 1)
	pgtest.Exec(t, pool, "insert into holdfast.event_1 (lane, id, type, topic, key) values (0, 'e', 't', 'orders', 'k')")
	for end, want := range []bool{true, false} {
		pgtest.Exec(t, pool, "update holdfast.lane set done = (select format('%1$s:%1$s:', e.xid::text::bigint + $1)::pg_snapshot from holdfast.event e)", end)
		var unread bool
		if err := pool.QueryRow(t.Context(), "select holdfast.unread(1)").Scan(&unread); err != nil || unread != want {
			t.Errorf("with a cursor that ends %d behind it, unread is %t, %v", end, unread, err)
		}
	}
}

// A transaction that writes while the log turns once around has events in every segment, and some in segments that were left: they
// are published in its order, no segment is emptied before, and each is emptied after.
func TestSegments_ATransactionAcrossRotationsIsPublishedInItsOrder(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 2), newBroker()
			tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			for i := range 10 {
				pgtest.Exec(t, pool, "update holdfast.segments set current = $1", i%4)
				if err := outbox.Write(t.Context(), tx, event("k", fmt.Sprint(i))); err != nil {
					t.Fatal(err)
				}
				if err := outbox.Write(t.Context(), tx, event("k", fmt.Sprint(i, " a")), event("k", fmt.Sprint(i, " b"))); err != nil {
					t.Fatal(err)
				}
			}
			for segment := range 4 {
				var result string
				if err := pool.QueryRow(t.Context(), "select holdfast.reclaim($1, (select i.token from holdfast.incarnation i), 50)", segment).Scan(&result); err != nil || result == "emptied" {
					t.Errorf("segment %d while the transaction is open: %q, %v", segment, result, err)
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			stop := run(t, pool, b, relay.Config{})
			defer stop()
			wait.Until(t, "all events are published", func() bool { return len(b.events()) >= 30 })
			for i, e := range b.events() {
				if want := fmt.Sprint(i/3) + []string{"", " a", " b"}[i%3]; string(e.Payload) != want {
					t.Errorf("event %d is %q, want %q", i, e.Payload, want)
				}
			}
			wait.Until(t, "the segments that were left are empty", func() bool {
				return pgtest.Count(t, pool, "select count(*) from generate_series(0, 3) n where n <> (select s.current from holdfast.segments s) and pg_relation_size('holdfast.event_' || n) > 0") == 0
			})
		})
	}
}

// Postgres keeps a large payload beside its row. It is part of the segment's size all the same: otherwise events of a
// megabyte would fill the disk long before their rows fill a segment.
func TestSegments_ALogOfFewLargeEventsTurnsToItsNextSegmentAndIsEmptied(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	var emptied atomic.Int32
	stop := run(t, pool, b, relay.Config{SegmentBytes: 1 << 20, Observer: relay.Observer{OnReclaimed: func(_ int, result string) {
		if result == "emptied" {
			emptied.Add(1)
		}
	}}})
	payload := make([]byte, 200<<10)
	_, _ = rand.Read(payload) // which no compression makes smaller
	events := make([]holdfast.Event, 10)
	for i := range events {
		events[i] = event(fmt.Sprint("k", i), string(payload))
	}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, events...) }); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the segment is left and emptied", func() bool { return emptied.Load() > 0 })
	stop()
	wantOnce(t, b)
}

// Every try that gets the lock costs two transaction ids and a record in the WAL, which standbys replay under the same lock.
func TestSegments_ATryThatCannotSucceedTakesNoLockAndNoTransactionId(t *testing.T) {
	t.Parallel()
	pool := setup(t, 2)
	write(t, pool, event("k", "unread"))
	pgtest.Exec(t, pool, "update holdfast.segments set current = 1")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	try := func(want string) {
		t.Helper()
		var result string
		if err := tx.QueryRow(t.Context(), "select holdfast.reclaim(0, (select token from holdfast.incarnation), 50)").Scan(&result); err != nil || result != want {
			t.Fatalf("it says %q, %v, want %q", result, err, want)
		}
	}
	spent := func() int64 {
		return pgtest.Count(t, tx, `select (pg_current_xact_id_if_assigned() is not null)::int
			+ (select count(*) from pg_locks where pid = pg_backend_pid() and mode = 'AccessExclusiveLock')`)
	}
	try("unread")
	if n := spent(); n != 0 {
		t.Errorf("a try on an unread segment took a lock or a transaction id (%d)", n)
	}
	pgtest.Exec(t, pool, "update holdfast.lane set done = pg_current_snapshot()")
	try("emptied")
	if n := spent(); n == 0 {
		t.Error("a try that empties a segment took no lock: this test shows nothing")
	}
}

// A transaction that stays open pins the segment that it has written to. The relay sees that and asks for no lock.
func TestSegments_AnOpenTransactionKeepsTheRelayFromTrying(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	var tries atomic.Int32
	long := begin(t, pool).write("long", "long")
	write(t, pool, event("k", "1"))
	pgtest.Exec(t, pool, "update holdfast.segments set current = 1")
	run(t, pool, b, relay.Config{Observer: relay.Observer{OnReclaimed: func(int, string) { tries.Add(1) }}})
	arrives(t, b, "1")
	time.Sleep(8 * time.Second) // sleep: time for several looks, by the clock of a real Postgres
	if n := tries.Load(); n != 0 {
		t.Errorf("it tried %d times to empty a segment that a transaction holds", n)
	}
	long.commit()
	arrives(t, b, "long")
	wait.Until(t, "the segment is emptied", func() bool {
		return pgtest.Count(t, pool, "select pg_relation_size('holdfast.event_0')") == 0
	})
}
