package webhook

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
)

// This file says what a sender gets. It decides; the three functions at its end write.
//
// 2xx means that the sender need not send the delivery again: what it says was committed, or is not wanted. That holds for
// a handler that failed too, because the inbox has the event and tries again by itself; were the sender told to come
// again, that would bring nothing but duplicates, and providers disable endpoints that fail.

// statusOf is the answer to a delivery with an outcome, or with the error of one that has none.
func statusOf(out inbox.Outcome, err error) int {
	if err != nil {
		return http.StatusServiceUnavailable // In flight, full, unknown, or the database is away: nothing that another try would not find out.
	}
	switch out {
	case inbox.Stored, inbox.Retrying:
		return http.StatusAccepted
	case inbox.Conflict:
		return http.StatusConflict // Sending it again would not help: the id is taken, and a letter has it.
	default: // Handled, Duplicate, Skipped, Dead
		return http.StatusOK
	}
}

// statusOfRefusal is the answer to a request that was refused.
func statusOfRefusal(reason Reason) int {
	switch reason {
	case ReasonMethod:
		return http.StatusMethodNotAllowed
	case ReasonEncoding:
		return http.StatusUnsupportedMediaType
	case ReasonSize:
		return http.StatusRequestEntityTooLarge
	case ReasonBroken, ReasonContent:
		return http.StatusBadRequest
	default:
		return http.StatusUnauthorized
	}
}

// Gone answers 410, which tells senders of Standard Webhooks, and others, to disable the endpoint: put it where an endpoint
// was that is no longer wanted.
func Gone() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeProblem(w, http.StatusGone, 0) })
}

// writeAnswer ends a delivery.
func writeAnswer(w http.ResponseWriter, status int, retryAfter time.Duration) {
	if status >= 300 {
		writeProblem(w, status, retryAfter)
		return
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(status)
}

// writeProblem answers with a status and its name and nothing else: an attacker who forges requests learns nothing of why.
func writeProblem(w http.ResponseWriter, status int, retryAfter time.Duration) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	switch status {
	case http.StatusMethodNotAllowed:
		h.Set("Allow", http.MethodPost)
	case http.StatusUnsupportedMediaType:
		h.Set("Accept-Encoding", "identity") // RFC 9110, 12.5.3
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Signature") // RFC 9110, 11.6.1 wants a challenge
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", strconv.FormatInt(int64((retryAfter+time.Second-1)/time.Second), 10))
	}
	body, err := json.Marshal(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
	}{"about:blank", http.StatusText(status), status})
	if err != nil {
		panic(err) // Two texts and a number always can be.
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// writeHandshake sends back what the provider asked for, as text that no browser takes for anything else.
func writeHandshake(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text)
}
