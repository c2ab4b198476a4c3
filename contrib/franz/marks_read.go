package franz

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/holdfast-go/holdfast/inbox/source"
)

const (
	// markTail is how many offsets before the end the last mark is looked for at first, then eight times as many, and so on. The lane's
	// last transaction is near the end, whatever compaction has left of those before.
	markTail = 64

	// markBytes bounds what a fetch of marks may unpack to.
	markBytes = 256 << 20
)

// marks are the topic of marks.
type marks struct {
	topic   string
	topics  *topics
	fetcher *fetcher
}

// last reads the last mark that is committed under a key; nil for none. Call it once whoever wrote it before is fenced: then all that it
// has committed lies before the end. It waits for transactions of other lanes that are open in the same partition.
func (m *marks) last(ctx context.Context, partition int, key string) (*mark, error) {
	at := place{m.topic, partition}
	leader, id, err := m.leaderOf(ctx, partition)
	if err != nil {
		return nil, err
	}
	first, end, err := boundsOf(ctx, m.fetcher.client, leader, at)
	if err != nil {
		return nil, m.failed(partition, "ask for the end of the marks", err)
	}
	for tail := int64(markTail); ; tail *= 8 {
		from := max(first, end-tail)
		values, err := m.values(ctx, leader, &want{
			place: at,
			id:    id,
			size:  fetchBytes,
		}, from, end, key)
		if err != nil {
			return nil, err
		}
		found, whole, err := lastMark(values)
		if err != nil {
			return nil, err
		}
		if found != nil && whole || from == first {
			if found != nil && !whole {
				return nil, errNoMark
			}
			return found, nil
		}
	}
}

// values are those of the committed records of a key between two offsets.
func (m *marks) values(ctx context.Context, leader int32, w *want, from, end int64, key string) (values [][]byte, err error) {
	for offset := from; offset < end; {
		w := &want{place: w.place, id: w.id, size: w.size, offset: offset}
		p, err := m.fetcher.ask(ctx, leader, w)
		if err == nil {
			err = kerr.ErrorForCode(p.ErrorCode)
		}
		if err != nil {
			return nil, m.failed(w.partition, "read the marks", err)
		}
		records, next, err := unpacked(p, source.TopicPartition{Topic: w.topic, Partition: w.partition}, offset, markBytes, true)
		if err != nil {
			return nil, m.failed(w.partition, "read the marks", err)
		}
		for _, r := range records {
			if string(r.Key) == key && r.Offset < end {
				values = append(values, r.Value)
			}
		}
		offset = max(next, offset) // It stays where it is while a transaction is open there. A fetch waits a while for that.
		if ctx.Err() != nil {
			return nil, m.failed(w.partition, "wait for the transactions of other lanes", ctx.Err())
		}
	}
	return values, nil
}

func (m *marks) leaderOf(ctx context.Context, partition int) (leader int32, id [16]byte, err error) {
	t := m.topics.at(ctx, place{m.topic, partition})
	switch {
	case t.err != nil:
		return 0, id, m.failed(partition, "look for the marks topic", t.err.Err)
	case partition >= len(t.info.leaders):
		return 0, id, m.failed(partition, "look for the marks topic", fmt.Errorf("it has %d partitions and lane %d needs its own: add partitions", len(t.info.leaders), partition))
	case t.info.leaders[partition] < 0:
		return 0, id, m.failed(partition, "look for the marks topic", kerr.LeaderNotAvailable)
	}
	return t.info.leaders[partition], t.info.id, nil
}

func (m *marks) failed(partition int, what string, err error) error {
	m.topics.expire(place{m.topic, partition})
	return fmt.Errorf("%s (%s): %w", what, m.topic, err)
}
