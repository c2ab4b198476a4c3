package nats

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast"
	natsjs "github.com/holdfast-go/holdfast/contrib/nats"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// wire is a dialer whose connections can be cut. While it is deaf, what the server says is dropped: acknowledgements are lost.
type wire struct {
	mu    sync.Mutex
	conns []net.Conn
	deaf  atomic.Bool
	down  atomic.Bool
}

func (w *wire) Dial(network, address string) (net.Conn, error) {
	if w.down.Load() {
		return nil, errors.New("the wire is down")
	}
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	return &wired{c, w}, nil
}

// cut ends every connection.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

type wired struct {
	net.Conn
	w *wire
}

func (w *wired) Read(b []byte) (int, error) {
	for {
		n, err := w.Conn.Read(b)
		if err != nil || !w.w.deaf.Load() {
			return n, err
		}
	}
}

func (n *natsServer) connectBy(w *wire) jetstream.JetStream {
	n.Helper()
	return n.connect(nats.SetCustomDialer(w))
}

// publishAll publishes until everything is acknowledged, as a relay does.
func publishAll(t testing.TB, p relay.Publisher, events []holdfast.Event) {
	t.Helper()
	for end := time.Now().Add(3 * wait.Limit()); len(events) > 0; {
		var left []holdfast.Event
		for i, err := range p.Publish(t.Context(), events) {
			if publish.FaultOf(err) == publish.FaultRecord {
				t.Fatal(err)
			}
			if err != nil {
				left = append(left, events[i])
			}
			if err != nil && time.Now().After(end) {
				t.Fatal(err)
			}
		}
		events = left
	}
}

func TestFaults_AnEventWhoseAcknowledgementWasLostIsStoredOnce(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	topic := n.topic(js, 1)
	w := &wire{}
	p := publisherOn(t, n.connectBy(w), natsjs.PublisherConfig{PublishTimeout: 5 * time.Second}) // within which it has sent all
	publishAll(t, p, []holdfast.Event{eventOf(topic, "0", "k")})
	w.deaf.Store(true)
	events := []holdfast.Event{eventOf(topic, "1", "k"), eventOf(topic, "2", "k"), eventOf(topic, "3", "other")}
	answers := p.Publish(t.Context(), events)
	for i, err := range answers {
		if f := publish.FaultOf(err); err == nil || f == publish.FaultRecord {
			t.Errorf("event %s without an acknowledgement: %v", events[i].ID, err)
		}
	}
	wait.Until(t, "the server has what it did not acknowledge", func() bool { return len(messages(t, js, topic)) >= 3 })
	if got := idsByKey(t, js, topic)["k"]; !slices.Equal(got, []string{"0", "1"}) {
		t.Errorf("after an event without an acknowledgement the key has %q: none of it may follow", got)
	}
	w.cut()
	w.deaf.Store(false)
	publishAll(t, p, events)
	got := idsByKey(t, js, topic)
	if !slices.Equal(got["k"], []string{"0", "1", "2"}) || !slices.Equal(got["other"], []string{"3"}) {
		t.Errorf("the stream has %q", got)
	}
}

// The server remembers message ids that it has no messages of any more.
func TestFaults_ARepeatOfWhatWasDeletedIsStoredAgain(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	topic := n.topic(js, 1)
	p := publisherOn(t, js, natsjs.PublisherConfig{})
	events := []holdfast.Event{eventOf(topic, "1", "k"), eventOf(topic, "2", "k"), eventOf(topic, "3", "other")}
	publishAll(t, p, events)
	publishAll(t, p, events)
	if got := idsByKey(t, js, topic); len(got["k"]) != 2 || len(got["other"]) != 1 {
		t.Errorf("after a repeat the stream has %q", got)
	}
	s, err := js.Stream(t.Context(), natsjs.StreamName(topic))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	publishAll(t, p, events)
	if got := idsByKey(t, js, topic); !slices.Equal(got["k"], []string{"1", "2"}) || !slices.Equal(got["other"], []string{"3"}) {
		t.Errorf("after a repeat of what was deleted the stream has %q", got)
	}
}

// Connections are cut again and again while many lanes publish, and no key's order breaks.
func TestFaults_LostConnectionsBreakNoOrder(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	topic := n.topic(js, 3)
	w := &wire{}
	p := publisherOn(t, n.connectBy(w), natsjs.PublisherConfig{PublishTimeout: 2 * time.Second})
	const lanes, pages, page, keys = 4, 30, 40, 5
	var published atomic.Int64
	ended := make(chan struct{})
	var work sync.WaitGroup
	for lane := range lanes {
		work.Go(func() {
			for at := range pages {
				var events []holdfast.Event
				for i := range page {
					events = append(events, eventOf(topic, fmt.Sprintf("%d-%04d", lane, at*page+i), fmt.Sprintf("%d-%d", lane, i%keys)))
				}
				publishAll(t, p, events)
				published.Add(page)
			}
		})
	}
	go func() { work.Wait(); close(ended) }()
	for cuts := int64(1); ; cuts++ {
		wait.For(wait.Limit(), func() bool { return published.Load() >= cuts*lanes*pages*page/12 || isClosed(ended) })
		if isClosed(ended) {
			break
		}
		w.cut()
	}
	got := idsByKey(t, js, topic)
	total := 0
	for key, ids := range got {
		total += len(ids)
		if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
			t.Errorf("key %s has %q", key, ids)
		}
	}
	if total != lanes*pages*page {
		t.Errorf("the stream has %d events, want %d", total, lanes*pages*page)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// What makes a stream unusable is its topic's fault, and over when it is put right.
func TestFaults_AStreamThatCannotBeUsedHoldsItsTopic(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	p := publisherOn(t, js, natsjs.PublisherConfig{StreamTTL: 50 * time.Millisecond})
	good := n.topic(js, 1)
	for name, row := range map[string]struct {
		make func(topic string)
		says string
	}{
		"it is missing": {func(string) {}, "create it"},
		"it says no partitions": {func(topic string) {
			n.createTopic(js, topic, 1, func(c *jetstream.StreamConfig) { c.Metadata = nil })
		}, "metadata holdfast-partitions is missing"},
		"it has other subjects": {func(topic string) {
			n.createTopic(js, topic, 2, func(c *jetstream.StreamConfig) { c.Subjects = []string{topic + ".p0"} })
		}, topicOf("it has other subjects") + ".p1"},
		"it is a work queue": {func(topic string) {
			n.createTopic(js, topic, 1, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
		}, "retention is WorkQueue"},
		"it keeps the last of each subject": {func(topic string) {
			n.createTopic(js, topic, 1, func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 })
		}, "max messages per subject is 1"},
	} {
		topic := topicOf(name)
		row.make(topic)
		answers := p.Publish(t.Context(), []holdfast.Event{eventOf(topic, "1", "k"), eventOf(good, name, "k")})
		if answers[0] == nil || publish.FaultOf(answers[0]) != publish.FaultTopic || !strings.Contains(answers[0].Error(), row.says) || answers[1] != nil {
			t.Errorf("%s: %v, %v, want the first to be the topic's fault and to say %q", name, answers[0], answers[1], row.says)
		}
	}
	n.createTopic(js, topicOf("it is missing"), 1)
	publishAll(t, p, []holdfast.Event{eventOf(topicOf("it is missing"), "1", "k")})
}

func topicOf(name string) string { return strings.ReplaceAll(name, " ", "-") }

func TestFaults_AStreamThatIsDeletedHoldsItsTopicUntilItIsBack(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	topic := n.topic(js, 2)
	p := publisherOn(t, js, natsjs.PublisherConfig{StreamTTL: time.Minute}) // what it knows is old
	publishAll(t, p, []holdfast.Event{eventOf(topic, "1", "k")})
	if err := js.DeleteStream(t.Context(), natsjs.StreamName(topic)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Publish(t.Context(), []holdfast.Event{eventOf(topic, "2", "k")})[0]; publish.FaultOf(err) != publish.FaultTopic {
			t.Errorf("an event for a stream that was deleted: %v", err)
		}
	}
	n.createTopic(js, topic, 3)
	publishAll(t, p, []holdfast.Event{eventOf(topic, "2", "k")})
	if _, partitions := p.Partition(eventOf(topic, "2", "k")); partitions != 3 {
		t.Errorf("the topic has %d partitions, want those of the new stream", partitions)
	}
}

func TestFaults_TheSizeOfAnEventIsItsOwnFault(t *testing.T) {
	t.Parallel()
	n := startServer(t, func(o *server.Options) { o.MaxPayload = 50_000 })
	js := n.connect()
	topic := n.topic(js, 1, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 20_000 })
	p := publisherOn(t, js, natsjs.PublisherConfig{})
	for size, says := range map[int]string{30_000: "message size exceeds maximum", 49_990: "", 60_000: "max_payload"} {
		e := eventOf(topic, fmt.Sprint(size), "k")
		e.Payload = make([]byte, size)
		err := p.Publish(t.Context(), []holdfast.Event{e})[0]
		if publish.FaultOf(err) != publish.FaultRecord || retry.Classify(err) != retry.Validation || !strings.Contains(err.Error(), says) {
			t.Errorf("%d bytes: %v, want the record's fault that says %q", size, err, says)
		}
	}
	headers := eventOf(topic, "headers", "k")
	headers.Headers = map[string]string{"long": strings.Repeat("x", 45_000)}
	if err := p.Publish(t.Context(), []holdfast.Event{headers})[0]; publish.FaultOf(err) != publish.FaultRecord {
		t.Errorf("long headers: %v", err)
	}
}

func TestFaults_AStreamThatIsFullHoldsItsPartition(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	topic := n.topic(js, 1, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew })
	p := publisherOn(t, js, natsjs.PublisherConfig{})
	answers := p.Publish(t.Context(), []holdfast.Event{eventOf(topic, "1", "k"), eventOf(topic, "2", "k"), eventOf(topic, "3", "k")})
	if answers[0] != nil || publish.FaultOf(answers[1]) != publish.FaultPartition || !errors.Is(answers[2], answers[1]) {
		t.Errorf("got %v", answers)
	}
}

func TestFaults_AMissingRightHoldsItsTopic(t *testing.T) {
	t.Parallel()
	n := startServer(t, func(o *server.Options) {
		deny := &server.SubjectPermission{Deny: []string{"secret.p0"}}
		o.Users = []*server.User{{Username: "relay", Password: "pw", Permissions: &server.Permissions{Publish: deny}}, {Username: "admin", Password: "pw"}}
	})
	js := n.connect(nats.UserInfo("admin", "pw"))
	n.createTopic(js, "secret", 1)
	p := publisherOn(t, n.connect(nats.UserInfo("relay", "pw")), natsjs.PublisherConfig{PublishTimeout: time.Second})
	var err error
	if !wait.For(wait.Limit(), func() bool { // On a busy machine the server's word may come later than that.
		err = p.Publish(t.Context(), []holdfast.Event{eventOf("secret", "1", "k")})[0]
		return publish.FaultOf(err) == publish.FaultTopic && retry.Classify(err) == retry.Auth && strings.Contains(err.Error(), "grant publish on secret.p0")
	}) {
		t.Errorf("got %v", err)
	}
}

// member is one of a group, as an inbox uses it.
type member struct {
	testing.TB
	session source.Session

	mu  sync.Mutex
	gen source.Generation
}

func join(t testing.TB, g *natsjs.Group) *member {
	t.Helper()
	session, err := g.Open(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	m := &member{TB: t, session: session}
	t.Cleanup(func() { session.Close() })
	return m
}

// next waits for a generation.
func (m *member) next() {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), wait.Limit())
	defer cancel()
	if err := wait.Try(ctx, func(ctx context.Context) (err error) { m.gen, err = m.session.Next(ctx); return err }); err != nil {
		m.Fatal(err)
	}
}

func (m *member) over() {
	m.Helper()
	wait.Until(m, "the group wants the partitions back", func() bool { return isClosed(m.gen.Over()) })
}

// A member that hangs is thrown out, its partitions go to another, and when it wakes up it can commit nothing.
func TestFaults_AMemberThatWasThrownOutIsFenced(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	topic := n.topic(n.connect(), 2)
	config := natsjs.GroupConfig{GroupID: "billing", Topics: []string{topic}, SessionTimeout: time.Minute, HeartbeatInterval: 100 * time.Millisecond}
	w := &wire{}
	tp := source.TopicPartition{Topic: topic}
	old := join(t, groupOn(t, n.connectBy(w), config))
	old.next()
	if err := old.gen.Commit(t.Context(), map[source.TopicPartition]int64{tp: 4}); err != nil {
		t.Fatal(err)
	}
	w.down.Store(true) // It is cut off, and does not know that the group goes on.
	w.cut()
	config.SessionTimeout = 2 * time.Second // by which the other judges
	other := join(t, groupOn(t, n.connect(), config))
	other.next()
	if got := other.gen.Assigned(); len(got) != 2 || got[tp].Committed != 4 {
		t.Fatalf("after the first is cut off the other has %v, want both partitions, and offset 4 committed", got)
	}
	if err := other.gen.Commit(t.Context(), map[source.TopicPartition]int64{tp: 7}); err != nil {
		t.Fatal(err)
	}
	w.down.Store(false)
	err := errors.New("no connection yet")
	wait.Until(t, "the first reaches the server again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = old.gen.Commit(ctx, map[source.TopicPartition]int64{tp: 5})
		return err == nil || strings.Contains(err.Error(), "another member has taken")
	})
	if err == nil {
		t.Fatal("a member that was thrown out commits")
	}
	old.over()
	// Both go on, as inboxes do. On a busy machine one may throw the other out once more.
	stopOld, stopOther := old.serve(), other.serve()
	wait.Until(t, "the two share the partitions", func() bool {
		mine, others := old.assigned(), other.assigned()
		if len(mine) != 1 || len(others) != 1 {
			return false
		}
		for _, all := range []map[source.TopicPartition]source.Start{mine, others} {
			if start, has := all[tp]; has && start.Committed != 7 {
				t.Errorf("the next owner begins at %d, want 7", start.Committed)
			}
		}
		return true
	})
	stopOld()
	stopOther()
}

// serve takes one generation after the other, until the function that it returns is called. It commits nothing.
func (m *member) serve() (stop func()) {
	ctx, cancel := context.WithCancel(m.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			gen := m.current()
			if gen != nil {
				select {
				case <-gen.Over():
				case <-ctx.Done():
				}
				m.set(nil)
				gen.Leave()
			}
			if next, err := m.session.Next(ctx); err == nil {
				m.set(next)
			}
		}
		if gen := m.current(); gen != nil {
			gen.Leave()
		}
	}()
	return func() { cancel(); <-ended }
}

func (m *member) current() source.Generation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gen
}

func (m *member) set(gen source.Generation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gen = gen
}

// assigned are the partitions of a generation that is not over.
func (m *member) assigned() map[source.TopicPartition]source.Start {
	gen := m.current()
	if gen == nil || isClosed(gen.Over()) {
		return nil
	}
	return gen.Assigned()
}

// The answer to a commit is lost: the next one of the same owner counts.
func TestFaults_ACommitWhoseAnswerWasLostLosesNoPartition(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	topic := n.topic(n.connect(), 1)
	w := &wire{}
	m := join(t, groupOn(t, n.connectBy(w), natsjs.GroupConfig{GroupID: "billing", Topics: []string{topic}, SessionTimeout: time.Minute, HeartbeatInterval: 10 * time.Second}))
	m.next()
	tp := source.TopicPartition{Topic: topic}
	w.deaf.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	err := m.gen.Commit(ctx, map[source.TopicPartition]int64{tp: 3})
	cancel()
	if err == nil {
		t.Fatal("a commit without an answer succeeds")
	}
	w.cut()
	w.deaf.Store(false)
	wait.Until(t, "a commit succeeds", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = m.gen.Commit(ctx, map[source.TopicPartition]int64{tp: 4})
		return err == nil
	})
	if isClosed(m.gen.Over()) {
		t.Error("the generation is over")
	}
}

// Offsets mean nothing in a stream that was recreated under the name.
func TestFaults_ATopicThatWasMadeAgainHasNoOffsets(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	topic := n.topic(js, 1)
	tp := source.TopicPartition{Topic: topic}
	m := join(t, groupOn(t, n.connect(), natsjs.GroupConfig{GroupID: "billing", Topics: []string{topic}, HeartbeatInterval: 50 * time.Millisecond, WatchInterval: 50 * time.Millisecond}))
	m.next()
	if err := m.gen.Commit(t.Context(), map[source.TopicPartition]int64{tp: 4}); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), natsjs.StreamName(topic)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.gen.Bounds(t.Context(), tp); err == nil {
		t.Error("a stream that was deleted has bounds")
	}
	m.over()
	n.createTopic(js, topic, 2)
	for {
		m.gen.Leave()
		m.next()
		if got := m.gen.Assigned(); len(got) == 2 {
			if got[tp].Committed != source.NoOffset {
				t.Errorf("the new stream begins with %v", got)
			}
			return
		}
		m.over()
	}
}

// The bucket is lost: a group begins a new one, and nobody is stuck.
func TestFaults_AGroupWithoutItsBucketBeginsAnother(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	topic := n.topic(js, 2)
	m := join(t, groupOn(t, n.connect(), natsjs.GroupConfig{GroupID: "billing", Topics: []string{topic}, SessionTimeout: time.Second, HeartbeatInterval: 50 * time.Millisecond}))
	m.next()
	if err := js.DeleteKeyValue(t.Context(), "holdfast_groups"); err != nil {
		t.Fatal(err)
	}
	m.over()
	m.gen.Leave()
	m.next()
	if got := m.gen.Assigned(); len(got) != 2 {
		t.Errorf("it has %v", got)
	}
	if err := m.gen.Commit(t.Context(), map[source.TopicPartition]int64{{Topic: topic}: 1}); err != nil {
		t.Error(err)
	}
}

// A topic that does not exist yet is picked up, and so are partitions that are added.
func TestFaults_PartitionsThatAreAddedArePickedUp(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	m := join(t, groupOn(t, n.connect(), natsjs.GroupConfig{GroupID: "billing", Topics: []string{"later"}, HeartbeatInterval: 50 * time.Millisecond, WatchInterval: 50 * time.Millisecond}))
	m.next()
	if missing := m.gen.(source.Incomplete).MissingTopics(); !slices.Equal(missing, []string{"later"}) {
		t.Errorf("missing topics are %q", missing)
	}
	n.createTopic(js, "later", 1)
	m.over()
	m.gen.Leave()
	m.next()
	if got := m.gen.Assigned(); len(got) != 1 {
		t.Errorf("it has %v", got)
	}
	c, err := natsjs.StreamConfig("later", 3)
	if err == nil {
		_, err = js.UpdateStream(t.Context(), c)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.over()
	m.gen.Leave()
	m.next()
	if got := m.gen.Assigned(); len(got) != 3 {
		t.Errorf("it has %v", got)
	}
}

// Retention deletes what a reader has not read yet. The other partition's messages make gaps, too, and that is not one of them.
func TestFaults_RetentionThatOvertakesAReaderIsSeen(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	topic := n.topic(js, 2)
	put := func(partition int, what string) {
		send(t, js, natsjs.MessageOf(natsjs.Subject(topic, partition), publish.Record{Value: []byte(what)}))
	}
	m := join(t, groupOn(t, n.connect(), natsjs.GroupConfig{GroupID: "billing", Topics: []string{topic}}))
	m.next()
	tp := source.TopicPartition{Topic: topic}
	fetch := func(offset int64) (source.Page, error) { return m.gen.Fetch(t.Context(), tp, offset, 1<<20) }
	put(1, "beside") // 1
	put(0, "first")  // 2
	page, err := fetch(1)
	if err != nil || len(page.Records) != 1 || page.Next != 3 {
		t.Fatalf("got %+v, %v", page, err)
	}
	put(1, "beside")  // 3
	put(0, "deleted") // 4
	put(0, "kept")    // 5
	s, err := js.Stream(t.Context(), natsjs.StreamName(topic))
	if err == nil {
		err = s.Purge(t.Context(), jetstream.WithPurgeSequence(5))
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if page, err = fetch(3); !errors.Is(err, source.ErrOffsetOutOfRange) {
			t.Errorf("an event was deleted before it was read, and the next page is %+v, %v", page, err)
		}
	}
	if page, err = fetch(5); err != nil || len(page.Records) != 1 || string(page.Records[0].Value) != "kept" {
		t.Errorf("after the gap: %+v, %v", page, err)
	}
}
