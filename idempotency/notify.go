package idempotency

import (
	"encoding/hex"
	"log/slog"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/internal/correlation"
	"github.com/holdfast-go/holdfast/internal/private"
)

// This file reports the outcome of a request, in its log line and to the Observer. Everything except notify decides
// without clock, database or context.

// States of a key, as the log names what a request found and what it left.
const (
	keyUnknown = "unknown" // it was not looked up, or that failed
	keyNone    = "none"    // there is no answer
	keyExpired = "expired" // there was an answer, and it has expired
	keyRunning = "running" // another request has the key
)

// transition returns the state in which a request found its key, and the state in which it left it.
func transition(o Outcome) (from, to string) {
	kept := stateComplete
	if o.Omitted {
		kept = stateOmitted
	}
	from = keyNone
	if o.Expired {
		from = keyExpired
	}
	switch o.Result {
	case Created:
		return from, kept
	case Forgotten:
		return from, from
	case Replayed:
		return kept, kept
	case Conflict:
		return stateComplete, stateComplete
	case InProgress, Lost:
		return keyRunning, keyRunning
	case Unknown:
		return from, keyUnknown
	case Bypassed:
		return keyNone, keyNone
	default: // Refused, Unavailable, Unusable
		return keyUnknown, keyUnknown
	}
}

// levelOf is the log level of a result. Error: somebody has to act. Warn: it may become an error. Info: an operation that took effect, a
// hit, which is the only trace that a replay leaves, or a mistake of a client that its developers may ask about. Debug: other normal
// operation. failed means that an error of ours led to the result. A handler's 5xx is a warning, as its own error may be in no log.
func levelOf(r Result, status int, failed bool) slog.Level {
	switch {
	case r == Unknown, r == Unusable, r == Forgotten && failed:
		return slog.LevelError
	case r == Unavailable && failed, r == Lost, r == Forgotten && status >= http.StatusInternalServerError:
		return slog.LevelWarn
	case r == Created, r == Replayed, r == Conflict, r == Refused && failed:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}

// correlationOf is the name by which other logs know a request: its X-Request-Id, else the trace id of its traceparent.
func correlationOf(h http.Header) string { return correlation.ID(h.Get, "X-Request-Id") }

// about returns the log attributes of a request. Keys and payloads appear only as hashes.
func (req *request) about() []any {
	about := []any{"operation", req.operationName()}
	if req.info.Key != "" {
		about = append(about, "idempotency_key", req.keyHash())
	}
	if req.fingerprint != nil {
		about = append(about, "payload_hash", hex.EncodeToString(comparedOf(req.fingerprint[1:])))
	}
	if len(req.differs) > 0 {
		about = append(about, "differs", req.differs)
	}
	if id := correlationOf(req.Header); id != "" {
		about = append(about, "correlation_id", id)
	}
	return about
}

// requested tells the Observer that a request has arrived, and returns the request with the context that it goes on with.
func (rt *route) requested(r *http.Request, name string, completed bool) (requests *http.Request, ended func()) {
	if rt.g.c.Observer.OnRequest == nil {
		return r, func() {}
	}
	ctx, ended := rt.g.c.Observer.OnRequest(r.Context(), r, name, completed)
	return r.WithContext(ctx), ended
}

// notify reports the outcome of a request once.
func (rt *route) notify(req *request, o Outcome) {
	if req.notified {
		return
	}
	req.notified = true
	o.Operation, o.Route, o.Took, o.Expired, o.Completed = req.info.Operation, req.route, time.Since(req.begun), req.expired, req.completed
	switch o.Result {
	case Created, Forgotten, Lost, Bypassed, Unknown:
		o.Attempt = req.info.Attempt
	}
	if o.Result == Replayed || o.Result == InProgress {
		rt.repeats.Store(lookFirst)
	} else if n := rt.repeats.Load(); n > 0 {
		rt.repeats.CompareAndSwap(n, n-1)
	}
	if req.route == "" && o.Result == Created {
		rt.see(req.info.Operation)
	}
	if req.info.Key != "" {
		o.KeyHash = req.keyHash()
	}
	level, suppressed := levelOf(o.Result, o.Status, req.err != nil), 0
	if o.Result == Forgotten && level == slog.LevelWarn { // Clients repeat what fails: more of the same within a minute are at debug.
		var say bool
		if suppressed, say = rt.failing.Allow(req.route, time.Minute, time.Now()); !say {
			level = slog.LevelDebug
		}
	}
	if log := rt.g.c.Logger; log.Enabled(req.Context(), level) {
		from, to := transition(o)
		attributes := append(req.about(), "outcome", string(o.Result), "status", o.Status, "attempt", o.Attempt, "from_state", from, "to_state", to, "took", o.Took)
		if suppressed > 0 {
			attributes = append(attributes, "suppressed", suppressed)
		}
		if o.Code != "" {
			attributes = append(attributes, "error_code", o.ErrorCode)
		}
		if req.err != nil {
			attributes = append(attributes, "error", private.Text(req.err))
		}
		log.Log(req.Context(), level, "idempotent request", attributes...)
	}
	if rt.g.c.Observer.OnOutcome != nil {
		rt.g.c.Observer.OnOutcome(req.Context(), o)
	}
}
