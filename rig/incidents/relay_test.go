package incidents

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/rig/kafkaproxy"
)

func noRelay(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	stop := s.relay(nil, nil)
	s.healthy()
	stop()
	s.write(events(topic, 1)...)
	return func() { s.relay(nil, nil) }
}

// A session has the rows of the lanes locked, so that their relay can save nothing and loses them.
func lockedLanes(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	s.healthy()
	tx, err := s.db.Begin(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(s.Context(), "select from holdfast.lane for update"); err != nil {
		s.Fatal(err)
	}
	s.write(old(events(topic, 20))...)
	return func() { _ = tx.Rollback(context.Background()) }
}

func brokerAway(s *scene) (over func()) {
	s.on(nil)
	topic, via := s.cluster.Topic(s, 1), &link{}
	s.exec("insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', $1, 0, 0)", topic)
	s.lag(via)
	s.relay(via.dial, nil)
	s.healthy()
	via.cut()
	s.write(old(events(topic, 20))...)
	return via.mend
}

func topicMissing(s *scene) (over func()) {
	s.on(nil)
	s.relay(nil, nil)
	s.healthy()
	topic := events("", 1)[0].ID
	s.write(events(topic, 3)...)
	return func() {
		if err := s.cluster.Server.CreateTopic(s.Context(), topic, 1, nil); err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = s.cluster.Server.DeleteTopic(ctx, topic)
		})
	}
}

func partitionHeld(s *scene) (over func()) {
	_, over = s.held()
	return over
}

// held is a topic whose first partition takes nothing.
func (s *scene) held() (topic string, over func()) {
	s.Helper()
	s.on(nil)
	topic = s.cluster.Topic(s, 2)
	proxy := need[*kafkaproxy.Proxy](s)(kafkaproxy.Start(s.cluster.Brokers[0]))
	s.Cleanup(proxy.Close)
	s.relay(kafkaproxy.Dial(proxy.Address()), func(c *relay.Config) { c.ParkAfter = 500 * time.Millisecond })
	s.healthy()
	proxy.Set(kafkaproxy.Leaderless(topic, 0))
	s.write(events(topic, 20)...)
	return topic, func() { proxy.Set(kafkaproxy.Pass()) }
}

// A partition takes nothing for half an hour, while many events come.
func parkedLong(s *scene) (over func()) {
	topic, over := s.held()
	for range 12 {
		s.write(events(topic, 250)...)
		s.prom.scrape()
	}
	s.await("events are parked", func() bool { return s.count("select count(*) from holdfast.parked") > 1000 })
	s.exec("update holdfast.parked set first_at = first_at - interval '30 minutes'")
	return over
}

// Another relay has the lane, as this one finds when it saves.
func laneTaken(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	s.healthy()
	owned := func() bool {
		return s.count("select count(*) from holdfast.lane where lease_until < now() or owner = 'another'") == 0
	}
	for range 2 {
		s.await("the relay has its lanes", owned)
		s.exec("update holdfast.lane set epoch = epoch + 1, owner = 'another', lease_until = now() + interval '1 second'")
		s.write(events(topic, 20)...)
	}
	return func() { s.await("the relay has its lanes again", owned) }
}

// Events that a producer dates back, as an import does.
func oldEvents(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	s.healthy()
	for range 3 {
		s.write(old(events(topic, 20))...)
		s.await("they are published", func() bool {
			return s.count("select count(*) from holdfast.event e join holdfast.lane l using (lane) where e.xid >= pg_snapshot_xmax(l.done)") == 0
		})
		s.prom.scrape()
	}
	return func() {}
}

// A transaction in each segment holds it.
func logFull(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	s.relay(nil, func(c *relay.Config) { c.SegmentBytes = 1 << 20 })
	s.await("the relay has its lanes", func() bool { return s.count("select count(*) from holdfast.lane where lease_until < now()") == 0 })
	s.healthy()
	var ends []func()
	for segment := range 4 {
		s.exec("update holdfast.segments set current = $1", segment)
		tx, err := s.db.Begin(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		end := func() { _ = tx.Rollback(context.Background()) }
		s.Cleanup(end)
		ends = append(ends, end)
		large := func() holdfast.Event {
			e := events(topic, 1)[0]
			e.Payload = random(700_000)
			return e
		}
		if err := outbox.Write(s.Context(), tx, large(), large()); err != nil {
			s.Fatal(err)
		}
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

func recordRefused(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1, "max.message.bytes", "1000")
	s.relay(nil, nil)
	s.healthy()
	e := events(topic, 1)[0]
	e.Payload = random(5000)
	s.write(e)
	return func() { s.does("dlq", "discard", "--origin", "relay", "--reason", "a test") }
}
