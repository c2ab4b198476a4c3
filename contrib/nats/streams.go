package natsjs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// topicInfo is what we know of a topic.
type topicInfo struct {
	stream     string
	partitions int // Invariant: at least 1.
	created    time.Time
	readAt     time.Time

	// expired is set by a failure: the next call asks again, and until then it is good enough for Partition.
	expired atomic.Bool
}

// describe asks for a topic's stream. The error of a stream that cannot be used is an *unusable.
func describe(ctx context.Context, js jetstream.JetStream, topic string, write bool) (*topicInfo, error) {
	if err := CheckTopic(topic); err != nil {
		return nil, &unusable{err}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := js.Stream(ctx, StreamName(topic))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, &unusable{fmt.Errorf("stream %s: %w: create it, as natsjs.StreamConfig says", StreamName(topic), err)}
	}
	if err != nil {
		return nil, err
	}
	info := s.CachedInfo()
	n, err := partitionsOf(topic, info.Config, write)
	if err != nil {
		return nil, &unusable{err}
	}
	return &topicInfo{
		stream:     info.Config.Name,
		partitions: n,
		created:    info.Created,
		readAt:     time.Now(),
	}, nil
}

// requestTimeout bounds a question to the server.
const requestTimeout = 5 * time.Second

// unusable is why a topic's stream cannot be used until somebody changes it.
type unusable struct{ err error }

func (u *unusable) Error() string { return u.err.Error() }

func (u *unusable) Unwrap() error { return u.err }

// streams keeps what the server says of topics. Safe for use by many goroutines.
type streams struct {
	js  jetstream.JetStream
	ttl time.Duration

	asking sync.Mutex // one question at a time
	mu     sync.RWMutex
	known  map[string]*topicInfo
}

// get returns what is known of a topic without asking; nil when nothing is.
func (s *streams) get(topic string) *topicInfo {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.known[topic]
}

func (s *streams) stale(topic string) bool {
	info := s.get(topic)
	return info == nil || info.expired.Load() || time.Since(info.readAt) >= s.ttl
}

// lookup answers for a topic. When the server does not, the old answer is used where there is one.
func (s *streams) lookup(ctx context.Context, topic string) (*topicInfo, *publish.Error) {
	if !s.stale(topic) {
		return s.get(topic), nil
	}
	s.asking.Lock()
	defer s.asking.Unlock()
	if !s.stale(topic) {
		return s.get(topic), nil
	}
	fail := func(m meaning, err error) *publish.Error {
		return &publish.Error{
			Topic:     topic,
			Partition: nowhere,
			Fault:     m.fault,
			Class:     m.class,
			Err:       err,
		}
	}
	nc := s.js.Conn()
	if !nc.IsConnected() || lostConnection(ctx) {
		return nil, fail(ofBroker, fmt.Errorf("no connection to a server: it is %s", nc.Status()))
	}
	info, err := describe(ctx, s.js, topic, true)
	var wrong *unusable
	switch {
	case errors.As(err, &wrong):
		s.keep(topic, nil)
		return nil, fail(ofTopic, err)
	case err != nil:
		if old := s.get(topic); old != nil {
			return old, nil
		}
		m := meaningOf(err)
		if lostConnection(ctx) {
			m = ofBroker
		}
		if unanswered(err) && ctx.Err() == nil {
			m, err = silence(nc, "$JS.API.STREAM.INFO."+StreamName(topic), err)
		}
		return nil, fail(m, fmt.Errorf("ask for stream %s: %w", StreamName(topic), err))
	}
	s.keep(topic, info)
	return info, nil
}

// keep notes what a topic is; nil forgets it.
func (s *streams) keep(topic string, info *topicInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[string]*topicInfo{}
	}
	if info == nil {
		delete(s.known, topic)
		return
	}
	s.known[topic] = info
}
