package schemaregistry

import (
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/holdfast-go/holdfast"
)

// This file is Confluent's wire format. It is pure: values in, values out.

// maxIndexes is how deep a message may be nested in others.
const maxIndexes = 32

var header sr.ConfluentHeader

// framed puts the header before data.
func framed(id int, indexes []int, data []byte) ([]byte, error) {
	payload, err := header.AppendEncode(make([]byte, 0, len(data)+6+len(indexes)), id, indexes)
	if err != nil {
		return nil, err
	}
	return append(payload, data...), nil
}

// unframed takes the id off a payload.
func unframed(payload []byte) (id int, data []byte, err error) {
	id, data, err = header.DecodeID(payload)
	if err != nil {
		return 0, nil, &holdfast.PayloadError{Problem: "it does not begin with the header of a schema registry: a zero byte and four bytes of an id", Err: err}
	}
	return id, data, nil
}

// unindexed takes the message indexes off the data of a Protobuf payload.
func unindexed(data []byte) (indexes []int, message []byte, err error) {
	indexes, message, err = header.DecodeIndex(data, maxIndexes)
	if err != nil {
		return nil, nil, &holdfast.PayloadError{Problem: "its message indexes cannot be read", Err: err}
	}
	return indexes, message, nil
}

// subjectOf is the subject of an event's schema: the one that is set, or that of the topic.
func subjectOf(set string, e holdfast.Event) string {
	if set != "" {
		return set
	}
	return e.Topic + "-value"
}

// contentType is an event with a content type, unless it has one.
func contentType(e holdfast.Event, value string) holdfast.Event {
	headers := make(map[string]string, len(e.Headers)+1)
	headers[holdfast.HeaderContentType] = value
	for name, value := range e.Headers {
		headers[name] = value
	}
	e.Headers = headers
	return e
}
