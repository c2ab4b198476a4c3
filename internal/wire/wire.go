// Package wire says how an event travels in a Kafka record: the CloudEvents 1.0 Kafka binding in binary mode.
//
//	record key      Event.Key, null when empty; the bytes that it stands for where it is the text of others (RecordKey)
//	record value    Event.Payload, null for a tombstone
//	ce_specversion  "1.0"
//	ce_id           Event.ID
//	ce_source       Event.Source; NoSource when empty, since CloudEvents has no empty source
//	ce_type         Event.Type
//	ce_time         Event.Time, RFC 3339 in UTC to the microsecond, left out when it is not known
//	ce_subject      Event.Key, left out when empty; the header ce_subject that came with a foreign event goes before it
//	ce_dataschema   the header "dataschema"
//	anything else   Event.Headers as they are, traceparent and content-type included, in the order of their names
//
// The relay writes with Append, the inbox reads with Read; neither imports the other. The package knows no Kafka
// client, so another client needs no change here.
package wire

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// The names of the headers that carry an event's identity. Consumers in every language rely on them: changing one breaks
// the wire, not the code.
const (
	HeaderSpecVersion = "ce_specversion"
	HeaderID          = "ce_id"
	HeaderSource      = "ce_source"
	HeaderType        = "ce_type"
	HeaderTime        = "ce_time"
	HeaderSubject     = "ce_subject"
	headerDataSchema  = "ce_dataschema"
)

// NoSource stands for the empty source in a record. It is read as the empty source again, so that what an event is recognised by does not
// depend on it.
const NoSource = "urn:holdfast:unnamed"

// timeLayout keeps the six digits that Postgres keeps, so that an event is read with the time with which it was written.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// specVersion is shared by every record; nobody writes to it.
var specVersion = []byte("1.0")

// Header is one header of a record. It has the same fields as the header types of the Kafka clients, so that Headers
// and Append can fill theirs without a copy.
type Header struct {
	Key   string
	Value []byte
}

// header is any client's header type.
type header interface {
	~struct {
		Key   string
		Value []byte
	}
}

// Headers appends e's headers to dst. It allocates once, for the values. A user's header with one of the five
// names above is left out: nothing may change an event's identity on the way.
func Headers[H header](dst []H, e holdfast.Event) []H {
	dst, _ = Append(dst, nil, e)
	return dst
}

// Append is Headers with memory that the caller provides: it appends the values to scratch and returns that for the next
// record. The headers are valid until scratch is written again. If dst and scratch have room, nothing is allocated, as the
// relay's hot path needs.
func Append[H header](dst []H, scratch []byte, e holdfast.Event) ([]H, []byte) {
	if scratch == nil {
		scratch = make([]byte, 0, valuesSize(e))
	}
	add := func(key, value string) {
		from := len(scratch)
		scratch = append(scratch, value...)
		// The capacity is cut too: appending to one value must not overwrite the next. An empty one is empty, not null.
		dst = append(dst, H{Key: key, Value: scratch[from:len(scratch):len(scratch)]})
	}

	dst = append(dst, H{Key: HeaderSpecVersion, Value: specVersion})
	add(HeaderID, e.ID)
	if e.Source != "" {
		add(HeaderSource, e.Source)
	} else {
		add(HeaderSource, NoSource)
	}
	add(HeaderType, e.Type)
	if writable(e.Time) {
		from := len(scratch)
		scratch = appendTime(scratch, e.Time)
		dst = append(dst, H{Key: HeaderTime, Value: scratch[from:len(scratch):len(scratch)]})
	}

	if _, has := e.Headers[HeaderSubject]; e.Key != "" && !has {
		add(HeaderSubject, e.Key)
	}

	if len(e.Headers) == 0 {
		return dst, scratch
	}
	_, named := e.Headers[headerDataSchema]
	// In the order of their names, so that the same event is the same bytes on every attempt.
	var few [16]string
	names := few[:0]
	for name := range e.Headers {
		if !identity(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		as := name
		if name == holdfast.HeaderDataSchema && !named {
			as = headerDataSchema
		}
		add(as, e.Headers[name])
	}
	return dst, scratch
}

// Size is the most bytes that e's headers take in a record of format 2: names, values and framing.
func Size(e holdfast.Event) int {
	// The two lengths are varints: a name up to 8,191 bytes takes two, a value up to 128 MiB four.
	const frame = 6
	n := len(HeaderSpecVersion) + len(HeaderID) + len(HeaderSource) + len(HeaderType) + len(HeaderTime) + len(HeaderSubject) + 6*frame
	n += len(specVersion) + len(timeLayout) + len(e.ID) + max(len(e.Source), len(NoSource)) + len(e.Type) + len(e.Key)
	n += len(headerDataSchema) - len(holdfast.HeaderDataSchema)
	for name, value := range e.Headers {
		n += len(name) + len(value) + frame
	}
	return n
}

// Parse reads a record back into an event. It is made for topics to which others write as well. A missing header
// leaves its field empty. A ce_time that is missing or cannot be read is replaced by at, the record's own time. Of two
// headers with one name the last counts. Values need not be UTF-8; code that stores them must check. Payload is value
// itself, not a copy: nil stays nil, a tombstone, and empty stays empty. A ce_subject that is not the key, and other ce_ headers, the
// extension attributes of a foreign producer, stay among Headers.
//
// The only error is an empty topic, a mistake of the caller. Every record can be read.
func Parse[H header](topic string, key, value []byte, headers []H, at time.Time) (holdfast.Event, error) {
	if topic == "" {
		return holdfast.Event{}, errors.New("read record: its topic is empty")
	}
	e := holdfast.Event{Topic: topic, Key: string(key), Payload: value, Time: at}
	for _, theirs := range headers {
		switch h := Header(theirs); h.Key {
		case HeaderSpecVersion:
			// 0.2, 0.3 and 1.0 have the same names for what we read. We do not guess what a later version may mean.
		case HeaderID:
			e.ID = string(h.Value)
		case HeaderSource:
			if e.Source = string(h.Value); e.Source == NoSource {
				e.Source = ""
			}
		case HeaderType:
			e.Type = string(h.Value)
		case HeaderTime:
			e.Time = parseTime(h.Value, at)
		default:
			if e.Headers == nil {
				e.Headers = make(map[string]string, len(headers))
			}
			e.Headers[h.Key] = string(h.Value)
		}
	}
	if e.Headers != nil {
		named(&e)
	}
	return e, nil
}

// Read is Parse for what is to be a consumer's event: a key that is no text becomes text (EventKey).
func Read[H header](topic string, key, value []byte, headers []H, at time.Time) (holdfast.Event, error) {
	e, err := Parse(topic, key, value, headers, at)
	if e.Key = EventKey(key); e.Headers != nil {
		named(&e) // The subject is the text.
	}
	return e, err
}

// named takes the headers that say what the event says already, and gives its name to the data's schema.
func named(e *holdfast.Event) {
	if subject, has := e.Headers[HeaderSubject]; has && subject == e.Key && e.Key != "" {
		delete(e.Headers, HeaderSubject)
	}
	if schema, has := e.Headers[headerDataSchema]; has {
		if _, taken := e.Headers[holdfast.HeaderDataSchema]; !taken {
			delete(e.Headers, headerDataSchema)
			e.Headers[holdfast.HeaderDataSchema] = schema
		}
	}
	if len(e.Headers) == 0 {
		e.Headers = nil
	}
}

// Reserved says whether a user's header must not have this name: "ce_" is CloudEvents', "hf_" and HeaderEncryption are ours, in
// upper and lower case. content-type stays the user's, because only they know what their payload is.
func Reserved(name string) bool {
	return len(name) >= 3 && (strings.EqualFold(name[:3], "ce_") || strings.EqualFold(name[:3], "hf_")) || strings.EqualFold(name, HeaderEncryption)
}

// identity says whether name is one of the headers that Append writes itself.
func identity(name string) bool {
	switch name {
	case HeaderSpecVersion, HeaderID, HeaderSource, HeaderType, HeaderTime:
		return true
	}
	return false
}

// valuesSize is how many bytes Append adds to its scratch.
func valuesSize(e holdfast.Event) int {
	n := len(e.ID) + max(len(e.Source), len(NoSource)) + len(e.Type) + len(timeLayout) + len(e.Key)
	for _, value := range e.Headers {
		n += len(value)
	}
	return n
}

// writable says whether RFC 3339 can express t: it has four digits for a year.
func writable(t time.Time) bool {
	if t.IsZero() {
		return false
	}
	year := t.UTC().Year()
	return year >= 0 && year <= 9999
}

// appendTime writes t as timeLayout does, in a third of the time. It runs once for every event that is published.
func appendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	b = digits(b, year, 4)
	b = digits(b, int(month), 2, '-')
	b = digits(b, day, 2, '-')
	b = digits(b, hour, 2, 'T')
	b = digits(b, minute, 2, ':')
	b = digits(b, second, 2, ':')
	b = digits(b, t.Nanosecond()/1000, 6, '.')
	return append(b, 'Z')
}

// digits appends before and then n in width digits.
func digits(b []byte, n, width int, before ...byte) []byte {
	b = append(b, before...)
	end := len(b) + width
	b = append(b, "000000"[:width]...)
	for i := end - 1; n > 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return b
}

// parseTime reads RFC 3339 with any number of digits and any zone, since other producers choose theirs, and keeps the
// microseconds. Anything else is at.
func parseTime(value []byte, at time.Time) time.Time {
	t, err := time.Parse(time.RFC3339Nano, string(value))
	if err != nil {
		return at
	}
	return t.UTC().Truncate(time.Microsecond)
}
