package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/retry"
)

// A replay enters its queue before an event whose handler runs just then: that one cannot commit any more, and both are
// handled at once afterwards, not when its lease has run out.
func TestAnEventThatAReplayOvertakesGoesBackBehindItAtOnce(t *testing.T) {
	b := setup(t)
	in := b.inbox()
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
		_, err := in.Store(t.Context(), tx, event("2", "k"))
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
	if took := time.Since(at); took > 20*time.Second {
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
