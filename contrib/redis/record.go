package redisstore

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/store"
)

// This file defines how keys and answers are written in Redis, without client, clock or context.

// shownOperation is the length in bytes of the operation in a name.
const shownOperation = 64

// nameOf is the name of a key in Redis. It shows the operation for people who look; only the hash distinguishes names.
func nameOf(prefix string, k store.Key) string {
	h := sha256.New()
	for _, part := range []string{k.Scope, k.Operation, k.Key} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	return prefix + shown(k.Operation) + ":" + hex.EncodeToString(h.Sum(nil))
}

// shown is an operation without characters that have a meaning. Braces choose the slot of a cluster: "POST
// /charges/{id}" would put all its keys into one. Colons, stars and control characters mislead patterns and terminals.
func shown(operation string) string {
	plain := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '/', c == '.', c == '-':
			return c
		}
		return '_'
	}, operation)
	return plain[:min(len(plain), shownOperation)]
}

// headersText encodes an answer's headers as JSON, with values in base64, because they may have any byte.
func headersText(h http.Header) (string, error) {
	lines := make(map[string][][]byte, len(h))
	for name, values := range h {
		lines[name] = make([][]byte, len(values))
		for i, value := range values {
			lines[name][i] = []byte(value)
		}
	}
	text, err := json.Marshal(lines)
	return string(text), err
}

// headersOf is the reverse of headersText.
func headersOf(text string) (http.Header, error) {
	var lines map[string][][]byte
	if err := json.Unmarshal([]byte(text), &lines); err != nil {
		return nil, err
	}
	h := make(http.Header, len(lines))
	for name, values := range lines {
		h[name] = make([]string, len(values))
		for i, value := range values {
			h[name][i] = string(value)
		}
	}
	return h, nil
}

// claimedOf reads the answer of claimScript. An error means that it cannot be read.
func claimedOf(reply []any) (store.Claimed, error) {
	var c store.Claimed
	words := make([]string, len(reply))
	for i, word := range reply {
		var ok bool
		if words[i], ok = word.(string); !ok {
			return c, fmt.Errorf("field %d of %d is missing", i, len(reply))
		}
	}
	switch {
	case len(words) == 3 && words[0] == "mine":
		fence, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return c, fmt.Errorf("read fence: %w", err)
		}
		attempt, err := strconv.Atoi(words[2])
		if err != nil {
			return c, fmt.Errorf("read attempt: %w", err)
		}
		return store.Claimed{Mine: true, Fence: fence, Attempt: attempt}, nil
	case len(words) == 2 && words[0] == "busy":
		return store.Claimed{Fingerprint: []byte(words[1])}, nil
	case len(words) == 9 && words[0] == "done":
		return doneOf(words[1:])
	}
	return c, fmt.Errorf("this version cannot read it: %.40q", words)
}

// doneOf reads an answer: fingerprint, expires_at, status, headers, body, body_hash, omitted, result_ref.
func doneOf(words []string) (store.Claimed, error) {
	var c store.Claimed
	micros, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		return c, fmt.Errorf("read expiry: %w", err)
	}
	a := &store.Answer{
		Body:      []byte(words[4]),
		BodyHash:  []byte(words[5]),
		ResultRef: words[7],
	}
	if a.Status, err = strconv.Atoi(words[2]); err != nil {
		return c, fmt.Errorf("read status: %w", err)
	}
	if a.Header, err = headersOf(words[3]); err != nil {
		return c, fmt.Errorf("read headers: %w", err)
	}
	if a.Omitted, err = strconv.ParseBool(words[6]); err != nil {
		return c, fmt.Errorf("read omitted: %w", err)
	}
	if a.Omitted {
		a.Body = nil
	}
	c.Fingerprint, c.Answer, c.ExpiresAt = []byte(words[0]), a, time.UnixMicro(micros)
	return c, nil
}
