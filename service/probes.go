package service

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// What a probe waits for, at most: together less than the second after which Kubernetes gives up by default.
const (
	pingTimeout   = 500 * time.Millisecond
	healthTimeout = 300 * time.Millisecond
)

// health is what a probe has learned of a part.
type health struct {
	Live    bool     `json:"live"`
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// verdict is the body of an answer.
type verdict struct {
	Well   bool              `json:"well"`
	Reason string            `json:"reason,omitempty"` // of the whole program
	Parts  map[string]health `json:"parts"`
}

// judgeLive decides /livez: only a new process helps a part that is not live.
func judgeLive(parts map[string]health) verdict {
	v := verdict{Well: true, Parts: parts}
	for _, h := range parts {
		v.Well = v.Well && h.Live
	}
	return v
}

// judgeReady decides /readyz. A program that serves is ready while its database answers: without the broker it takes requests and writes
// events all the same. One that does not is ready while its database answers and all of its parts are ready. A program that stops is not ready.
func judgeReady(parts map[string]health, serves, stopping, answers bool) verdict {
	v := verdict{Well: true, Parts: parts}
	switch {
	case stopping:
		v.Well, v.Reason = false, "the process is stopping"
	case !answers:
		v.Well, v.Reason = false, "the database does not answer"
	case !serves:
		for _, h := range parts {
			v.Well = v.Well && h.Ready
		}
	}
	return v
}

// Probes answers /livez and /readyz, below whatever prefix it is mounted: 200, or 503 and why. Both list what keeps each part from being
// live or ready, without payloads and secrets. Many goroutines may call it at once, before, during and after Run.
//
// A Service with a Server is ready while its database answers: it takes requests while Kafka is away. One without is ready while, besides, Relay
// and Consumers are. Neither is while it stops. A pool whose connections are all in use is no reason: the program is busy.
func (s *Service) Probes() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var v verdict
		switch path := r.URL.Path; {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "a probe is a GET", http.StatusMethodNotAllowed)
			return
		case strings.HasSuffix(path, "/livez"):
			v = judgeLive(s.health(r.Context()))
		case strings.HasSuffix(path, "/readyz"):
			answers := s.answers(r.Context())
			v = judgeReady(s.health(r.Context()), s.Server != nil, s.stopping.Load(), answers)
		default:
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !v.Well {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(v) // it fails if the asker has gone
	})
}

// answers says whether the database does. If no connection becomes free, others are at work on them.
func (s *Service) answers(ctx context.Context) bool {
	if s.Pool == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	c, err := s.Pool.Acquire(ctx)
	if err != nil {
		stat := s.Pool.Stat()
		return ctx.Err() != nil && stat.AcquiredConns() == stat.MaxConns()
	}
	defer c.Release()
	return c.Ping(ctx) == nil
}

// health asks the parts.
func (s *Service) health(ctx context.Context) map[string]health {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	parts := map[string]health{}
	if s.Relay != nil {
		h := s.Relay.Health(ctx)
		parts["relay"] = health{h.Live, h.Ready, h.Reasons}
	}
	for _, c := range s.Consumers {
		if c.Inbox != nil {
			h := c.Inbox.Health(ctx)
			parts[c.name()] = health{h.Live, h.Ready, h.Reasons}
		}
	}
	return parts
}
