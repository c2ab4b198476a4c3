package idempotency

import (
	"encoding/hex"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// What is reported of a request, in its log line and to the Observer. Decisions without clock, database or context, but for
// notify itself.

// States of a key, as the log names what a request found and what it left.
const (
	keyUnknown = "unknown" // it was not looked up, or could not be
	keyNone    = "none"    // there is no answer
	keyExpired = "expired" // there was one, and its time is over
	keyRunning = "running" // another request has it
)

// transition says from what to what a request took its key.
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

// levelOf is how loud a result is: what somebody has to look at, Error; what may become that, Warn; what a client did
// wrong and its people may ask about, Info; the daily business, Debug. Failed: an error of ours led to it.
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

// correlation is by what other logs know a request: its X-Request-Id where that is fit for a log, else the trace of its
// traceparent (W3C Trace Context), else "".
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

// about is what the log says of a request: keys and payloads only as hashes.
func (req *request) about() []any {
	about := []any{"operation", req.info.Operation}
	if req.info.Key != "" {
		about = append(about, "idempotency_key", req.keyHash())
	}
	if req.fingerprint != nil {
		about = append(about, "payload_hash", hex.EncodeToString(req.fingerprint))
	}
	if id := correlation(req.Header); id != "" {
		about = append(about, "correlation_id", id)
	}
	return about
}

// notify reports what became of a request, once: to the log and the observer.
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
