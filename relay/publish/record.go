package publish

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Record is an event as a broker carries it: the binary mode of the CloudEvents 1.0 binding for Kafka, which the inbox
// reads.
type Record struct {
	Key     []byte // nil for an event without a key; the bytes that a key "data:;base64,…" stands for (inbox.KeyBytes)
	Value   []byte // nil for a tombstone; not a copy
	Headers []Header
}

// Header is a header of a record.
type Header struct {
	Key   string
	Value []byte
}

// RecordOf returns the record that a Publisher writes for e. The headers are ce_specversion, ce_id, ce_source
// ("urn:holdfast:unnamed" for an event without a Source), ce_type, ce_time, ce_subject (the key) and ce_dataschema where the event has
// them, and then the event's own in the order of their names. It may be called from many goroutines.
func RecordOf(e holdfast.Event) Record {
	r := Record{Value: e.Payload, Headers: wire.Headers([]Header(nil), e)}
	if e.Key != "" {
		r.Key = []byte(wire.RecordKey(e.Key))
	}
	return r
}
