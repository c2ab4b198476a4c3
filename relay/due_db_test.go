package relay_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// dueReads counts the statements that read parked events.
type dueReads struct{ atomic.Int64 }

func (dr *dueReads) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(d.SQL, "-- relay.due ") || strings.HasPrefix(d.SQL, "-- relay.due\n") {
		dr.Add(1)
	}
	return ctx
}

func (*dueReads) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// slowly answers for the events of one payload when it is told to.
type slowly struct {
	*broker
	payload string
	waits   chan struct{} // one for each such call
	answer  chan struct{}
}

func (s *slowly) Publish(ctx context.Context, events []holdfast.Event) []error {
	if string(events[0].Payload) == s.payload {
		select {
		case s.waits <- struct{}{}:
		case <-ctx.Done():
		}
		select {
		case <-s.answer:
		case <-ctx.Done():
		}
	}
	return s.broker.Publish(ctx, events)
}

// A parked event is due until the answer for it is written, so each look of the poller sees it. A relay that read the parked
// events for each such look would be the more busy the later its broker answers.
func TestDue_AParkedEventThatIsSentIsNotLookedForOverAndOver(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	plain, b := setup(t, 1), newBroker()
	var looks atomic.Int64
	reads := &dueReads{}
	config := plain.Config().Copy()
	config.ConnConfig.Tracer = reads
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b.set(refusing(publish.FaultRecord, "bad"))
	s := &slowly{broker: b, payload: "bad", waits: make(chan struct{}, 1000), answer: make(chan struct{})}
	write(t, plain, event("k", "bad"))
	run(t, pool, s, relay.Config{Retry: untiring, PollMin: time.Millisecond, PollMax: 2 * time.Millisecond, Observer: relay.Observer{OnPolled: func(int, bool, time.Duration) { looks.Add(1) }}})
	<-s.waits
	s.answer <- struct{}{} // refused, and parked
	<-s.waits              // it is sent from the table
	began := time.Now()    // before the first count, and the end after the last
	looked, before := looks.Load(), reads.Load()
	wait.Until(t, "the poller has looked 200 times", func() bool { return looks.Load()-looked >= 200 })
	n, took := reads.Load()-before, time.Since(began)
	if most := int64(took/(100*time.Millisecond)) + 2; n > most {
		t.Errorf("parked events were read %d times in %v, want %d at most", n, took, most)
	}
	// What falls due in another partition meanwhile is sent all the same.
	b.set(refusing(publish.FaultRecord, "bad", "other"))
	write(t, plain, event("down", "other"))
	wait.Until(t, "the other event is parked", func() bool { return parked(t, plain) == 2 })
	b.set(refusing(publish.FaultRecord, "bad"))
	arrives(t, b, "other")
	b.set(nil)
	close(s.answer)
	arrives(t, b, "bad")
}
