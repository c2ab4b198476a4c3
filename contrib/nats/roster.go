package natsjs

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file follows what a group's keys in the bucket say.
//
//	<group>.member.<id>           a member and its topics; written again with every heartbeat
//	<group>.lease.<stream>.<n>    the owner of a partition, and the offset that was committed last

// memberRecord is the value of a member's key.
type memberRecord struct {
	Topics []string `json:"topics"`
}

// leaseRecord is the value of a partition's key.
type leaseRecord struct {
	Owner     string    `json:"owner,omitempty"` // a member's id, "/" and a number of its generation; empty: nobody
	Committed int64     `json:"committed"`       // source.NoOffset: nothing was committed
	Created   time.Time `json:"created"`         // of the stream in which the offset means something
}

// member is the owner's id without its generation.
func (r leaseRecord) member() string {
	id, _, _ := strings.Cut(r.Owner, "/")
	return id
}

func memberKey(group, id string) string { return group + ".member." + id }

func leaseKey(group string, tp source.TopicPartition) string {
	return group + ".lease." + StreamName(tp.Topic) + "." + strconv.Itoa(tp.Partition)
}

// seenMember is a member as it was last seen.
type seenMember struct {
	topics   []string
	revision uint64
	at       time.Time // when this node first saw the revision
}

// seenLease is a partition's key as it was last seen.
type seenLease struct {
	leaseRecord
	revision uint64
}

// roster is what a group's keys say. It is a value of one goroutine, or guarded by session.mu.
type roster struct {
	members map[string]seenMember
	leases  map[string]seenLease // by key
}

func newRoster() roster {
	return roster{members: map[string]seenMember{}, leases: map[string]seenLease{}}
}

// topics are those of each member.
func (r roster) topics() map[string][]string {
	all := map[string][]string{}
	for id, m := range r.members {
		all[id] = m.topics
	}
	return all
}

// apply takes in an entry. An older one than what is known changes nothing.
func (r roster) apply(group string, e jetstream.KeyValueEntry, now time.Time) {
	gone := e.Operation() != jetstream.KeyValuePut
	if id, is := strings.CutPrefix(e.Key(), group+".member."); is {
		if r.members[id].revision >= e.Revision() {
			return
		}
		var m memberRecord
		if gone || json.Unmarshal(e.Value(), &m) != nil {
			delete(r.members, id)
			return
		}
		r.members[id] = seenMember{topics: m.Topics, revision: e.Revision(), at: now}
		return
	}
	if !strings.HasPrefix(e.Key(), group+".lease.") || r.leases[e.Key()].revision >= e.Revision() {
		return
	}
	l := seenLease{revision: e.Revision()}
	if gone || json.Unmarshal(e.Value(), &l.leaseRecord) != nil {
		l.leaseRecord = leaseRecord{Committed: source.NoOffset} // Somebody deleted it: it is free, and has no offset.
	}
	r.leases[e.Key()] = l
}

// inherit keeps since when members have been seen.
func (r roster) inherit(old roster) {
	for id, m := range r.members {
		if known := old.members[id]; known.revision == m.revision {
			r.members[id] = known
		}
	}
}

// follow keeps the session's roster, until ctx ends. It reads all keys anew now and then: a watch that missed something would miss it
// for ever.
func (s *session) follow(ctx context.Context, kv jetstream.KeyValue) {
	for ctx.Err() == nil {
		_ = s.followFor(ctx, kv, max(s.config.SessionTimeout, 5*time.Second))
		select {
		case <-ctx.Done():
		case <-time.After(s.config.HeartbeatInterval / 2): // an error: the broker is away; nobody is thrown out by what is old
		}
	}
}

// followFor watches the keys for a while, or until the connection is lost: the watch's consumer may be lost with it.
func (s *session) followFor(ctx context.Context, kv jetstream.KeyValue, length time.Duration) error {
	nc := s.js.Conn()
	if !nc.IsConnected() {
		return fmt.Errorf("watch the group's keys: no connection to a server: it is %s", nc.Status())
	}
	ctx, stop := whileConnected(ctx, nc)
	defer stop()
	w, err := kv.Watch(ctx, s.config.GroupID+".>")
	if err != nil {
		return fmt.Errorf("watch the group's keys: %w", err)
	}
	defer func() { _ = w.Stop() }()
	anew := time.NewTimer(length)
	defer anew.Stop()
	fresh := newRoster()
	for complete := false; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-anew.C:
			return nil
		case e, open := <-w.Updates():
			switch {
			case !open:
				return fmt.Errorf("watch the group's keys: it ended")
			case e == nil:
				complete = true
				s.update(func() {
					fresh.inherit(s.roster)
					s.roster, s.synced = fresh, true
				})
			case complete:
				s.update(func() { s.roster.apply(s.config.GroupID, e, time.Now()) })
			default:
				fresh.apply(s.config.GroupID, e, time.Now())
			}
		}
	}
}
