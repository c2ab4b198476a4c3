package franz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// patience is how long a step of a group may take on a busy machine.
const patience = 2 * time.Minute

// member is a session of a group, with its generation.
type member struct {
	*testing.T
	session source.Session
	gen     source.Incremental
}

func open(t *testing.T, cluster *kafkatest.Cluster, c GroupConfig) *member {
	t.Helper()
	session, err := groupOn(t, cluster, c).Open(t.Context(), 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	m := &member{T: t, session: session}
	t.Cleanup(m.close)
	return m
}

func (m *member) close() {
	if m.session == nil {
		return
	}
	if m.gen != nil {
		m.gen.Leave()
	}
	m.session.Close()
	m.session = nil
}

func (m *member) next() {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	gen, err := m.session.Next(ctx)
	if err != nil {
		m.Fatal(err)
	}
	m.gen = gen.(source.Incremental)
}

// change waits for the next change.
func (m *member) change() source.Change {
	m.Helper()
	select {
	case c := <-m.gen.Changes():
		return c
	case <-m.gen.Over():
		m.Fatal("the generation is over")
	case <-time.After(patience):
		m.Fatal("nothing has changed")
	}
	return source.Change{}
}

func TestGroup_OnlyThePartitionsThatMoveAreTaken(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 4)
		for p := range 4 {
			produceRecords(t, cluster, topic, p, []source.Record{{Value: []byte("a")}, {Value: []byte("b")}, {Value: []byte("c")}})
		}
		config := GroupConfig{GroupID: "group-" + topic, Topics: []string{topic}}
		a, b := open(t, cluster, config), open(t, cluster, config)
		a.next()
		changes := a.gen.Changes()
		joined := make(chan source.Generation, 1)
		go func() {
			gen, err := b.session.Next(context.Background())
			if err != nil {
				t.Error(err)
			}
			joined <- gen
		}()
		c := a.change()
		if len(c.Revoked) != 2 || len(c.Added) != 0 {
			t.Fatalf("another member joins, and the change is %+v, want 2 of 4 partitions revoked", c)
		}
		want := map[source.TopicPartition]source.Start{}
		for _, tp := range c.Revoked {
			want[tp] = source.Start{Committed: int64(1 + tp.Partition%2)}
			if err := a.gen.Commit(t.Context(), map[source.TopicPartition]int64{tp: want[tp].Committed}); err != nil {
				t.Fatal(err)
			}
		}
		stays := source.TopicPartition{Topic: topic, Partition: slices.IndexFunc([]int{0, 1, 2, 3}, func(p int) bool {
			return !slices.Contains(c.Revoked, source.TopicPartition{Topic: topic, Partition: p})
		})}
		if pg, err := a.gen.Fetch(t.Context(), stays, 0, 1<<20); err != nil || len(pg.Records) != 3 {
			t.Errorf("a partition that stays gives %d records, %v", len(pg.Records), err)
		}
		select {
		case gen := <-joined:
			if got := gen.Assigned(); len(got) > 0 {
				t.Errorf("the other member has %v before they were released", got)
			}
			b.gen = gen.(source.Incremental)
		case <-time.After(500 * time.Millisecond): // sleep: nothing is to happen
		}
		a.gen.Release(c.Revoked)
		if b.gen == nil {
			b.gen = (<-joined).(source.Incremental)
		}
		got := b.gen.Assigned()
		for len(got) == 0 { // A generation without partitions may end with the rebalance that gives some.
			select {
			case c := <-b.gen.Changes():
				got = c.Added
			case <-b.gen.Over():
				b.next()
				got = b.gen.Assigned()
			case <-time.After(patience):
				t.Fatal("the other member gets nothing")
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("the other member has %v, want %v", got, want)
		}
		b.close()
		if added := a.change().Added; !maps.Equal(added, want) {
			t.Errorf("after the other member has left, %v comes back, want %v", added, want)
		}
		select {
		case c := <-changes:
			t.Errorf("one more change: %+v", c)
		case <-a.gen.Over():
			t.Error("the generation is over")
		default:
		}
		if err := a.gen.Commit(t.Context(), map[source.TopicPartition]int64{stays: 3}); err != nil {
			t.Error(err)
		}
	})
}

func TestGroup_AStaticMemberHasItsPartitionsAgain(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 2)
		config := GroupConfig{GroupID: "group-" + topic, Topics: []string{topic}, InstanceID: "node-1"}
		a := open(t, cluster, config)
		a.next()
		config.InstanceID = "node-2"
		b := open(t, cluster, config)
		changes := a.gen.Changes()
		joined := make(chan source.Generation)
		go func() {
			gen, err := b.session.Next(context.Background())
			if err != nil {
				t.Error(err)
			}
			joined <- gen
		}()
		a.gen.Release((<-changes).Revoked)
		b.gen = (<-joined).(source.Incremental)
		wait.Until(t, "the other member has a partition", func() bool {
			s := b.session.(*session)
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.owned) == 1
		})
		b.close()
		again := open(t, cluster, config)
		again.next()
		if got := again.gen.Assigned(); len(got) != 1 {
			t.Errorf("it has %v, want its one partition", got)
		}
		select {
		case c := <-changes:
			t.Errorf("the other member notices a change: %+v", c)
		case <-a.gen.Over():
			t.Error("the other member's generation is over")
		case <-time.After(time.Second): // sleep: nothing is to happen
		}
	})
}

func TestGroup_ASessionTimeoutThatTheBrokerRefusesEndsConsume(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 1)
		session, err := groupOn(t, cluster, GroupConfig{GroupID: "group-" + topic, Topics: []string{topic}, SessionTimeout: 10 * time.Hour, RebalanceTimeout: time.Minute}).Open(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := session.Next(ctx); !errors.Is(err, inbox.ErrConfiguration) || !strings.Contains(err.Error(), "session timeout is 10h0m0s") {
			t.Errorf("Next returns %v, want ErrConfiguration", err)
		}
	})
}

func TestGroup_ABatchThatUnpacksToTooMuchIsRefused(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		for _, codec := range []kafka.Compression{kafka.Gzip, kafka.Snappy, kafka.Lz4} {
			topic := cluster.Topic(t, 1)
			bomb := bytes.Repeat([]byte("x"), 900_000)
			for end := time.Now().Add(patience); ; {
				res, err := cluster.Client.Produce(t.Context(), &kafka.ProduceRequest{Topic: topic, RequiredAcks: kafka.RequireAll, Compression: codec,
					Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes(bomb)}, kafka.Record{Value: kafka.NewBytes(bomb)})})
				if err == nil {
					err = res.Error
				}
				if err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
			m := open(t, cluster, GroupConfig{GroupID: "group-" + topic, Topics: []string{topic}})
			m.next()
			tp := source.TopicPartition{Topic: topic}
			var large *source.TooLargeError
			_, err := m.gen.Fetch(t.Context(), tp, 0, 100_000)
			if !errors.As(err, &large) || large.Needs <= 100_000 || large.Next != 2 {
				t.Fatalf("%v: with 100,000 bytes: %v, %+v", codec, err, large)
			}
			needs := int64(100_000)
			for errors.As(err, &large) && needs < 100<<20 {
				needs = large.Needs
				_, err = m.gen.Fetch(t.Context(), tp, 0, needs)
			}
			pg, err := m.gen.Fetch(t.Context(), tp, 0, needs)
			if err != nil || len(pg.Records) == 0 {
				t.Errorf("%v: with the %d bytes that it needs: %d records, %v", codec, needs, len(pg.Records), err)
			}
		}
	})
}

func TestGroup_ATopicMadeAgainEndsTheGeneration(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 1)
		produceRecords(t, cluster, topic, 0, []source.Record{{Value: []byte("a")}, {Value: []byte("b")}})
		m := open(t, cluster, GroupConfig{GroupID: "group-" + topic, Topics: []string{topic}, WatchInterval: 100 * time.Millisecond})
		m.next()
		m.gen.Changes()
		tp := source.TopicPartition{Topic: topic}
		if pg, err := m.gen.Fetch(t.Context(), tp, 0, 1<<20); err != nil || len(pg.Records) != 2 {
			t.Fatal(pg, err)
		}
		if err := cluster.Server.DeleteTopic(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		for over := false; !over; {
			_, err := m.gen.Fetch(t.Context(), tp, 2, 1<<20)
			select {
			case <-m.gen.Over():
				over = true
				if err := m.gen.Commit(t.Context(), map[source.TopicPartition]int64{tp: 2}); !errors.Is(err, errTopicMissed) {
					t.Errorf("a commit to what may be another topic: %v", err)
				}
			case <-t.Context().Done():
				t.Fatal(err)
			default:
			}
		}
	})
}

// node is a member that handles events, in a goroutine.
type node struct {
	name string
	stop func()

	mu       sync.Mutex
	assigned map[int]int // times, by partition
	revoked  map[int]int
}

func (n *node) note(of map[int]int, partition int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of[partition]++
}

func TestGroup_MembersComeAndGoUnderLoad(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		const partitions, keys, each = 6, 40, 75
		topic := cluster.Topic(t, partitions)
		db := migrated.New(t)
		if _, err := db.Pool.Exec(t.Context(), "create table effect (key text, n int, at bigint generated always as identity)"); err != nil {
			t.Fatal(err)
		}
		begin := func(name string) *node {
			n := &node{name: name, assigned: map[int]int{}, revoked: map[int]int{}}
			in, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing", Workers: 4, StopTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler), Observer: inbox.Observer{
				OnAssigned: func(p inbox.Assignment, _ int64) { n.note(n.assigned, p.Partition) },
				OnRevoked:  func(p inbox.Assignment, _ bool) { n.note(n.revoked, p.Partition) },
			}})
			if err != nil {
				t.Fatal(err)
			}
			in.Handle("counted", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				_, err := tx.Exec(ctx, "insert into effect (key, n) values ($1, $2::int)", e.Key, string(e.Payload))
				return err
			})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			group := groupOn(t, cluster, GroupConfig{GroupID: "billing-" + topic, Topics: []string{topic}, RebalanceTimeout: time.Minute})
			go func() { ended <- in.Consume(ctx, group) }()
			n.stop = sync.OnceFunc(func() {
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
			t.Cleanup(n.stop)
			return n
		}
		has := func(n *node, what string, count int) {
			if !wait.For(patience, func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				have := 0
				for p, times := range n.assigned {
					have += times - n.revoked[p]
				}
				return have == count
			}) {
				n.mu.Lock()
				defer n.mu.Unlock()
				t.Fatalf("%s does not have %s in %v: assigned %v, revoked %v", n.name, what, patience, n.assigned, n.revoked)
			}
		}
		writing := make(chan struct{})
		k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{})
		go func() {
			defer close(writing)
			for n := range each {
				var events []holdfast.Event
				for key := range keys {
					events = append(events, holdfast.Event{Topic: topic, ID: fmt.Sprint(key, "/", n), Source: "shop", Type: "counted", Key: fmt.Sprint("k", key), Payload: []byte(fmt.Sprint(n))})
				}
				publishAll(t, k, events)
				time.Sleep(50 * time.Millisecond) // sleep: the load lasts while members come and go
			}
		}()
		a := begin("a")
		has(a, "all", partitions)
		for range 3 {
			b := begin("b")
			has(b, "half", partitions/2)
			has(a, "half", partitions/2)
			b.stop()
			has(a, "all again", partitions)
		}
		<-writing
		count := func() (n int) {
			if err := db.Pool.QueryRow(t.Context(), "select count(*) from effect").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		wait.Until(t, "everything is handled", func() bool { return count() >= keys*each })
		a.mu.Lock()
		stayed := 0
		for p := range partitions {
			if a.assigned[p] == 1 && a.revoked[p] == 0 {
				stayed++
			}
		}
		if stayed < partitions/2-1 { // The three that move may be others each time; most assignors move the same.
			t.Errorf("%d partitions were read without a stop; assigned %v, revoked %v", stayed, a.assigned, a.revoked)
		}
		a.mu.Unlock()
		a.stop()
		if n := count(); n != keys*each {
			t.Errorf("%d effects, want %d", n, keys*each)
		}
		var wrong int
		if err := db.Pool.QueryRow(t.Context(), `select count(*) from (select n, row_number() over (partition by key order by at) - 1 as place from effect) e where n <> place`).Scan(&wrong); err != nil {
			t.Fatal(err)
		}
		if wrong != 0 {
			t.Errorf("%d effects are not in the order of their key, or are missing", wrong)
		}
	})
}

func TestGroup_TheOptionsOfAGroupAreChecked(t *testing.T) {
	_, err := NewGroup([]kgo.Opt{kgo.ConsumerGroup("other"), kgo.ConsumeTopics("t"), kgo.InstanceID("me"), kgo.AllowAutoTopicCreation()},
		GroupConfig{Topics: []string{"a topic", "x", "x"}, SessionTimeout: time.Millisecond, HeartbeatInterval: time.Minute, RebalanceTimeout: -1, WatchInterval: 1, InstanceID: "a b"})
	for _, want := range []string{`the options name the consumer group "other"`, "the options create topics automatically", `the options have the instance id "me"`,
		"group id is", `topic is "a topic"`, `topics has "x" twice`, "session timeout is 1ms", "heartbeat interval is 1m0s", "rebalance timeout is -1ns", "watch interval is 1ns", `instance id is "a b"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
	g, err := NewGroup(nil, GroupConfig{GroupID: "g", Topics: []string{"t"}, RebalanceTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Open(t.Context(), time.Minute); err == nil || !strings.Contains(err.Error(), "rebalance timeout is 1s: it must be longer than stop and grace together, 1m0s") {
		t.Errorf("a handover that takes longer: %v", err)
	}
}
