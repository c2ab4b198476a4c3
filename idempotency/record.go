package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/idempotency/store"
)

// recorder collects a handler's answer. Nothing of it is sent before the transaction has committed. It has neither
// Flush nor Hijack, and http.ResponseController reports that. What a goroutine writes after the handler has returned is
// not part of the answer.
type recorder struct {
	to     http.ResponseWriter
	outer  http.Header // headers that were set before the handler ran
	header http.Header

	mu     sync.Mutex
	over   bool        // the handler has returned
	gone   bool        // it has panicked: what is written from now on is not ours
	status int         // 0 until it is written
	sent   http.Header // the header at that moment
	body   bytes.Buffer

	most    int64 // bytes of body
	tooLong bool  // the handler wrote more: there is no answer
}

func newRecorder(w http.ResponseWriter, most int64) *recorder {
	return &recorder{to: w, most: most, outer: w.Header().Clone(), header: w.Header().Clone()}
}

func (rec *recorder) Header() http.Header {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.gone {
		return rec.to.Header()
	}
	if rec.header == nil {
		rec.header = http.Header{}
	}
	return rec.header
}

// errOver is the error of a write after the handler has returned.
var errOver = errors.New("the handler has returned: its answer is complete")

func (rec *recorder) WriteHeader(status int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.gone {
		rec.to.WriteHeader(status)
		return
	}
	rec.writeHeader(status)
}

func (rec *recorder) writeHeader(status int) {
	switch {
	case rec.status != 0 || rec.over:
		return
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols: // Sent at once, and not part of the answer.
		h := rec.to.Header()
		before := h.Clone()
		maps.Copy(h, rec.header)
		rec.to.WriteHeader(status)
		clear(h) // The answer may still be replaced.
		maps.Copy(h, before)
		return
	case status < 200 || status > 999:
		panic("idempotency: the handler wrote status " + strconv.Itoa(status) + ", which a stored answer cannot have")
	}
	rec.status, rec.sent = status, rec.header.Clone()
}

func (rec *recorder) Write(p []byte) (int, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.gone {
		return rec.to.Write(p)
	}
	if rec.over {
		return 0, errOver
	}
	if rec.status == 0 {
		rec.writeHeader(http.StatusOK)
	}
	if bodyless(rec.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if rec.tooLong || int64(rec.body.Len())+int64(len(p)) > rec.most {
		rec.tooLong = true
		rec.body = bytes.Buffer{}
		return 0, errTooLong
	}
	return rec.body.Write(p)
}

// errTooLong is the error of a write that makes an answer longer than Config.MaxAnswer.
var errTooLong = errors.New("the answer is longer than idempotency.Config.MaxAnswer: it is held in memory until the transaction commits")

// done ends the collecting. It returns false if the handler wrote no answer. Outside this package net/http would make that
// an empty 200. But handlers also return without a word when their context has ended, and where code around the guard
// writes their errors.
func (rec *recorder) done() (given bool) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.over = true
	if rec.tooLong {
		rec.status = 0
	}
	return rec.status != 0
}

// leave lets what recovers from the handler's panic answer, even if the router gave it this writer.
func (rec *recorder) leave() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.gone = true
}

// answer returns what is stored of the answer. Headers that code before the guard set, and the handler did not change,
// are left out: each replay gets its own. A compressor's Content-Encoding is true of one answer only.
func (rec *recorder) answer(more []string) store.Answer {
	a := store.Answer{
		Status: rec.status,
		Header: http.Header{},
		Body:   bytes.Clone(rec.body.Bytes()),
	}
	for _, name := range slices.Concat(replayHeaders, more) {
		name = textproto.CanonicalMIMEHeaderKey(name)
		outer, outside := rec.outer[name]
		if values, said := rec.sent[name]; said && !(outside && slices.Equal(values, outer)) {
			a.Header[name] = append([]string{}, values...) // keep an empty Content-Type: it stops net/http from guessing
		}
	}
	return a
}

// send sends the answer, with the headers that this package adds.
func (rec *recorder) send(ours http.Header) {
	h := rec.to.Header()
	clear(h)
	maps.Copy(h, rec.sent)
	maps.Copy(h, ours)
	if !bodyless(rec.status) {
		h.Set("Content-Length", strconv.Itoa(rec.body.Len()))
	}
	rec.to.WriteHeader(rec.status)
	_, _ = rec.to.Write(rec.body.Bytes()) // On an error the client is gone; a repeat gets the answer.
}

// maxReference is the maximum length of a stored reference in bytes.
const maxReference = 1024

// reference returns the part of ref that a text column can hold. A note must not make the operation fail.
func reference(ref string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == utf8.RuneError { // also a character that was cut in two
			return '?'
		}
		return c
	}, ref[:min(len(ref), maxReference)])
}

// hashOf is the hash that is stored with a body.
func hashOf(body []byte) []byte {
	hash := sha256.Sum256(body)
	return hash[:]
}
