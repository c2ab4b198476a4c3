package webhook

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
)

// This file decides what a sender is answered; the three functions at its end write the answer.
//
// 2xx means that the sender need not send the delivery again: its event is committed, or unwanted. That includes an
// event whose handler failed, because the inbox has the event and retries it. Asking the sender to send it again would
// only make duplicates, and providers disable endpoints that fail.

// statusOf returns the answer for a delivery with this outcome, or with this error if there is none.
func statusOf(out inbox.Outcome, err error) int {
	if err != nil {
		return http.StatusServiceUnavailable // In progress, full, unknown, or no database: the next attempt will tell.
	}
	switch out {
	case inbox.Stored, inbox.Retrying:
		return http.StatusAccepted
	case inbox.Conflict:
		return http.StatusConflict // Sending it again would not help: the id is taken, and a dead letter has this event.
	default: // Handled, Duplicate, Skipped, Dead
		return http.StatusOK
	}
}

// statusOfRefusal returns the answer to a refused request.
func statusOfRefusal(reason Reason) int {
	switch reason {
	case reasonMethod:
		return http.StatusMethodNotAllowed
	case reasonEncoding:
		return http.StatusUnsupportedMediaType
	case reasonSize:
		return http.StatusRequestEntityTooLarge
	case reasonBroken, ReasonContent:
		return http.StatusBadRequest
	default:
		return http.StatusUnauthorized
	}
}

// classOfRefusal returns the class of a refusal, for the log.
func classOfRefusal(status int) retry.Class {
	if status == http.StatusUnauthorized {
		return retry.Auth
	}
	return retry.Validation
}

// writeAnswer answers a delivery.
func writeAnswer(w http.ResponseWriter, status int, retryAfter time.Duration) {
	if status >= 300 {
		writeProblem(w, status, retryAfter)
		return
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(status)
}

// writeProblem answers with a status and its name only. An attacker who forges requests learns nothing about the
// reason.
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
		panic(err) // two strings and a number always encode
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// writeHandshake returns the text that the provider asked for, in a form that no browser interprets.
func writeHandshake(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text)
}
