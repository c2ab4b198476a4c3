package metrics

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/state"
)

// ofLag are the instruments of ObserveDatabase that need DatabaseConfig.EndsFunc.
var ofLag = []Instrument{
	gauge("holdfast.consumer.lag", "{offset}", "Offsets between a consumer's positions and the ends of its partitions, added up", "consumer", "topic"),
	total("holdfast.consumer.lag.failures", "{sample}", "Samples of the lag that failed: the broker or the database did not answer"),
}

// lagging keeps the last sample of the lag.
type lagging struct {
	d      *database
	ends   state.Ends
	topics *bounded

	mu       sync.Mutex
	last     []Reading // without the failures
	failures int
	until    time.Time // last counts until then
}

// readings are a sample, and how many have failed, as values of ofLag.
func (l *lagging) readings(ctx context.Context) ([]Reading, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); !now.Before(l.until) {
		var err error
		l.last, err = l.read(ctx)
		if err != nil {
			l.failures++
		}
		l.until = now.Add(l.d.c.Interval)
	}
	return append(l.last[:len(l.last):len(l.last)], Reading{Index: 1, Value: float64(l.failures)}), nil
}

// read adds up the lag of topics that have no name of their own.
func (l *lagging) read(ctx context.Context) (all []Reading, err error) {
	lags, err := l.lags(ctx)
	place := map[[2]string]int{}
	for _, of := range lags {
		who := [2]string{of.Consumer, l.topics.name(of.Topic)}
		n, there := place[who]
		if !there {
			n = len(all)
			place[who] = n
			all = append(all, Reading{Index: 0, Labels: who[:]})
		}
		all[n].Value += float64(of.Offsets)
	}
	return all, err
}

// lagOf is how far a consumer is from the ends of a topic's partitions.
type lagOf struct {
	Consumer, Topic string
	Offsets         int64
}

// lags asks the database for positions and the broker for where the log is, within DatabaseConfig.Timeout, each time it is called. They are
// sorted by consumer and topic, of at most 50 consumers. A topic whose partitions the broker does not know is left out.
func (l *lagging) lags(ctx context.Context) ([]lagOf, error) {
	// The caller's deadline does not end it: others may wait for the same sample.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.d.c.Timeout)
	defer cancel()
	positions, err := state.Reader{DB: l.d.pool, Schema: l.d.c.Schema}.Positions(ctx, maxPositions)
	if err != nil {
		return nil, fmt.Errorf("read positions: %w", explain(err))
	}
	where, err := l.ends(ctx, partitionsOf(positions))
	if err != nil {
		return nil, fmt.Errorf("read the ends of partitions: %w", err)
	}
	return lagsOf(positions, where), nil
}

// partitionsOf lists each partition once. Positions are sorted by consumer, so several have the same.
func partitionsOf(positions []state.Position) (of []source.TopicPartition) {
	seen := map[source.TopicPartition]bool{}
	for _, p := range positions {
		if at := partitionOf(p); !seen[at] {
			seen[at] = true
			of = append(of, at)
		}
	}
	return of
}

func partitionOf(p state.Position) source.TopicPartition {
	return source.TopicPartition{Topic: p.Topic, Partition: p.Partition}
}

// lagsOf adds up the lag of each consumer and topic, of which positions are sorted. A partition whose end is not known counts nothing,
// and so does a position past the end, as after a topic was recreated.
func lagsOf(positions []state.Position, ends map[source.TopicPartition]int64) (all []lagOf) {
	consumers := map[string]bool{}
	for _, p := range positions {
		if !consumers[p.Consumer] && len(consumers) == maxConsumers {
			continue
		}
		consumers[p.Consumer] = true
		end, known := ends[partitionOf(p)]
		if !known {
			continue
		}
		if n := len(all); n == 0 || all[n-1].Consumer != p.Consumer || all[n-1].Topic != p.Topic {
			all = append(all, lagOf{Consumer: p.Consumer, Topic: p.Topic})
		}
		all[len(all)-1].Offsets += max(end-p.Position, 0)
	}
	return all
}
