package incidents

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
)

// backfill runs ConsumeUntil of a topic until the returned function is called. That may be before its bound.
func (s *scene) backfill(topic string, h inbox.Handler, change func(*inbox.Config)) (stop func()) {
	s.Helper()
	in := s.newInbox(s.db.Pool, h, change)
	return s.running("backfill", func(ctx context.Context) error {
		if _, err := in.ConsumeUntil(ctx, s.group(topic, false), inbox.Until{}); !errors.Is(err, inbox.ErrBoundNotReached) {
			return err
		}
		return nil
	})
}

// filled is a scene with a topic of n events.
func (s *scene) filled(n int) (topic string) {
	s.Helper()
	s.on(nil)
	topic = s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	s.write(events(topic, n)...)
	s.await("all events are published", func() bool { return len(s.cluster.ReadAll(s, topic)) == n })
	return topic
}

// A process dies in the middle of a backfill, and ten minutes pass.
func backfillStopped(s *scene) (over func()) {
	topic := s.filled(3)
	s.healthy()
	met, once := make(chan struct{}), sync.Once{}
	stop := s.backfill(topic, func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error {
		once.Do(func() { close(met) })
		<-ctx.Done()
		return ctx.Err()
	}, nil)
	<-met
	s.await("a node has told of it", func() bool {
		return s.count("select count(*) from holdfast.consumer_backfill where remaining > 0") == 1
	})
	stop()
	s.exec("update holdfast.consumer_backfill set ended_at = null, error = null, told_at = told_at - interval '10 minutes'") // as the dead leave it
	return func() {
		s.backfill(topic, handled, nil)
		s.settled(3)
	}
}

// The handler fails for every event. What was read until it is well is stored as room comes, one event every few seconds, the last one
// when the backfill ends: the service's other nodes handle that.
func backfillWaits(s *scene) (over func()) {
	const events = 4
	topic := s.filled(events)
	s.healthy()
	h := &ill{err: errPlanned}
	s.backfill(topic, h.handle, func(c *inbox.Config) { c.MaxStored = 1 })
	return func() {
		h.well.Store(true)
		s.running("node", s.newInbox(s.db.Pool, handled, nil).Run)
		s.released(events)
	}
}
