package inbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file counts the events that are skipped because no node handles their type, and says so once for each type.

const (
	// skipsEvery is how often the counts are written down.
	skipsEvery = 5 * time.Second

	// maxSkippedTypes is how many types are counted separately. Others are counted together, under "".
	maxSkippedTypes = 1000

	// maxSaidTypes is how many of this node's types the log line names.
	maxSaidTypes = 50
)

// skips counts skipped events by topic and type. Safe for use by many goroutines.
type skips struct {
	*env
	registry *registry

	mu     sync.Mutex
	said   map[skippedType]bool
	counts map[skippedType]int64 // since the counts were written down
}

type skippedType struct{ topic, eventType string }

// note counts a skipped event. The first of its topic and type is reported in the log, with the types that this node handles: the
// type may be a mistake in either.
func (sk *skips) note(e holdfast.Event) {
	t := skippedType{e.Topic, e.Type}
	sk.mu.Lock()
	if sk.counts == nil {
		sk.said, sk.counts = map[skippedType]bool{}, map[skippedType]int64{}
	}
	first := !sk.said[t]
	if first && len(sk.said) >= maxSkippedTypes {
		t, first = skippedType{}, false
	}
	if first {
		sk.said[t] = true
	}
	sk.counts[t]++
	sk.mu.Unlock()
	if !first {
		return
	}
	handled := sk.registry.types
	sk.c.Logger.Warn("no node handles a type: its events are skipped", "consumer", sk.c.Consumer, "topic", e.Topic, "type", e.Type,
		"handled", handled[:min(len(handled), maxSaidTypes)], "handled_types", len(handled))
	if sk.c.Observer.OnUnknownType != nil {
		sk.c.Observer.OnUnknownType(e.Topic, e.Type)
	}
}

// skipsLoop writes the counts down, for holdfast status.
func (sk *skips) skipsLoop(ctx context.Context) error {
	for {
		err := loop.Sleep(ctx, time.Duration((0.75+0.5*sk.random())*float64(skipsEvery)))
		if werr := sk.write(context.WithoutCancel(ctx)); werr != nil {
			sk.transient(werr)
		}
		if err != nil {
			return nil
		}
	}
}

// write adds the counts to the table consumer_skip. If that fails they are written with the next ones; a COMMIT without an answer
// may count twice.
func (sk *skips) write(ctx context.Context) error {
	sk.mu.Lock()
	counts := sk.counts
	sk.counts = map[skippedType]int64{}
	if sk.said == nil {
		sk.said = map[skippedType]bool{}
	}
	sk.mu.Unlock()
	if len(counts) == 0 {
		return nil
	}
	var topics, types []string
	var events []int64
	for t, n := range counts {
		topics, types, events = append(topics, t.topic), append(types, t.eventType), append(events, n)
	}
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	if _, err := sk.pool.Exec(ctx, sk.sql.skip, sk.c.Consumer, topics, types, events); err != nil {
		sk.mu.Lock()
		defer sk.mu.Unlock()
		for t, n := range counts {
			sk.counts[t] += n
		}
		return fmt.Errorf("count skipped events: %w", err)
	}
	return nil
}
