package idempotency

import (
	"encoding/hex"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"
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

// levelOf is the log level of a result. Error: somebody has to act. Warn: it may become an error. Info: a mistake of a
// client that its developers may ask about. Debug: normal operation. failed means that an error of ours led to the
// result.
func levelOf(r Result, failed bool) slog.Level {
	switch {
	case r == Unknown, r == Unusable, r == Forgotten && failed:
		return slog.LevelError
	case r == Unavailable && failed, r == Lost:
		return slog.LevelWarn
	case r == Conflict, r == Refused && failed:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}

var (
	traceParent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}`)
	noTrace     = strings.Repeat("0", 32)
)

// correlation is the name by which other logs know a request. It is the X-Request-Id if that is safe to log, else the
// trace id of its traceparent (W3C Trace Context), else "".
func correlation(h http.Header) string {
	id := h.Get("X-Request-Id")
	if id != "" && len(id) <= 128 && strings.IndexFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) < 0 {
		return id
	}
	if m := traceParent.FindStringSubmatch(h.Get("Traceparent")); m != nil && m[1] != noTrace {
		return m[1]
	}
	return ""
}

// about returns the log attributes of a request. Keys and payloads appear only as hashes.
func (req *request) about() []any {
	about := []any{"operation", req.info.Operation}
	if req.info.Key != "" {
		about = append(about, "idempotency_key", req.keyHash())
	}
	if req.fingerprint != nil {
		about = append(about, "payload_hash", hex.EncodeToString(req.fingerprint[1:]))
	}
	if id := correlation(req.Header); id != "" {
		about = append(about, "correlation_id", id)
	}
	return about
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
	if req.info.Key != "" {
		o.KeyHash = req.keyHash()
	}
	if log, level := rt.g.c.Logger, levelOf(o.Result, req.err != nil); log.Enabled(req.Context(), level) {
		from, to := transition(o)
		attributes := append(req.about(), "result", string(o.Result), "status", o.Status, "attempt", o.Attempt, "from", from, "to", to, "took", o.Took)
		if o.Code != "" {
			attributes = append(attributes, "error_code", o.Code)
		}
		if req.err != nil {
			attributes = append(attributes, "error", req.err)
		}
		log.Log(req.Context(), level, "idempotent request", attributes...)
	}
	if rt.g.c.Observer.OnOutcome != nil {
		rt.g.c.Observer.OnOutcome(req.Context(), o)
	}
}
