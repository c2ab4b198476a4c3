package relay

import (
	"strings"

	"github.com/holdfast-go/holdfast/internal/private"
)

// rowKeys names rows, or queues, as arrays for a statement.
type rowKeys struct {
	topics, keys []string
	places       []int64
	queues       map[queue]bool // that addQueue has added
}

func (k *rowKeys) add(p *pending) {
	k.topics, k.keys, k.places = append(k.topics, p.item.queue.topic), append(k.keys, p.item.queue.key), append(k.places, p.row.place)
}

func (k *rowKeys) addKey(key rowKey) {
	k.topics, k.keys, k.places = append(k.topics, key.topic), append(k.keys, key.key), append(k.places, key.place)
}

// addQueue adds a queue whose events wait for each other, unless it is there.
func (k *rowKeys) addQueue(q queue) {
	if !q.ordered() || k.queues[q] {
		return
	}
	if k.queues == nil {
		k.queues = map[queue]bool{}
	}
	k.queues[q] = true
	k.topics, k.keys = append(k.topics, q.topic), append(k.keys, q.key)
}

// reason is one line that says why an event was given up.
func reason(err error) string {
	line, _, _ := strings.Cut(private.Text(err), "\n")
	if len(line) > 300 {
		line = line[:300]
	}
	return toValidText(line)
}

// fingerprint is equal for dead letters of one kind of failure: the type of event and the words of the error that are no values.
func fingerprint(eventType string, err error) string {
	return eventType + ": " + private.Kind(reason(err))
}

// toValidText makes text that Postgres accepts.
func toValidText(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
}
