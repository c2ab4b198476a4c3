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

// Headers of our own.
const (
	headerStatus   = "Idempotency-Status"
	headerReplayed = "Idempotent-Replayed" // Stripe's
	headerBody     = "Idempotency-Body"
	headerExpires  = "Idempotency-Key-Expires"
)

// ours are the headers of a stored or replayed answer.
func (rt *route) ours(req *request, status string, expires time.Time) http.Header {
	h := http.Header{}
	h.Set(headerStatus, status)
	h.Set("Idempotency-Key", req.info.Key)
	if rt.g.c.ShowExpiry {
		h.Set(headerExpires, expires.UTC().Format(http.TimeFormat))
	}
	return h
}

// replay answers with what is stored.
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
		_, _ = w.Write(s.Answer.Body) // The client is gone: it may ask again.
	}
}

// refuse answers with a problem.
func (rt *route) refuse(w http.ResponseWriter, req *request, p problem, result Result) {
	rt.notify(req, Outcome{Result: result, Status: p.status, Code: p.code})
	p.write(w, rt.g.c.DocsURL)
}

// inUse says that another request has the key.
func (rt *route) inUse(w http.ResponseWriter, req *request) {
	p := inProgress
	if rt.o.StatusURL != nil {
		p = accepted
		p.location = rt.o.StatusURL(req.Request, req.info.Key)
	}
	rt.refuse(w, req, p, InProgress)
}

// unavailable says that nothing was done. No request is let through unguarded.
func (rt *route) unavailable(w http.ResponseWriter, req *request, err error) {
	if req.taken && req.Context().Err() != nil { // The client's time was over while the database was asked once more.
		rt.inUse(w, req)
		return
	}
	if req.Context().Err() == nil || errors.Is(err, errPoolExhausted) { // else it is the client who went
		req.err = sqlschema.Explain(err, "docs/operations.md lists what to grant")
	}
	rt.refuse(w, req, storeUnavailable, Unavailable)
}

// unusable says that there is something for the key that must not be sent, nor done again.
func (rt *route) unusable(w http.ResponseWriter, req *request, err error) {
	req.err = fmt.Errorf("stored answer cannot be used: %w", err)
	rt.refuse(w, req, answerUnusable, Unusable)
}
