package publishertest

import (
	"context"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// together publishes by PublishTogether what Publish is given: a batch for each partition. So all that Publish promises is checked
// of batches, with others beside them.
type together struct {
	testing.TB
	publish.Gatherer
}

// byTogether is p, if it is a Gatherer, by its other method.
func byTogether(t testing.TB, p publish.Publisher) (publish.Publisher, bool) {
	g, ok := p.(publish.Gatherer)
	if !ok {
		return p, false
	}
	return together{t, g}, true
}

func (t together) Publish(ctx context.Context, events []holdfast.Event) []error {
	type spot struct {
		topic     string
		partition int
	}
	batches, places := [][]holdfast.Event{}, [][]int{}
	known := map[spot]int{}
	for i, e := range events {
		partition, partitions := t.Partition(e)
		if partitions == 0 {
			partition = -1
		}
		at := spot{e.Topic, partition}
		b, found := known[at]
		if !found {
			b = len(batches)
			known[at], batches, places = b, append(batches, nil), append(places, nil)
		}
		batches[b], places[b] = append(batches[b], e), append(places[b], i)
	}
	answers := make([]error, len(events))
	var mu sync.Mutex
	times := make([]int, len(batches))
	t.PublishTogether(ctx, batches, func(batch int, errs []error) {
		mu.Lock()
		defer mu.Unlock()
		if batch < 0 || batch >= len(batches) || len(errs) != len(batches[batch]) {
			t.Errorf("%d answers for batch %d of %d", len(errs), batch, len(batches))
			return
		}
		times[batch]++
		for n, err := range errs {
			answers[places[batch][n]] = err
		}
	})
	mu.Lock()
	defer mu.Unlock()
	for b, n := range times {
		if n != 1 {
			t.Errorf("batch %d of %d was answered %d times when PublishTogether returned, want once", b, len(batches), n)
		}
	}
	return answers
}
