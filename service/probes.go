package service

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/probe"
)

// What a probe waits for, at most: together less than the second after which Kubernetes gives up by default.
const (
	pingTimeout   = 500 * time.Millisecond
	healthTimeout = 300 * time.Millisecond
)

// verdict is the body of an answer.
type verdict struct {
	Well   bool                    `json:"well"`
	Reason string                  `json:"reason,omitempty"` // of the whole program
	Parts  map[string]probe.Health `json:"parts"`
}

// judgeLive decides /livez: only a new process helps a part that is not live.
func judgeLive(parts map[string]probe.Health) verdict {
	return verdict{Well: probe.AllLive(parts), Parts: parts}
}

// judgeReady decides /readyz. A program that serves is ready while its database answers: without the broker it takes requests and writes
// events all the same. One that does not is ready while its database answers and all of its parts are ready. A program that stops is not ready.
func judgeReady(parts map[string]probe.Health, serves, stopping, answers bool) verdict {
	v := verdict{Well: true, Parts: parts}
	switch {
	case stopping:
		v.Well, v.Reason = false, "the process is stopping"
	case !answers:
		v.Well, v.Reason = false, "the database does not answer"
	case !serves:
		v.Well = probe.AllReady(parts)
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
		probe.Answer(w, v.Well, v)
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
func (s *Service) health(ctx context.Context) map[string]probe.Health {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	parts := map[string]probe.Health{}
	if s.Relay != nil {
		h := s.Relay.Health(ctx)
		parts["relay"] = probe.Health{Live: h.Live, Ready: h.Ready, Reasons: h.Reasons}
	}
	for _, c := range s.Consumers {
		if c.Inbox != nil {
			h := c.Inbox.Health(ctx)
			parts[c.name()] = probe.Health{Live: h.Live, Ready: h.Ready, Reasons: h.Reasons}
		}
	}
	return parts
}
