package inbox

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

func TestQuota_AFullQueueOfAKeyIsRefusedAndSaysWhatToDo(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.MaxStoredKey = 3; c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Key == "k" {
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Retrying)
	b.receive(in, event("2", "k"), Stored)
	b.receive(in, event("3", "k"), Stored)
	_, err := in.Receive(t.Context(), event("4", "k"))
	if !errors.Is(err, ErrFull) {
		t.Fatalf("the fourth event of a key that may have three: %v", err)
	}
	t.Log(err)
	if n := b.count("select count(*) from holdfast.inbox where event_id = '4'"); n != 0 {
		t.Error("a refused event left a row: it would count as known when it comes again")
	}
	b.receive(in, event("5", "other"), Handled)
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for id, take := range map[string]func(context.Context, pgx.Tx, holdfast.Event) (Outcome, error){"6": in.StoreTx, "7": in.ReceiveTx} {
		if _, err := take(t.Context(), tx, event(id, "k")); !errors.Is(err, ErrFull) {
			t.Errorf("event %s: %v", id, err)
		}
	}
	pgtest.Exec(t, tx, "insert into effect (id) values ('the caller')")
	if err := tx.Commit(t.Context()); err != nil { // What else the caller wrote stays.
		t.Error(err)
	}
	if n := b.count("select count(*) from holdfast.inbox where event_id in ('6', '7')"); n != 0 {
		t.Errorf("%d refused events left a row", n)
	}
}

func TestQuota_AllThatIsStoredIsBoundedToo(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.MaxStored = 5; c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("not yet") })
	for i, e := range keyed(7, 7) {
		out, err := in.Receive(t.Context(), e)
		if i < 5 && (err != nil || out != Retrying) || i >= 5 && !errors.Is(err, ErrFull) {
			t.Errorf("event %d: %s, %v", i, out, err)
		}
	}
	if n := b.count("select count(*) from holdfast.stored"); n != 5 {
		t.Errorf("%d events are stored, want 5", n)
	}
}

func TestQuota_APartitionIsHeldWhileThereIsNoRoomAndGoesOnWithoutALoss(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	var failing atomic.Bool
	failing.Store(true)
	var full atomic.Int64
	in := b.inbox(func(c *Config) {
		c.MaxStoredKey = 2
		c.Retry = retry.Policy{Attempts: 1000, Base: 20 * time.Millisecond, Cap: 20 * time.Millisecond}
		c.Observer.OnFull = func(holdfast.Event, error) { full.Add(1) }
	})
	const n, at = 200, 23 // the third event of key 3 finds no room
	g := newGatedLog(at+1, keyed(n, 10))
	in.Handle("order.placed", g.afterAll(func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Key == "key 3" && failing.Load() {
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	}))
	p := b.consumeGated(in, g)
	wait.Until(t, "there is no room", func() bool { return full.Load() >= 1 })
	wait.Until(t, "a second try finds no room", func() bool { return full.Load() >= 2 })
	if got := b.count("select count(*) from holdfast.stored"); got > 2 {
		t.Errorf("%d events are stored, and 2 may be", got)
	}
	if got := b.count("select coalesce(max(position), 0) from holdfast.consumer_position"); got > at {
		t.Errorf("the position is %d, behind an event that is not settled", got)
	}
	b.stands(p, g)
	failing.Store(false)
	b.awaitSettled(n)
	b.nothingStored()
	b.inOrderAndOnce(n)
}

// slowCount is a transaction whose counts take as long as the test wants.
type slowCount struct {
	pgx.Tx
	begun  *atomic.Int64
	answer chan error
}

func (s slowCount) QueryRow(context.Context, string, ...any) pgx.Row {
	s.begun.Add(1)
	return s
}

func (s slowCount) Scan(to ...any) error {
	err := <-s.answer
	*to[0].(*int) = 7
	return err
}

// The time is that of a bubble: a figure gets no older while a machine stands still.
func TestQuota_OneCountsWhatIsStoredWhileTheOthersGoByTheOldFigure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, oneCountsWhatIsStored)
}

func oneCountsWhatIsStored(t *testing.T) {
	in := newInbox(nil, Config{Consumer: "billing", MaxStored: 10, MaxStoredKey: -1}.withDefaults())
	var begun atomic.Int64
	tx := slowCount{begun: &begun, answer: make(chan error)}
	fits := func() error {
		if err := in.receiver.queues.quota.count(t.Context(), tx); err != nil {
			return err
		}
		return in.receiver.queues.quota.enter(&delivery{})
	}

	// 1. The first counts; the others neither count nor wait for it.
	first := make(chan error, 1)
	go func() { first <- fits() }()
	wait.Until(t, "the first counts", func() bool { return begun.Load() > 0 })
	others := make(chan error, 5)
	for range 5 {
		go func() { others <- fits() }()
	}
	for range 5 {
		select {
		case err := <-others:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(wait.Limit()):
			t.Fatalf("another waits, %d count", begun.Load())
		}
	}

	// 2. A count that fails is made again, by the next.
	tx.answer <- errors.New("no")
	if err := <-first; err == nil {
		t.Error("a count failed, and nobody heard of it")
	}
	go func() { first <- fits() }()
	tx.answer <- nil
	if err := <-first; err != nil {
		t.Error(err)
	}

	// 3. Its figure is 7, and the event that asked: two more fit, and nobody counts again so soon.
	for i := range 3 {
		if err := fits(); errors.Is(err, ErrFull) != (i == 2) {
			t.Errorf("event %d of what 7 leave of 10: %v", i+2, err)
		}
	}
	if begun.Load() != 2 {
		t.Errorf("%d counted, want 2", begun.Load())
	}
}

// A COMMIT that failed stored nothing. Counted all the same, it would keep others out until the next count.
func TestQuota_AnEventWhoseCommitFailsIsNotCountedAsStored(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, `create function refuse() returns trigger language plpgsql as 'begin raise exception ''no''; end'`)
	pgtest.Exec(t, b.db, `create constraint trigger refuse after insert on holdfast.stored deferrable initially deferred for each row when (new.event_id >= '3') execute function refuse()`)
	in := b.inbox(func(c *Config) { c.MaxStored = 1000; c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("not yet") })
	counted := func() int {
		in.receiver.queues.quota.usage.mu.Lock()
		defer in.receiver.queues.quota.usage.mu.Unlock()
		return in.receiver.queues.quota.usage.events
	}
	b.receive(in, event("1", "k"), Retrying)
	b.receive(in, event("2", "k"), Stored)
	if out, err := in.Receive(t.Context(), event("3", "other")); err == nil {
		t.Fatalf("its COMMIT failed, and it is %s", out)
	}
	if n := counted(); n != 2 {
		t.Errorf("%d events are counted as stored one by one, and 2 are", n)
	}
	ds := []*delivery{in.registry.newDelivery(event("4", "k")), in.registry.newDelivery(event("5", "k"))}
	j := &job{owner: &splitting{}, ctx: t.Context(), ds: ds, kind: jobFollowers}
	f := b.raise(in, "", 0).Fence
	for i, d := range ds {
		d.from = &origin{f, int64(i)}
	}
	w := &worker{workers: newWorkerPool(in.receiver), pipeline: pipeline{admission: in.receiver.admission}}
	if w.work(j); w.last == nil || counted() != 4 {
		t.Fatalf("two that follow are not stored together up to their COMMIT: %d are counted", counted())
	}
	if w.commit(nil); counted() != 2 || j.owner.(*splitting).n != 1 {
		t.Errorf("%d events are counted as stored together, and 2 are", counted())
	}
}

// splitting is the owner of a job that comes one by one after a failure.
type splitting struct {
	jobOwner
	n int
}

func (s *splitting) stopped() bool { return false }
func (s *splitting) split(*job)    { s.n++ }

func TestQuota_ALongQueueIsNotMeasuredForEveryEventThatJoinsIt(t *testing.T) {
	const limit = 10_000
	var s usage
	now := time.Unix(1, 0)
	length, measures, read := 0, 0, 0
	for ; ; length++ {
		if s.enter("orders", "k", 1, now) {
			continue
		}
		measures, read = measures+1, read+length
		s.measured("orders", "k", length, limit, now)
		if length >= limit {
			break
		}
	}
	if length != limit {
		t.Errorf("%d of %d got in", length, limit)
	}
	if read > 30*limit { // measured each time: 5,000 times the limit
		t.Errorf("%d events were read to let in %d, in %d measures", read, limit, measures)
	}

	// What was measured long ago is measured again, and so is what others may have filled.
	s.measured("orders", "k", limit/2, limit, now)
	if !s.enter("orders", "k", 1, now.Add(countEvery-1)) || s.enter("orders", "k", 1, now.Add(countEvery)) || s.enter("orders", "other", 1, now) {
		t.Error("an old measure is believed, or a new one is not")
	}
	s.measured("orders", "k", 1, limit, now)
	if s.enter("orders", "k", 1, now) {
		t.Error("a short queue is not measured")
	}
}
