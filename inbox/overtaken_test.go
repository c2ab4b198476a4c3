package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// enterBefore puts an event before another of its key, as a replay does.
func (b *bundle) enterBefore(id, other string) {
	b.Helper()
	if n := pgtest.Exec(b, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select consumer, topic, key, place - 1000000, source, $1, type, time, hash, now() from holdfast.stored where event_id = $2`, id, other); n != 1 {
		b.Fatalf("%d rows were put before event %s", n, other)
	}
}

// A claim does not hold the lock of the key: what was committed while it ran may be before what it took.
func TestOvertaken_AnEventThatWasOvertakenWhileItWasClaimedIsNotStarted(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox()
	started := 0
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		started++
		return effectOf(ctx, tx, e)
	})
	in.registry.start()
	b.store(in, event("2", "k"))
	got, err := in.claims.claim(b.Context(), 1)
	if err != nil || len(got) != 1 {
		t.Fatalf("claimed %d: %v", len(got), err)
	}
	b.enterBefore("1", "2")
	if err := in.backlog.work(b.Context(), got[0], nil); err != nil {
		t.Fatal(err)
	}
	if started != 0 || b.effects("2") != 0 {
		t.Errorf("its handler was started %d times, beside that of the event before it", started)
	}
	if n := b.count("select count(*) from holdfast.stored where event_id = '2' and attempts = 0 and lease_until <= now()"); n != 1 {
		t.Error("it did not go back unspent")
	}
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
	b.awaitOutcome("2", Handled)
	if n := b.count("select count(*) from effect a join effect b on a.n < b.n where a.id = '1' and b.id = '2'"); n != 1 {
		t.Error("they were not handled in order")
	}
}

// A replay enters its queue before an event whose handler runs just then: that one cannot commit any more, and both are
// handled at once afterwards, not when its lease has run out.
func TestOvertaken_AnEventThatAReplayOvertakesGoesBackAfterItAtOnce(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout = 2 * time.Minute }) // A lease is longer.
	began, goOn, first, broken := make(chan struct{}), make(chan struct{}), true, true
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" && broken {
			return retry.Permanent(errors.New("broken"))
		}
		if e.ID == "2" && first {
			first = false
			close(began)
			<-goOn
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Dead)
	broken = false
	if err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
		_, err := in.StoreTx(t.Context(), tx, event("2", "k"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	b.run(in.Run)
	<-began
	if n, err := b.letters().Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	at := time.Now()
	close(goOn)
	b.awaitOutcome("2", Handled)
	if took := time.Since(at); took > time.Minute {
		t.Errorf("it took %s: a lease is %s", took, in.c.lease())
	}
	if n := b.count("select count(*) from effect"); n != 2 || b.effects("1") != 1 {
		t.Errorf("%d effects, want one of each event", n)
	}
	if n := b.count("select count(*) from effect a join effect b on a.n < b.n where a.id = '1' and b.id = '2'"); n != 1 {
		t.Error("the replay was not handled first")
	}
	if n := b.count("select count(*) from holdfast.inbox where event_id = '2' and attempts = 1"); n != 1 {
		t.Error("the try that was overtaken was counted")
	}
}
