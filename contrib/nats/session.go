package natsjs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// consumed is what a session knows of a topic.
type consumed struct {
	partitions int
	created    time.Time // of its stream
}

// session is a member of a group.
type session struct {
	js     jetstream.JetStream
	config GroupConfig
	id     string

	life context.Context // until Close
	end  context.CancelFunc

	work      sync.WaitGroup // follow and beat of this membership
	releasing sync.WaitGroup // what the last generation had

	mu       sync.Mutex
	changed  chan struct{} // closed, and made anew, with every change of what follows
	kv       jetstream.KeyValue
	depart   context.CancelFunc // ends follow and beat; nil when this is no member
	revision uint64             // of the member's key; 0 when the group has thrown it out
	synced   bool               // roster has all keys
	roster   roster
	topics   map[string]consumed // by name; one that is missing is not there
	gen      *generation         // nil after it was left
	number   int                 // of generations
}

// update changes what is known, and tells those who wait for it. The generation ends if its partitions are no longer its own.
func (s *session) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
	if s.gen != nil && !s.stands(s.gen) {
		s.gen.finish()
	}
}

// stands says that a generation is what the group wants this member to have. The caller holds mu.
func (s *session) stands(g *generation) bool {
	if s.revision == 0 || !s.synced {
		return s.revision != 0
	}
	if want := s.wants(); len(want) != len(g.leases) {
		return false
	} else {
		for tp := range g.leases {
			if !want[tp] {
				return false
			}
		}
	}
	for tp, l := range g.leases {
		if l.lostTo(s.roster.leases[l.key]) || !s.topics[tp.Topic].created.Equal(l.created) {
			return false
		}
	}
	return true
}

// wants are the partitions that are this member's share. The caller holds mu.
func (s *session) wants() map[source.TopicPartition]bool {
	partitions := map[string]int{}
	for name, t := range s.topics {
		partitions[name] = t.partitions
	}
	members := s.roster.topics()
	if _, listed := members[s.id]; !listed {
		members[s.id] = s.config.Topics
	}
	return sharesOf(share(members, partitions), s.id)
}

// Next joins the group, and waits until the partitions that are this member's share are free.
func (s *session) Next(ctx context.Context) (source.Generation, error) {
	s.releasing.Wait()
	if err := s.join(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.number++
	g := &generation{
		s:       s,
		owner:   s.id + "/" + strconv.Itoa(s.number),
		leases:  map[source.TopicPartition]*lease{},
		readers: map[source.TopicPartition]*reader{},
		over:    make(chan struct{}),
	}
	s.mu.Unlock()
	during, stop := whileConnected(ctx, s.js.Conn())
	err := s.collect(during, g)
	stop()
	if err == nil {
		return g, nil
	}
	s.giveBack(g)
	s.releasing.Wait()
	if ctx.Err() != nil {
		s.leaveGroup()
		return nil, ctx.Err()
	}
	if lostConnection(during) {
		err = fmt.Errorf("join the group: %w", errConnectionLost)
	}
	return nil, err
}

// collect claims partitions until g has this member's share.
func (s *session) collect(ctx context.Context, g *generation) error {
	for {
		s.mu.Lock()
		if s.revision == 0 {
			s.mu.Unlock()
			return errors.New("join the group: this node was away for longer than the session timeout, and joins again")
		}
		changed, kv, synced := s.changed, s.kv, s.synced
		want, missing, surplus := map[source.TopicPartition]bool{}, map[source.TopicPartition]seenLease{}, []*lease{}
		if synced {
			want = s.wants()
		}
		for tp, l := range g.leases {
			if !want[tp] || !s.topics[tp.Topic].created.Equal(l.created) || l.lostTo(s.roster.leases[l.key]) {
				surplus = append(surplus, l)
				delete(g.leases, tp)
			}
		}
		for tp := range want {
			if g.leases[tp] == nil {
				missing[tp] = s.roster.leases[leaseKey(s.config.GroupID, tp)]
			}
		}
		if synced && len(missing) == 0 && len(surplus) == 0 {
			g.assigned = map[source.TopicPartition]source.Start{}
			g.created = map[string]time.Time{}
			for tp, l := range g.leases {
				g.assigned[tp] = l.start(s.config)
				g.created[tp.Topic] = l.created
			}
			s.gen = g
			s.mu.Unlock()
			return nil
		}
		members, topics := s.roster.members, s.topics
		owned, leftovers := map[source.TopicPartition]bool{}, map[string]seenLease{}
		for key, seen := range s.roster.leases { // An earlier generation could not release it.
			if seen.member() == s.id && seen.Owner != g.owner {
				leftovers[key] = seen
			}
		}
		for tp, seen := range missing { // s.roster may change: look while mu is held
			_, alive := members[seen.member()]
			owned[tp] = seen.Owner != "" && alive && seen.member() != s.id
		}
		s.mu.Unlock()
		for tp := range missing {
			delete(leftovers, leaseKey(s.config.GroupID, tp))
		}
		for key, seen := range leftovers {
			seen.Owner = ""
			if _, err := claim(ctx, kv, key, seen.leaseRecord, seen.revision); err != nil && !errors.Is(err, errTaken) {
				return fmt.Errorf("release a partition: %w", err)
			}
		}
		for _, l := range surplus {
			if err := l.release(ctx); err != nil && !errors.Is(err, errTaken) {
				return fmt.Errorf("release a partition: %w", err)
			}
		}
		claimed := false
		for tp, seen := range missing {
			if owned[tp] {
				continue
			}
			l, err := s.take(ctx, kv, tp, seen, topics[tp.Topic].created, g.owner)
			if err != nil {
				return fmt.Errorf("claim partition %d of topic %s: %w", tp.Partition, tp.Topic, err)
			}
			if l != nil {
				g.leases[tp], claimed = l, true
			}
		}
		if claimed || len(surplus) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take claims a partition that nobody has, or whose owner is no member any more. It returns nil if somebody has it after all.
func (s *session) take(ctx context.Context, kv jetstream.KeyValue, tp source.TopicPartition, seen seenLease, created time.Time, owner string) (*lease, error) {
	if seen.Owner != "" && seen.member() != s.id {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		_, err := kv.Get(bounded, memberKey(s.config.GroupID, seen.member()))
		cancel()
		if !errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil, err // It is a member that this node has not seen yet, or nobody knows.
		}
	}
	r := leaseRecord{Owner: owner, Committed: source.NoOffset, Created: created}
	if seen.revision > 0 && seen.Created.Equal(created) {
		r.Committed = seen.Committed // Otherwise the topic was recreated, and the offset means nothing in it.
	}
	l, err := claim(ctx, kv, leaseKey(s.config.GroupID, tp), r, seen.revision)
	if errors.Is(err, errTaken) {
		return nil, nil
	}
	return l, err
}

// join makes this a member of the group, if it is none.
func (s *session) join(ctx context.Context) error {
	s.mu.Lock()
	member := s.revision != 0
	s.mu.Unlock()
	if member {
		return nil
	}
	s.leaveGroup()
	if !s.js.Conn().IsConnected() {
		return fmt.Errorf("join the group: no connection to a server: it is %s", s.js.Conn().Status())
	}
	topics, replicas, err := s.look(ctx, nil)
	if err != nil {
		return fmt.Errorf("join the group: %w", err)
	}
	kv, err := bucket(ctx, s.js, s.config.Bucket, replicas)
	if err != nil {
		return fmt.Errorf("join the group: bucket %s: %w", s.config.Bucket, err)
	}
	value, err := json.Marshal(memberRecord{Topics: s.config.Topics})
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	revision, err := kv.Put(bounded, memberKey(s.config.GroupID, s.id), value)
	cancel()
	if err != nil {
		return fmt.Errorf("join the group: %w", err)
	}
	during, depart := context.WithCancel(s.life)
	s.update(func() {
		s.kv, s.depart, s.revision, s.synced, s.roster, s.topics = kv, depart, revision, false, newRoster(), topics
	})
	s.work.Go(func() { s.follow(during, kv) })
	s.work.Go(func() { s.beat(during, kv, value) })
	return nil
}

// bucket opens the bucket, and makes it if it is missing.
func bucket(ctx context.Context, js jetstream.JetStream, name string, replicas int) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	kv, err := js.KeyValue(ctx, name)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return kv, err
	}
	return js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:      name,
		Description: "who of a holdfast group has which partition",
		History:     1,
		Replicas:    max(1, replicas),
	})
}

// look asks for the topics. Of one that the server says nothing of, what was known is kept.
func (s *session) look(ctx context.Context, known map[string]consumed) (topics map[string]consumed, replicas int, err error) {
	topics = map[string]consumed{}
	for _, name := range s.config.Topics {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		stream, err := s.js.Stream(bounded, StreamName(name))
		cancel()
		var n int
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			continue
		case err == nil:
			info := stream.CachedInfo()
			if n, err = partitionsOf(name, info.Config, false); err != nil {
				return nil, 0, err
			}
			replicas = max(replicas, info.Config.Replicas)
			topics[name] = consumed{partitions: n, created: info.Created}
		case known == nil:
			return nil, 0, err
		default:
			if t, was := known[name]; was {
				topics[name] = t
			}
		}
	}
	return topics, replicas, nil
}

// beat writes the member's key again and again, throws out members that have stopped doing so, and looks for new partitions.
func (s *session) beat(ctx context.Context, kv jetstream.KeyValue, value []byte) {
	tick := time.NewTicker(s.config.HeartbeatInterval)
	defer tick.Stop()
	last, looked := time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.beatOnce(ctx, kv, value)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			last = time.Now()
		case errors.Is(err, errThrownOut), time.Since(last) > s.config.SessionTimeout:
			s.update(func() { s.revision = 0 })
			return
		}
		if err != nil {
			continue
		}
		s.expire(ctx, kv)
		if time.Since(looked) >= s.config.WatchInterval {
			s.mu.Lock()
			known := s.topics
			s.mu.Unlock()
			if topics, _, err := s.look(ctx, known); err == nil && !maps.EqualFunc(topics, known, func(a, b consumed) bool { return a.partitions == b.partitions && a.created.Equal(b.created) }) {
				s.update(func() { s.topics = topics })
			}
			looked = time.Now()
		}
	}
}

// errThrownOut says that the group has deleted this member's key.
var errThrownOut = errors.New("the group has thrown this node out")

func (s *session) beatOnce(ctx context.Context, kv jetstream.KeyValue, value []byte) error {
	s.mu.Lock()
	revision := s.revision
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, max(s.config.HeartbeatInterval, time.Second))
	defer cancel()
	key := memberKey(s.config.GroupID, s.id)
	next, err := kv.Update(ctx, key, value, revision)
	if taken(err) { // The answer to the last one was lost, or the key was deleted.
		e, asked := kv.Get(ctx, key)
		switch {
		case errors.Is(asked, jetstream.ErrKeyNotFound):
			return errThrownOut
		case asked != nil:
			return asked
		}
		next, err = kv.Update(ctx, key, value, e.Revision())
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.revision != 0 {
		s.revision = next
	}
	s.mu.Unlock()
	return nil
}

// expire deletes the keys of members that have not written them for SessionTimeout, by this node's clock alone.
func (s *session) expire(ctx context.Context, kv jetstream.KeyValue) {
	s.mu.Lock()
	silent := map[string]uint64{}
	for id, m := range s.roster.members {
		if id != s.id && time.Since(m.at) > s.config.SessionTimeout {
			silent[id] = m.revision
		}
	}
	s.mu.Unlock()
	for id, revision := range silent {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		// A key that was written in between, and not seen yet, has another revision: nothing is deleted.
		err := kv.Delete(bounded, memberKey(s.config.GroupID, id), jetstream.LastRevision(revision))
		cancel()
		if err == nil {
			s.update(func() {
				if s.roster.members[id].revision == revision {
					delete(s.roster.members, id)
				}
			})
		}
	}
}

// giveBack releases what a generation has, in the background. It does not wait.
func (s *session) giveBack(g *generation) {
	s.mu.Lock()
	g.finish()
	if s.gen == g {
		s.gen = nil
	}
	leases := make([]*lease, 0, len(g.leases))
	for _, l := range g.leases {
		leases = append(leases, l)
	}
	s.mu.Unlock()
	for _, l := range leases {
		s.releasing.Go(func() {
			_ = l.release(s.life) // What is not released is taken when this member is gone, or by its next generation.
		})
	}
	s.releasing.Go(func() { g.closeReaders(s.life) })
}

// leaveGroup ends the membership.
func (s *session) leaveGroup() {
	s.mu.Lock()
	depart, kv, revision := s.depart, s.kv, s.revision
	s.depart, s.revision = nil, 0
	s.mu.Unlock()
	if depart == nil {
		return
	}
	depart()
	s.work.Wait()
	if revision != 0 && s.js.Conn().IsConnected() {
		ctx, cancel := context.WithTimeout(s.life, requestTimeout)
		_ = kv.Delete(ctx, memberKey(s.config.GroupID, s.id))
		cancel()
	}
}

// Close leaves the group.
func (s *session) Close() {
	s.mu.Lock()
	g := s.gen
	s.mu.Unlock()
	if g != nil {
		g.Leave()
	}
	s.releasing.Wait()
	s.leaveGroup()
	s.end()
}
