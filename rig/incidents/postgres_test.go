package incidents

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/metrics"
)

// Fifty workers share two connections.
func poolSmall(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	pool := s.db.PoolOf(s.T, 2)
	stop := need[func() error](s)(metrics.ObservePool(s.watched, "small", pool))
	s.Cleanup(func() { _ = stop() })
	s.relay(nil, nil)
	in := s.newInbox(pool, func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
		return nil
	}, func(c *inbox.Config) { c.Workers, c.Group = 50, 1 })
	s.running("consumer", func(ctx context.Context) error { return in.Consume(ctx, s.group(topic, false)) })
	s.healthy()
	s.write(events(topic, 1000)...)
	return func() { s.settled(1000) }
}

// ofItsOwn is a Postgres that the test may stop.
func (s *scene) ofItsOwn() *pgtest.Server {
	s.Helper()
	server := pgtest.Own(s, pgtest.Options{Settings: pgtest.NoSync()})
	db := pgtest.On(s, server.DSN)
	if err := holdfast.Migrate(s.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		s.Fatal(err)
	}
	s.on(db)
	return server
}

func postgresAway(s *scene) (over func()) {
	server := s.ofItsOwn()
	topic := s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	s.consumer(topic, handled, nil)
	s.healthy()
	if err := server.StopFast(); err != nil {
		s.Fatal(err)
	}
	return func() {
		if err := server.Restart(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.write(events(topic, 1)...)
		s.settled(1)
	}
}

func postgresCrashes(s *scene) (over func()) {
	server := s.ofItsOwn()
	topic := s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	s.consumer(topic, handled, nil)
	s.write(events(topic, 1)...)
	s.await("the event is handled", func() bool { return s.count("select count(*) from holdfast.consumer_position where position = 1") == 1 })
	s.healthy()
	if err := server.Kill(); err != nil {
		s.Fatal(err)
	}
	if err := server.Restart(s.Context()); err != nil {
		s.Fatal(err)
	}
	return func() {
		s.write(events(topic, 1)...)
		s.settled(2)
	}
}

func gaugesMissing(s *scene) (over func()) {
	s.on(nil)
	s.healthy()
	s.unwatch()
	return s.watch
}

// The cluster is not the one that the cursors are of, as after a restore.
func restoredCopy(s *scene) (over func()) {
	s.on(nil)
	stop := s.relay(nil, nil)
	s.healthy()
	stop()
	s.exec("update holdfast.cluster set system_identifier = 1")
	if err := s.newRelay(nil, nil).Run(s.Context()); err == nil || !strings.Contains(err.Error(), "restored copy") {
		s.Errorf("a relay on a restored copy: %v", err)
	}
	return func() {
		s.does("adopt", "--yes")
		s.relay(nil, nil)
	}
}
