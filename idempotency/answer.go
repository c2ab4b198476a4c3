package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// This file writes the answers that do not come from a handler.

// Headers that this package adds.
const (
	headerStatus   = "Idempotency-Status"
	headerReplayed = "Idempotent-Replayed" // Stripe's
	headerBody     = "Idempotency-Body"
	headerExpires  = "Idempotency-Key-Expires"
)

// ours returns the headers that a stored or replayed answer gets.
func (rt *route) ours(req *request, status string, expires time.Time) http.Header {
	h := http.Header{}
	h.Set(headerStatus, status)
	h.Set("Idempotency-Key", req.info.Key)
	if rt.g.c.ShowExpiry {
		h.Set(headerExpires, expires.UTC().Format(http.TimeFormat))
	}
	return h
}

// replay sends the stored answer.
func (rt *route) replay(w http.ResponseWriter, req *request, s *stored) {
	h := w.Header()
	for name, values := range s.Answer.Header {
		h[name] = values
	}
	for name, values := range rt.ours(req, "replayed", s.ExpiresAt) {
		h[name] = values
	}
	h.Set(headerReplayed, "true")
	omitted := s.State == stateOmitted
	if omitted {
		h.Set(headerBody, "omitted")
	}
	status := s.Answer.Status
	if rt.o.ReplayStatus != nil {
		status = rt.o.ReplayStatus(status)
	}
	if rt.o.OnReplay != nil {
		rt.o.OnReplay(req.Request, h)
	}
	if !bodyless(status) {
		h.Set("Content-Length", strconv.Itoa(len(s.Answer.Body)))
	}
	rt.notify(req, Outcome{Result: Replayed, Status: status, Omitted: omitted})
	w.WriteHeader(status)
	if !bodyless(status) {
		_, _ = w.Write(s.Answer.Body) // On an error the client is gone; it may ask again.
	}
}

// refuse sends a problem.
func (rt *route) refuse(w http.ResponseWriter, req *request, p problem, result Result) {
	rt.notify(req, Outcome{
		Result:    result,
		Status:    p.status,
		Code:      p.code,
		ErrorCode: p.errorCode(),
	})
	p.write(w, rt.g.c.DocsURL)
}

// inUse answers that another request has the key.
func (rt *route) inUse(w http.ResponseWriter, req *request) {
	p := inProgress
	if rt.o.StatusURL != nil {
		p = accepted
		p.location = rt.o.StatusURL(req.Request, req.info.Key)
	}
	rt.refuse(w, req, p, InProgress)
}

// unavailable answers that nothing was done. No request passes unguarded.
func (rt *route) unavailable(w http.ResponseWriter, req *request, err error) {
	if req.taken && req.Context().Err() != nil { // The client stopped waiting while we asked the database once more.
		rt.inUse(w, req)
		return
	}
	if req.Context().Err() == nil || errors.Is(err, errPoolExhausted) { // otherwise the client is gone
		req.err = sqlschema.Explain(err, "docs/operations.md lists what to grant")
	}
	rt.refuse(w, req, storeUnavailable, Unavailable)
}

// unusable answers that the key has a stored answer that must be neither sent nor repeated.
func (rt *route) unusable(w http.ResponseWriter, req *request, err error) {
	req.err = fmt.Errorf("stored answer cannot be used: %w", err)
	rt.refuse(w, req, answerUnusable, Unusable)
}
