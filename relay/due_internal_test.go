package relay

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

type publishFunc func(events []holdfast.Event) []error

func (f publishFunc) Publish(_ context.Context, events []holdfast.Event) []error { return f(events) }

// Rows that leave their queue one by one make the next one due. Nobody waits for the poller then.
func TestDue_TheNextOfAQueueIsReadAtOnce(t *testing.T) {
	t.Parallel()
	const rows = 6
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload)
		select 0, 'orders', 'k', n, 'record', case when n = 1 then now() else 'infinity' end, n, 's', 't', now(), 'p' from generate_series(1, $1::integer) n`, rows)
	refused := publishFunc(func(events []holdfast.Event) []error {
		return slices.Repeat([]error{&publish.Error{Topic: "orders", Fault: publish.FaultRecord, Err: retry.Permanent(errors.New("planned"))}}, len(events))
	})
	var dead, looks atomic.Int64
	ready := make(chan struct{})
	r, err := New(db.Pool, refused, Config{Logger: noLog, Lease: time.Minute, PollMin: time.Minute, PollMax: time.Minute, BatchSize: 1, Observer: Observer{
		OnClaimed: func(lane int, _ int64) {
			if lane == 0 {
				close(ready)
			}
		},
		OnDead:   func(DeadLettered) { dead.Add(1) },
		OnPolled: func(int, bool, time.Duration) { looks.Add(1) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	<-ready
	var owner *lane
	for _, l := range r.owned() {
		if l.number == 0 {
			owner = l
			l.tasks.Or(parkedDue) // the look that sees the head
			signal(l.tasksDue)
		}
	}
	wait.Until(t, "all rows are given up", func() bool { return dead.Load() == rows })
	if n := looks.Load(); n > 0 {
		t.Errorf("it took %d looks of the poller besides", n)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(owner.queues.parked) > 0 {
		t.Errorf("%v are remembered without a row", owner.queues.parked)
	}
}
