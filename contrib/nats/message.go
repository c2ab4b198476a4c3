package natsjs

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// This file puts records into NATS messages and reads them back: the binary mode of the CloudEvents binding for NATS, in which an
// attribute is a header ce-… with percent-encoded value. It is pure: values in, values out.

const (
	headerKey       = "hf-key"       // the record's key; left out for a record without one
	headerTombstone = "hf-tombstone" // there is no value; NATS has no difference between none and an empty one
)

// MessageOf returns the message that a Publisher writes for a record (publish.RecordOf), without its Nats-Msg-Id: for a producer that has no
// outbox. The data is the record's value, not a copy.
func MessageOf(subject string, r publish.Record) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = r.Value
	for _, h := range r.Headers {
		name := nameOut(h.Key)
		m.Header[name] = append(m.Header[name], escape(string(h.Value)))
	}
	if r.Key != nil {
		m.Header[headerKey] = []string{escape(string(r.Key))}
	}
	if r.Value == nil {
		m.Header[headerTombstone] = []string{"1"}
	}
	return m
}

// RecordOf returns the record in a message, without offset and time: for a reader that has no inbox. Headers come in any order, those of
// one name in theirs. The value is data, not a copy.
func RecordOf(header nats.Header, data []byte) source.Record {
	return recordOf(header, data, 0, time.Time{})
}

// recordOf returns the record of a message. Headers come in the order of a map, those of one name in theirs.
func recordOf(header nats.Header, data []byte, offset int64, at time.Time) source.Record {
	r := source.Record{Offset: offset, Value: data, Time: at}
	if r.Value == nil {
		r.Value = []byte{}
	}
	for name, values := range header {
		switch {
		case name == headerKey:
			r.Key = []byte(unescape(values[0]))
			continue
		case name == headerTombstone:
			r.Value = nil
			continue
		}
		name, ours := nameIn(name)
		if !ours {
			continue
		}
		for _, v := range values {
			r.Headers = append(r.Headers, source.Header{Key: name, Value: []byte(unescape(v))})
		}
	}
	return r
}

// reserved are the beginnings of header names that mean something to NATS, CloudEvents or us. An event's header that begins so gets "hf-"
// in front: otherwise a producer's header Nats-Rollup would delete a partition.
var reserved = []string{"nats-", "ce-", "hf-"}

// nameOut is a header's name in NATS. CloudEvents says ce_ for Kafka and ce- for NATS.
func nameOut(name string) string {
	if rest, attribute := strings.CutPrefix(name, "ce_"); attribute {
		return "ce-" + rest
	}
	for _, t := range reserved {
		if len(name) >= len(t) && strings.EqualFold(name[:len(t)], t) {
			return "hf-" + name
		}
	}
	return name
}

// nameIn is the name that nameOut was given. It is false for what the server put there.
func nameIn(name string) (string, bool) {
	lower := strings.ToLower(name)
	switch {
	case strings.HasPrefix(lower, "nats-"):
		return "", false
	case strings.HasPrefix(lower, "ce-"):
		return "ce_" + lower[len("ce-"):], true
	case strings.HasPrefix(lower, "hf-"):
		return name[len("hf-"):], true
	}
	return name, true
}

const digits = "0123456789ABCDEF"

// escape percent-encodes what a header cannot carry: controls, what is not ASCII, "%", and blanks at the ends.
func escape(s string) string {
	bad := func(i int) bool {
		return s[i] < ' ' || s[i] > '~' || s[i] == '%' || s[i] == ' ' && (i == 0 || i == len(s)-1)
	}
	n := 0
	for i := range len(s) {
		if bad(i) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if bad(i) {
			b = append(b, '%', digits[s[i]>>4], digits[s[i]&15])
		} else {
			b = append(b, s[i])
		}
	}
	return string(b)
}

// unescape undoes escape. A "%" that begins no code stays: a producer of its own may not encode.
func unescape(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b = append(b, c[0])
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

// messageID is an event's Nats-Msg-Id: its id, readable if that can be, and a hash of all that is in its record. Two sources may use the
// same id. And an event under an id that another one has must reach the inbox, which makes it a dead letter; the server would drop it
// in silence.
func messageID(e holdfast.Event) string {
	h := sha256.New()
	add := func(part []byte) {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(part))))
		_, _ = h.Write(part)
	}
	r := publish.RecordOf(e)
	add([]byte{byte(len(r.Headers)), byte(len(r.Headers) >> 8)})
	for _, header := range r.Headers { // in the same order each time
		add([]byte(header.Key))
		add(header.Value)
	}
	add(r.Key)
	if r.Value == nil {
		_, _ = h.Write([]byte{0})
	}
	add(r.Value)
	sum := hex.EncodeToString(h.Sum(nil)[:16])
	for i := range len(e.ID) {
		if e.ID[i] <= ' ' || e.ID[i] > '~' {
			return sum
		}
	}
	if len(e.ID) > 64 {
		return sum
	}
	return e.ID + "-" + sum
}
