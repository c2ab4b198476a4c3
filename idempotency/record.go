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
)

// recorder collects a handler's answer: nothing of it leaves before the transaction has committed. It has neither Flush
// nor Hijack, and http.ResponseController says so. What comes after the handler's return, from a goroutine that it left
// behind, is no part of the answer.
type recorder struct {
	to     http.ResponseWriter
	outer  http.Header // what was said outside before the handler ran
	header http.Header

	mu     sync.Mutex
	over   bool        // the handler has returned
	status int         // 0 until it is written
	sent   http.Header // header as it was then
	body   bytes.Buffer
}

func newRecorder(w http.ResponseWriter) *recorder {
	return &recorder{to: w, outer: w.Header().Clone(), header: w.Header().Clone()}
}

func (rec *recorder) Header() http.Header {
	if rec.header == nil {
		rec.header = http.Header{}
	}
	return rec.header
}

// errOver is what a goroutine gets that goes on writing.
var errOver = errors.New("the handler has returned, and its answer with it")

func (rec *recorder) WriteHeader(status int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.writeHeader(status)
}

func (rec *recorder) writeHeader(status int) {
	switch {
	case rec.status != 0 || rec.over:
		return
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols: // On its way at once, and not part of the answer.
		h := rec.to.Header()
		before := h.Clone()
		maps.Copy(h, rec.header)
		rec.to.WriteHeader(status)
		clear(h) // The answer may become another one.
		maps.Copy(h, before)
		return
	case status < 200 || status > 999:
		panic("idempotency: the handler wrote status " + strconv.Itoa(status) + ", which a stored answer cannot have")
	}
	rec.status, rec.sent = status, rec.Header().Clone()
}

func (rec *recorder) Write(p []byte) (int, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.over {
		return 0, errOver
	}
	if rec.status == 0 {
		rec.writeHeader(http.StatusOK)
	}
	if bodyless(rec.status) {
		return 0, http.ErrBodyNotAllowed
	}
	return rec.body.Write(p)
}

// done ends the collecting.
func (rec *recorder) done() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.status == 0 {
		rec.writeHeader(http.StatusOK)
	}
	rec.over = true
}

// answer is what of it is stored. What was said outside, and not said otherwise by the handler, is said anew for a replay:
// a compressor's Content-Encoding is true of its own answer alone.
func (rec *recorder) answer(more []string) StoredAnswer {
	a := StoredAnswer{Status: rec.status, Header: http.Header{}, Body: bytes.Clone(rec.body.Bytes())}
	for _, name := range slices.Concat(replayHeaders, more) {
		name = textproto.CanonicalMIMEHeaderKey(name)
		outer, outside := rec.outer[name]
		if values, said := rec.sent[name]; said && !(outside && slices.Equal(values, outer)) {
			a.Header[name] = append([]string{}, values...) // An empty Content-Type keeps net/http from guessing one.
		}
	}
	return a
}

// send lets the answer go, with headers of ours.
func (rec *recorder) send(ours http.Header) {
	h := rec.to.Header()
	clear(h)
	maps.Copy(h, rec.sent)
	maps.Copy(h, ours)
	if !bodyless(rec.status) {
		h.Set("Content-Length", strconv.Itoa(rec.body.Len()))
	}
	rec.to.WriteHeader(rec.status)
	_, _ = rec.to.Write(rec.body.Bytes()) // The client is gone: a repeat will get it.
}

// maxReference is how many bytes of what an operation brought about are noted.
const maxReference = 1024

// reference is what of it a text column can hold: a note must not cost the effect.
func reference(ref string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == utf8.RuneError { // also what the cut left of a character
			return '?'
		}
		return c
	}, ref[:min(len(ref), maxReference)])
}

// hashOf a body, kept beside it.
func hashOf(body []byte) []byte {
	hash := sha256.Sum256(body)
	return hash[:]
}
