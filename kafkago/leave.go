package kafkago

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
)

// This file takes memberships out of the group that kafka-go has lost. When it cannot reach the coordinator it forgets its
// member ID and joins as a new member later; and where the answer to a join is lost, it never had the ID. The group then waits
// for the lost member until its session times out, and nobody consumes meanwhile; or it forms with the lost member, whose
// partitions nobody consumes.

const (
	leaveTimeout = 2 * time.Second // of one try
	leavePause   = 250 * time.Millisecond
)

// dials gives each connection of a member to its group a client ID of its own: the group then shows which of the members that
// we ever were is the one of now. kafka-go connects from one goroutine, and takes the client ID before it dials: so the
// connection that is being made has the name that was set before.
type dials struct {
	prefix string       // of the client IDs of this session
	made   atomic.Int64 // connections
}

func newDials(clientID string) *dials {
	return &dials{prefix: fmt.Sprintf("%s-%s-", clientID, strings.ToLower(rand.Text()[:8]))}
}

// name makes a dialer name its connections.
func (d *dials) name(dialer *kafka.Dialer) *kafka.Dialer {
	connect := dialer.DialFunc
	dialer.ClientID = d.prefix + "0"
	dialer.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer.ClientID = d.prefix + strconv.FormatInt(d.made.Add(1), 10)
		c, err := connect(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &neverCreates{Conn: c}, nil
	}
	return dialer
}

// lost are the IDs of the members that joined on the first connections of this session, so many of them.
func (d *dials) lost(members []kafka.DescribeGroupsResponseMember, first int64) (ids []string) {
	for _, m := range members {
		text, ours := strings.CutPrefix(m.ClientID, d.prefix)
		if number, err := strconv.ParseInt(text, 10, 64); ours && err == nil && number < first {
			ids = append(ids, m.MemberID)
		}
	}
	return ids
}

// hasLostMember says that kafka-go has no member ID after this error of its Next. After RebalanceInProgress it joins with the
// same one again, and a group that is closed leaves by itself.
func hasLostMember(err error) bool {
	return err != nil && !errors.Is(err, kafka.RebalanceInProgress) && !errors.Is(err, kafka.ErrGroupClosed)
}

// leaver takes the lost members of a session out of its group.
type leaver struct {
	group   string
	client  *kafka.Client
	dials   *dials
	session time.Duration // how long a broker keeps a member that says nothing

	before atomic.Int64  // Who joined on one of so many connections is lost.
	again  chan struct{} // holds one while there is a loss that run has not seen
}

func newLeaver(group string, client *kafka.Client, d *dials, session time.Duration) *leaver {
	return &leaver{
		group:   group,
		client:  client,
		dials:   d,
		session: session,
		again:   make(chan struct{}, 1),
	}
}

// losesAll says that no member is valid that has joined until now. kafka-go makes no connection for a while after such an
// error. If we are stopped for longer than that, and its new member is taken for a lost one, it joins once more.
func (l *leaver) losesAll() {
	l.before.Store(l.dials.made.Load())
	select {
	case l.again <- struct{}{}:
	default:
	}
}

// run takes out what is lost, until ctx ends. It goes on looking when kafka-go has joined again: the group may have formed with
// a lost member among the others, that has partitions which nobody reads, and a broker may come to a join late.
func (l *leaver) run(ctx context.Context) {
	var until time.Time
	var pause <-chan time.Time // none while nothing is looked for
	for {
		select {
		case <-l.again:
			until = time.Now().Add(l.session)
		case <-pause:
		case <-ctx.Done():
			return
		}
		pause = nil
		if !l.look(ctx) || time.Now().Before(until) {
			pause = time.After(leavePause)
		}
	}
}

// look takes the lost members out that the group shows. It reports that there was none.
func (l *leaver) look(ctx context.Context) bool {
	before := l.before.Load()
	answer, err := l.client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{l.group}})
	if err != nil || len(answer.Groups) != 1 || answer.Groups[0].GroupState == "" {
		return false // The coordinator is away, or is another one by now: it is asked again.
	}
	lost := l.dials.lost(answer.Groups[0].Members, before)
	for _, member := range lost {
		// If it fails, the member is there in the next answer.
		_, _ = l.client.LeaveGroup(ctx, &kafka.LeaveGroupRequest{GroupID: l.group, Members: []kafka.LeaveGroupRequestMember{{ID: member}}})
	}
	return len(lost) == 0
}
