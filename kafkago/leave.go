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
// for the lost member until its session times out, and nobody consumes meanwhile.

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
	if connect == nil {
		connect = (&net.Dialer{}).DialContext
	}
	dialer.ClientID = d.prefix + "0"
	dialer.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer.ClientID = d.prefix + strconv.FormatInt(d.made.Add(1), 10)
		return connect(ctx, network, address)
	}
	return dialer
}

// newest is the number of the last connection. A join that is under way has this one.
func (d *dials) newest() int64 { return d.made.Load() - 1 }

// lost are the IDs of the members that joined on earlier connections of this session.
func (d *dials) lost(members []kafka.DescribeGroupsResponseMember, newest int64) (ids []string) {
	for _, m := range members {
		text, ours := strings.CutPrefix(m.ClientID, d.prefix)
		if number, err := strconv.ParseInt(text, 10, 64); ours && err == nil && number < newest {
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

// joins keeps the group free of members that are lost while kafka-go has none that is valid: from an error of its Next to
// anything else. stopped says that Next was given up, or that the session is closed.
func (s *session) joins(err error, stopped bool) {
	switch lost := !stopped && hasLostMember(err); {
	case lost && s.stopLeaving == nil:
		ctx, stop := context.WithCancel(context.Background())
		s.stopLeaving = stop
		s.leaving.Go(func() { s.leave(ctx) })
	case !lost && s.stopLeaving != nil:
		s.stopLeaving()
		s.stopLeaving = nil
	}
}

// leave takes lost members out of the group, until ctx ends.
func (s *session) leave(ctx context.Context) {
	client := &kafka.Client{Addr: s.addr, Transport: s.own, Timeout: leaveTimeout}
	for pause := time.NewTimer(0); ; pause.Reset(leavePause) {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		newest := s.dials.newest() // before the question: later connections are none of its answer
		answer, err := client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{s.g.GroupID}})
		if err != nil || len(answer.Groups) != 1 {
			continue // The coordinator is away, and is asked again.
		}
		for _, member := range s.dials.lost(answer.Groups[0].Members, newest) {
			if ctx.Err() != nil {
				return
			}
			// If it fails, the member is there in the next answer.
			_, _ = client.LeaveGroup(ctx, &kafka.LeaveGroupRequest{GroupID: s.g.GroupID, Members: []kafka.LeaveGroupRequestMember{{ID: member}}})
		}
	}
}
