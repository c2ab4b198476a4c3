package incidents

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
)

// ill is a handler that fails with err until it is well.
type ill struct {
	err  error
	well atomic.Bool
}

func (i *ill) handle(context.Context, pgx.Tx, holdfast.Event) error {
	if i.well.Load() {
		return nil
	}
	return i.err
}

func handled(context.Context, pgx.Tx, holdfast.Event) error { return nil }

// released tries stored events at once, as the page says, until n events are handled: one whose handler still ran is stored later.
func (s *scene) released(n int) {
	s.Helper()
	s.await("all events are handled after a release", func() bool {
		s.does("waiting", "retry", "--consumer", "billing", "--all", "--reason", "a test")
		return s.allHandled(n)
	})
}

func (s *scene) allHandled(n int) bool {
	s.Helper()
	return s.count("select count(*) from holdfast.inbox where result = 'handled'") == int64(n) && s.count("select count(*) from holdfast.stored") == 0
}

// settled waits until n events were handled and none is stored: then counters stand still.
func (s *scene) settled(n int) {
	s.Helper()
	s.await("all events are handled", func() bool { return s.allHandled(n) })
}

// flowing is a scene in which events of a topic with one partition come to a consumer.
func (s *scene) flowing(h inbox.Handler, change func(*inbox.Config)) (topic string) {
	s.Helper()
	s.on(nil)
	topic = s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	s.consumer(topic, h, change)
	return topic
}

func lettersRise(s *scene) (over func()) {
	topic := s.flowing((&ill{err: retry.Permanent(errPlanned)}).handle, nil)
	s.healthy()
	s.write(events(topic, 12)...)
	return func() {
		s.await("all are letters", func() bool { return s.count("select count(*) from holdfast.letter where state = 'open'") == 12 })
		s.does("dlq", "discard", "--consumer", "billing", "--reason", "a test")
	}
}

// More than a hundred keys wait, and half an hour passes.
func keysHeld(s *scene) (over func()) {
	h := &ill{err: errPlanned}
	topic := s.flowing(h.handle, nil)
	s.healthy()
	s.write(events(topic, 101)...)
	s.await("all are stored", func() bool { return s.count("select count(*) from holdfast.stored") == 101 })
	s.exec("update holdfast.stored set first_at = first_at - interval '30 minutes'")
	return func() {
		h.well.Store(true)
		s.released(101)
	}
}

func handlersFail(s *scene) (over func()) {
	h := &ill{err: errPlanned}
	topic := s.flowing(h.handle, func(c *inbox.Config) {
		c.Retry = retry.Policy{Attempts: 100_000, Base: 200 * time.Millisecond, Cap: 500 * time.Millisecond}
	})
	s.healthy()
	s.write(events(topic, 5)...)
	return func() {
		h.well.Store(true)
		s.settled(5)
	}
}

func handlerHangs(s *scene) (over func()) {
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	s.Cleanup(release)
	var met atomic.Bool
	topic := s.flowing(func(context.Context, pgx.Tx, holdfast.Event) error {
		if met.CompareAndSwap(false, true) {
			<-released
		}
		return nil
	}, func(c *inbox.Config) { c.Timeout, c.Grace = 200*time.Millisecond, 100*time.Millisecond })
	s.healthy()
	s.write(events(topic, 1)...)
	return func() {
		release()
		s.released(1)
	}
}

func typeSkipped(s *scene) (over func()) {
	topic := s.flowing(handled, nil)
	s.healthy()
	e := events(topic, 1)[0]
	e.Type = "misspelt"
	s.write(e)
	return func() {}
}

func noHandler(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	stop := s.consumer(topic, handled, func(c *inbox.Config) { c.UnknownType = inbox.UnknownStore })
	s.healthy()
	e := events(topic, 1)[0]
	e.Type = "new"
	s.write(e)
	return func() {
		stop()
		in := s.newInbox(s.db.Pool, handled, nil)
		in.Handle("new", handled)
		s.running("consumer", func(ctx context.Context) error { return in.Consume(ctx, s.group(topic, false)) })
	}
}

// What handlers need does not answer for six minutes.
func dependencyAway(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	h := &ill{err: inbox.Unavailable("stripe", errPlanned)}
	in := s.newInbox(s.db.Pool, nil, nil)
	in.Handle("told", h.handle, inbox.Needs("stripe"))
	s.running("consumer", func(ctx context.Context) error { return in.Consume(ctx, s.group(topic, false)) })
	s.healthy()
	s.write(events(topic, 3)...)
	s.await("it is known to be away, and all are stored", func() bool {
		return s.count("select count(*) from holdfast.dependency where away") == 1 && s.count("select count(*) from holdfast.stored") == 3
	})
	s.exec("update holdfast.dependency set since = since - interval '6 minutes'")
	return func() {
		if out, _ := s.command("doctor", "--pause", "0s"); !strings.Contains(out, s.is.status) {
			s.Errorf("doctor does not say %q:\n%s", s.is.status, out)
		}
		h.well.Store(true)
		s.settled(3)
	}
}

func storedFull(s *scene) (over func()) {
	h := &ill{err: errPlanned}
	topic := s.flowing(h.handle, func(c *inbox.Config) { c.MaxStored = 1 })
	s.healthy()
	// All that is stored is counted every few seconds.
	written := 0
	s.await("an event finds no room", func() bool {
		s.write(events(topic, 2)...)
		written += 2
		return s.logged(s.log.String())
	})
	return func() {
		h.well.Store(true)
		s.released(written)
	}
}

func idTwice(s *scene) (over func()) {
	s.on(nil)
	in := s.newInbox(s.db.Pool, handled, nil)
	s.healthy()
	e := events("orders", 1)[0]
	for _, payload := range []string{"{}", `{"a":1}`} {
		e.Payload = []byte(payload)
		if _, err := in.Receive(s.Context(), e); err != nil {
			s.Fatal(err)
		}
	}
	return func() { s.does("dlq", "discard", "--consumer", "billing", "--reason", "a test") }
}

// No node runs for a quarter of an hour.
func consumerIdle(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	s.lag(&link{})
	s.relay(nil, nil)
	stop := s.consumer(topic, handled, nil)
	s.write(events(topic, 1)...)
	s.await("the event is handled", func() bool { return s.count("select count(*) from holdfast.consumer_position where position = 1") == 1 })
	s.healthy()
	stop()
	for range 41 {
		s.write(events(topic, 250)...)
	}
	s.prom.pass(15 * time.Minute)
	s.exec("update holdfast.consumer_type set seen_until = seen_until - interval '15 minutes'")
	return func() { s.consumer(topic, handled, nil) }
}

// Another node takes the partitions again and again, as this one finds when it commits.
func partitionsTaken(s *scene) (over func()) {
	topic := s.flowing(handled, nil)
	s.healthy()
	written := 0
	s.await("the node has lost partitions often", func() bool {
		s.exec("update holdfast.consumer_position set epoch = epoch + 1000000, owner = 'another'")
		s.write(events(topic, 5)...)
		written += 5
		s.prom.scrape()
		return len(s.firing()) > 0
	})
	return func() { s.settled(written) }
}

// Retention removes records that nobody has handled.
func offsetsGone(s *scene) (over func()) {
	s.on(nil)
	topic := s.cluster.Topic(s, 1)
	s.relay(nil, nil)
	stop := s.consumer(topic, handled, nil)
	s.write(events(topic, 1)...)
	s.await("the event is handled", func() bool { return s.count("select count(*) from holdfast.consumer_position where position = 1") == 1 })
	s.healthy()
	stop()
	s.write(events(topic, 5)...)
	s.await("they are published", func() bool { return len(s.cluster.ReadAll(s, topic)) >= 6 })
	s.cluster.DeleteRecords(s, topic, 0, 4)
	stop = s.consumer(topic, handled, nil)
	return func() {
		stop()
		in := s.newInbox(s.db.Pool, handled, nil)
		s.running("consumer", func(ctx context.Context) error { return in.Consume(ctx, s.group(topic, true)) })
	}
}

// nameless publishes an event without an id of its own: its offset is its id.
func (s *scene) nameless(topic, payload string) {
	s.Helper()
	w := &kafka.Writer{Addr: kafka.TCP(s.cluster.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, BatchSize: 1, Transport: s.cluster.Client.Transport}
	defer w.Close()
	// A topic that was just made has no leader yet.
	s.await("an event without an id is published", func() bool {
		return w.WriteMessages(s.Context(), kafka.Message{Value: []byte(payload), Headers: []kafka.Header{{Key: "ce_type", Value: []byte("told")}}}) == nil
	})
}

// again deletes a topic, after n events of it were handled, makes it again, and publishes events of the new one. Before those
// come some of either log that have no id of their own.
func (s *scene) again(n, anew, nameless int) (topic string) {
	s.Helper()
	s.on(nil)
	topic = s.cluster.Topic(s, 1)
	for range nameless {
		s.nameless(topic, "old")
	}
	stopRelay, stop := s.relay(nil, nil), s.consumer(topic, handled, nil)
	s.write(events(topic, n)...)
	s.await("the events are handled", func() bool {
		return s.count("select count(*) from holdfast.consumer_position where position = $1", n+nameless) == 1
	})
	s.healthy()
	stop()
	stopRelay()
	if err := s.cluster.Server.DeleteTopic(s.Context(), topic); err != nil {
		s.Fatal(err)
	}
	// The name is free a moment after the topic is gone, and so is the offset of the group.
	s.await("the topic is recreated", func() bool { return s.cluster.Server.CreateTopic(s.Context(), topic, 1, nil) == nil })
	s.await("Kafka has forgotten the group's offset", func() bool {
		// The imitation does not forget it by itself.
		_, _ = s.cluster.Client.OffsetDelete(s.Context(), &kafka.OffsetDeleteRequest{GroupID: "billing of " + topic, Topics: map[string][]int{topic: {0}}})
		answer, err := s.cluster.Client.OffsetFetch(s.Context(), &kafka.OffsetFetchRequest{GroupID: "billing of " + topic, Topics: map[string][]int{topic: {0}}})
		return err == nil && answer.Error == nil && len(answer.Topics[topic]) == 1 && answer.Topics[topic][0].CommittedOffset < 0
	})
	for range nameless {
		s.nameless(topic, "new")
	}
	s.relay(nil, nil)
	s.write(events(topic, anew)...)
	s.await("they are published", func() bool { return len(s.cluster.ReadAll(s, topic)) >= anew+nameless })
	return topic
}

// statements are those that an entry of the page shows, in its order.
func (s *scene) statements(title string) (all []string) {
	s.Helper()
	_, section, found := strings.Cut(read(s.T, operations+"/runbooks.md"), "\n### "+title+"\n")
	section, _, _ = strings.Cut(section, "\n### ")
	_, block, shown := strings.Cut(section, "```sql\n")
	block, _, closed := strings.Cut(block, "```")
	if !found || !shown || !closed {
		s.Fatalf("the entry %q shows no statements", title)
	}
	for _, statement := range strings.Split(block, ";") {
		if statement = strings.TrimSpace(statement); statement != "" {
			all = append(all, statement)
		}
	}
	return all
}

// The new log is shorter than the position.
func topicAgain(s *scene) (over func()) {
	topic := s.again(5, 2, 1)
	stop := s.consumer(topic, handled, nil)
	return func() {
		stop()
		for _, statement := range s.statements("A topic is recreated") {
			s.exec(strings.ReplaceAll(statement, "'orders'", "'"+topic+"'"))
		}
		s.consumer(topic, handled, nil)
		s.await("the events of the new log are handled, also the one that has its offset for an id", func() bool {
			return s.count("select count(*) from holdfast.consumer_position where position = 3") == 1 &&
				s.count("select count(*) from holdfast.inbox where result = 'handled'") == 8 && s.count("select count(*) from holdfast.letter") == 0
		})
	}
}

// The new log is longer: its first events look as if they had been read.
func topicAgainLonger(s *scene) (over func()) {
	topic := s.again(5, 8, 0)
	s.consumer(topic, handled, nil)
	return func() {
		s.await("all that look as if they had been read are letters", func() bool {
			return s.count("select count(*) from holdfast.letter where state = 'open'") == 5
		})
		s.does("dlq", "replay", "--consumer", "billing", "--reason", "a test")
		s.await("the events of the new log are handled", func() bool {
			return s.count("select count(*) from holdfast.inbox where result = 'handled'") == 13
		})
	}
}
