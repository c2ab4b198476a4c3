package kafkago

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
)

// This file takes memberships out of the group that kafka-go has given up. When it cannot reach the coordinator it forgets
// its member ID and joins as a new member later. The group then waits for the old one until its session times out, and
// nobody consumes meanwhile.

const (
	leaveTimeout = 2 * time.Second // of one try
	leavePause   = 250 * time.Millisecond
)

// outlived says that a membership is lost to kafka-go after this error of its Next. After RebalanceInProgress it joins with
// the same member ID again, and a group that is closed leaves by itself.
func outlived(err error) bool {
	return err != nil && !errors.Is(err, kafka.RebalanceInProgress) && !errors.Is(err, kafka.ErrGroupClosed) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// leave tells the coordinator that a member is gone, again and again until it answers or the session closes.
func (s *session) leave(member string) {
	client := &kafka.Client{Addr: s.addr, Transport: s.own, Timeout: leaveTimeout}
	for {
		ctx, cancel := context.WithTimeout(s.open, leaveTimeout)
		answer, err := client.LeaveGroup(ctx, &kafka.LeaveGroupRequest{GroupID: s.g.GroupID, Members: []kafka.LeaveGroupRequestMember{{ID: member}}})
		cancel()
		if err == nil && gone(answer) {
			return
		}
		select {
		case <-time.After(leavePause):
		case <-s.open.Done():
			return
		}
	}
}

// gone says that the group has the one member of this answer no longer, or will not say more: only a coordinator that is
// away or loads the group is worth another try.
func gone(answer *kafka.LeaveGroupResponse) bool {
	again := func(err error) bool {
		return errors.Is(err, kafka.GroupLoadInProgress) || errors.Is(err, kafka.GroupCoordinatorNotAvailable) || errors.Is(err, kafka.NotCoordinatorForGroup)
	}
	for _, m := range answer.Members {
		if again(m.Error) {
			return false
		}
	}
	return !again(answer.Error)
}
