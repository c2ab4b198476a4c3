package kafkago

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/describegroups"
	"github.com/segmentio/kafka-go/protocol/leavegroup"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// gate is a network that can be cut: what is open is closed then, and what is dialed is refused.
type gate struct {
	mu   sync.Mutex
	shut bool
	open []net.Conn
}

func (g *gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	c, err := Dial(ctx, network, address)
	if err == nil {
		g.open = append(g.open, c)
	}
	return c, err
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	for _, c := range g.open {
		c.Close()
	}
	g.open = nil
}

// kafka-go forgets its member ID when it cannot reach the coordinator, and the group waited for the old member's session.
func TestLeave_AMemberThatWasCutOffDoesNotWaitForItself(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		const session = time.Minute
		net, topic := &gate{}, cluster.Topic(t, 1)
		s := member(t, cluster, topic, session, net.dial)
		gen := joined(t, s, time.Minute)
		net.set(true)
		<-gen.Over()
		gen.Leave()
		if gen, err := s.Next(t.Context()); err == nil {
			t.Fatalf("joined without a network: %v", gen.Assigned())
		}
		back := time.Now()
		net.set(false)
		again := joined(t, s, 2*time.Minute)
		defer again.Leave()
		if took := time.Since(back); took > session/2 {
			t.Errorf("joined again after %s, with a session of %s", took.Round(time.Millisecond), session)
		} else {
			t.Logf("joined again after %s", took.Round(time.Millisecond))
		}
		if len(again.Assigned()) != 1 {
			t.Errorf("assigned: %v", again.Assigned())
		}
	})
}

// member opens a session that is closed when the test ends.
func member(t *testing.T, cluster *kafkatest.Cluster, topic string, session time.Duration, dial func(context.Context, string, string) (net.Conn, error)) source.Session {
	t.Helper()
	g, err := NewGroup(Connection{Brokers: cluster.Brokers, Dial: dial}, GroupConfig{GroupID: "group-of-" + topic, Topics: []string{topic},
		SessionTimeout: session, RebalanceTimeout: time.Minute, HeartbeatInterval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s, err := g.Open(t.Context(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// joined calls Next until the group is joined.
func joined(t *testing.T, s source.Session, most time.Duration) source.Generation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	for {
		gen, err := s.Next(ctx)
		if err == nil {
			return gen
		}
		if ctx.Err() != nil {
			t.Fatal("the group was not joined: ", err)
		}
	}
}

// A node is cut off while it waits for the answer to its join. Nobody knows that member's ID, and it is in the group.
func TestLeave_AJoinWhoseAnswerWasLostDelaysNobody(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		aJoinWhoseAnswerIsLost(t, cluster, 0)
		aJoinWhoseAnswerIsLost(t, cluster, 280*time.Millisecond)
	})
}

// aJoinWhoseAnswerIsLost has the other node join so long afterwards. Soon after kafka-go has joined again, the group forms with
// the lost member in it.
func aJoinWhoseAnswerIsLost(t *testing.T, cluster *kafkatest.Cluster, later time.Duration) {
	t.Helper()
	const session = time.Minute
	topic := cluster.Topic(t, 4)
	first, network := member(t, cluster, topic, session, nil), &gate{}
	gen := joined(t, first, time.Minute)
	second := member(t, cluster, topic, session, network.dial)
	failed := make(chan error, 1)
	go func() {
		_, err := second.Next(t.Context())
		failed <- err
	}()
	<-gen.Over() // The second has joined, and waits for the first.
	network.set(true)
	if err := <-failed; err == nil {
		t.Fatal("the second joined without a network")
	}
	network.set(false)
	time.Sleep(later) // sleep: of the test
	back := time.Now()
	gen.Leave()
	ctx, stop := context.WithTimeout(t.Context(), 2*session)
	defer stop()
	var parts [2]atomic.Int32
	var all sync.WaitGroup
	for i, s := range []source.Session{first, second} {
		all.Go(func() {
			for ctx.Err() == nil {
				gen, err := s.Next(ctx)
				if err != nil {
					continue
				}
				parts[i].Store(int32(len(gen.Assigned())))
				if parts[1-i].Load() == 2 && parts[i].Load() == 2 {
					stop() // the partitions are shared by the two
				}
				select {
				case <-gen.Over():
				case <-ctx.Done():
				}
				parts[i].Store(0)
				gen.Leave()
			}
		})
	}
	all.Wait()
	if took := time.Since(back); took > session/2 {
		t.Errorf("rejoined after %s, the group is whole after %s, with a session of %s", later, took.Round(time.Millisecond), session)
	} else {
		t.Logf("rejoined after %s, the group is whole after %s", later, took.Round(time.Millisecond))
	}
}

// A connection that times out is an error of kafka-go as any other.
func TestLeave_AMemberIsLostWithAnyErrorButARebalance(t *testing.T) {
	for err, want := range map[error]bool{nil: false, kafka.RebalanceInProgress: false, kafka.ErrGroupClosed: false, kafka.NotCoordinatorForGroup: true,
		fmt.Errorf("dial: %w", syscall.ECONNREFUSED): true, fmt.Errorf("dial: %w", context.DeadlineExceeded): true} {
		if got := hasLostMember(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

func TestLeave_OnlyEarlierMembersOfASessionAreLost(t *testing.T) {
	d, other := newDials("billing"), newDials("billing")
	of := func(id, client string) kafka.DescribeGroupsResponseMember {
		return kafka.DescribeGroupsResponseMember{MemberID: id, ClientID: client}
	}
	got := d.lost([]kafka.DescribeGroupsResponseMember{of("first", d.prefix+"1"), of("second", d.prefix+"4"), of("now", d.prefix+"5"), of("next", d.prefix+"7"),
		of("another node", other.prefix+"1"), of("another program", "billing"), of("a like one", d.prefix+"x")}, 5)
	if !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("lost: %q", got)
	}
}

// describer is a coordinator, for those who look at a group and leave it.
type describer struct {
	mu      sync.Mutex
	members map[string]string // client IDs by member ID
	fails   int               // so many questions from now on
	looks   int
	left    []string
}

func (d *describer) RoundTrip(_ context.Context, _ net.Addr, r kafka.Request) (kafka.Response, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch r := r.(type) {
	case *describegroups.Request:
		if d.looks++; d.fails > 0 {
			d.fails--
			return nil, syscall.ECONNREFUSED
		}
		group := describegroups.ResponseGroup{GroupID: r.Groups[0], GroupState: "Stable"}
		for id, client := range d.members {
			group.Members = append(group.Members, describegroups.ResponseGroupMember{MemberID: id, ClientID: client})
		}
		return &describegroups.Response{Groups: []describegroups.ResponseGroup{group}}, nil
	case *leavegroup.Request:
		for _, m := range r.Members {
			delete(d.members, m.MemberID)
			d.left = append(d.left, m.MemberID)
		}
		return &leavegroup.Response{}, nil
	}
	return nil, fmt.Errorf("a request of type %T was not expected", r)
}

// The group may form with a member that was lost between two looks, and with one whose join a broker comes to late.
func TestLeave_AMemberThatIsLostIsTakenOutAlsoWhenTheGroupHasFormed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDials("billing")
		group := &describer{members: map[string]string{"another": "another-1"}}
		l := newLeaver("g", &kafka.Client{Addr: kafka.TCP("nowhere:1"), Transport: group}, d, 10*time.Second)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go l.run(ctx)
		change := func(do func()) {
			group.mu.Lock()
			defer group.mu.Unlock()
			do()
		}
		shows := func(id string, number int64) {
			change(func() { group.members[id] = d.prefix + strconv.FormatInt(number, 10) })
		}
		is := func(looking bool, left ...string) {
			t.Helper()
			change(func() { group.looks = 0 })
			time.Sleep(time.Second) // sleep: of a clock that is not real
			synctest.Wait()
			change(func() {
				if !slices.Equal(group.left, left) || looking != (group.looks > 0) {
					t.Errorf("left: %q, looked: %d times; want %q, %t", group.left, group.looks, left, looking)
				}
			})
		}
		is(false) // Nothing was lost yet.
		d.made.Store(2)
		l.losesAll()
		is(true)
		d.made.Store(4)
		shows("now", 3) // It joined, and the group formed with it.
		shows("late", 1)
		is(true, "late")
		time.Sleep(10 * time.Second) // sleep: of a clock that is not real
		is(false, "late")
		l.losesAll()
		is(true, "late", "now")
		shows("later", 3)
		change(func() { group.fails = 100 }) // 25 s, longer than a session
		time.Sleep(12 * time.Second)         // sleep: of a clock that is not real
		is(true, "late", "now")
		time.Sleep(15 * time.Second) // sleep: of a clock that is not real
		is(false, "late", "now", "later")
		change(func() {
			if _, ok := group.members["another"]; !ok {
				t.Error("another program's member was taken out")
			}
		})
	})
}
