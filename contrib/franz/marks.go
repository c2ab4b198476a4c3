package franz

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// This file decides what stands in a mark. It knows no clock, client or broker.
//
// A mark is written in every transaction of a lane, beside its events. It names all events that the lane has committed and that its
// relay may not have saved in Postgres: those of this transaction, and of the ones before. So the last mark that is committed is all that
// the next owner has to read.

// eventHash is what a mark names an event by. Names may be long, and a mark may have thousands.
type eventHash [16]byte

func hashOf(n publish.EventName) eventHash {
	b := make([]byte, 0, 128)
	for _, part := range [...]string{n.Source, n.ID, n.Topic} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return eventHash(sum[:16])
}

// mark is what is committed and may not be saved, after a transaction.
type mark struct {
	epoch  int64 // of the claim of the lane
	number int64 // of the transaction, from 1 on in each epoch
	events []eventHash
}

// endsWith says whether some events are the last that a mark names: those of its own transaction.
func (m *mark) endsWith(events []eventHash) bool {
	n := len(m.events) - len(events)
	return n >= 0 && slices.Equal(m.events[n:], events)
}

const (
	markVersion = 1
	markHeader  = 1 + 8 + 8 + 4 + 4
	partMost    = 24_000 // events in a record: Kafka's default limit of a message is 1 MiB
)

// records are the values of the records that a mark is written as: one, unless it has very many events.
func (m mark) records() [][]byte {
	parts := max(1, (len(m.events)+partMost-1)/partMost)
	values := make([][]byte, parts)
	for i := range values {
		events := m.events[i*partMost : min((i+1)*partMost, len(m.events))]
		b := make([]byte, 0, markHeader+len(events)*len(eventHash{}))
		b = append(b, markVersion)
		b = binary.BigEndian.AppendUint64(b, uint64(m.epoch))
		b = binary.BigEndian.AppendUint64(b, uint64(m.number))
		b = binary.BigEndian.AppendUint32(b, uint32(i))
		b = binary.BigEndian.AppendUint32(b, uint32(parts))
		for _, e := range events {
			b = append(b, e[:]...)
		}
		values[i] = b
	}
	return values
}

// markPart is a record of a mark.
type markPart struct {
	mark
	part, parts int
}

var errNoMark = errors.New("a record of the marks topic is none of a mark: use the topic for nothing else")

func parsePart(value []byte) (markPart, error) {
	const size = len(eventHash{})
	switch {
	case len(value) > 0 && value[0] != markVersion:
		return markPart{}, fmt.Errorf("a mark has version %d, and this build knows %d: run a newer build", value[0], markVersion)
	case len(value) < markHeader || (len(value)-markHeader)%size != 0:
		return markPart{}, errNoMark
	}
	p := markPart{
		mark:  mark{epoch: int64(binary.BigEndian.Uint64(value[1:])), number: int64(binary.BigEndian.Uint64(value[9:]))},
		part:  int(binary.BigEndian.Uint32(value[17:])),
		parts: int(binary.BigEndian.Uint32(value[21:])),
	}
	if p.part >= p.parts {
		return markPart{}, errNoMark
	}
	for rest := value[markHeader:]; len(rest) > 0; rest = rest[size:] {
		p.events = append(p.events, eventHash(rest[:size]))
	}
	return p, nil
}

// lastMark is the last mark of a lane among the last records of its key, in their order; nil if there is none. whole is false if some of
// its records lie before those given.
func lastMark(values [][]byte) (m *mark, whole bool, err error) {
	for i := len(values) - 1; i >= 0; i-- {
		p, err := parsePart(values[i])
		switch {
		case err != nil:
			return nil, false, err
		case m == nil && p.part == p.parts-1:
			m = &mark{epoch: p.epoch, number: p.number}
		case m == nil || p.epoch != m.epoch || p.number != m.number:
			return nil, false, errNoMark
		}
		m.events = slices.Concat(p.events, m.events)
		if p.part == 0 {
			return m, true, nil
		}
	}
	return m, m == nil, nil
}
