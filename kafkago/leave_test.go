package kafkago

import (
	"context"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
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
func TestAMemberThatWasCutOffDoesNotWaitForItself(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		const session = 25 * time.Second
		net, topic := &gate{}, cluster.Topic(t, 1)
		g, err := NewGroup(Connection{Brokers: cluster.Brokers, Dial: net.dial}, GroupConfig{GroupID: "group-of-" + topic, Topics: []string{topic},
			SessionTimeout: session, RebalanceTimeout: time.Minute, HeartbeatInterval: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		s, err := g.Open(t.Context(), time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
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

// joined calls Next until the group is joined.
func joined(t *testing.T, s inbox.Session, most time.Duration) inbox.Generation {
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

func TestOnlyACoordinatorThatIsAwayIsToldAgain(t *testing.T) {
	for _, c := range []struct {
		whole, member error
		gone          bool
	}{
		{nil, nil, true},
		{kafka.UnknownMemberId, nil, true},
		{nil, kafka.UnknownMemberId, true},
		{kafka.GroupAuthorizationFailed, nil, true},
		{kafka.GroupLoadInProgress, nil, false},
		{kafka.GroupCoordinatorNotAvailable, nil, false},
		{kafka.NotCoordinatorForGroup, nil, false},
		{nil, kafka.NotCoordinatorForGroup, false},
	} {
		answer := &kafka.LeaveGroupResponse{Error: c.whole, Members: []kafka.LeaveGroupResponseMember{{ID: "m", Error: c.member}}}
		if got := gone(answer); got != c.gone {
			t.Errorf("%v and %v: gone %t, want %t", c.whole, c.member, got, c.gone)
		}
	}
}
