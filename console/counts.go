package console

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/state"
)

// counts are the numbers beside the links of the navigation. "" is none.
type counts struct{ Letters, Waiting, Paused string }

// unknown are counts that could not be read.
var unknown = counts{"?", "?", "?"}

// tally keeps the last counts for a second: many pages may be open.
type tally struct {
	mu   sync.Mutex
	last counts
	at   time.Time
}

// counts counts for a page that has not read the whole state.
func (t *tally) counts(ctx context.Context, c *Console) counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.at) >= time.Second {
		// The caller's end does not end it: others may wait for the same counts.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		var err error
		if t.last, err = c.readCounts(ctx); err != nil {
			t.last = unknown
			c.c.Logger.Error("console request failed", "path", "navigation", "error", err)
		}
		t.at = time.Now()
	}
	return t.last
}

// forget has the next page count again.
func (t *tally) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = time.Time{}
}

func (c *Console) readCounts(ctx context.Context) (counts, error) {
	r := state.Reader{DB: plain.Of(c.pool), Schema: c.c.Schema}
	open, looked, err := r.Letters(ctx, state.MostEvents)
	if err != nil {
		return counts{}, err
	}
	unpublished, err := r.Backlog(ctx)
	if err != nil {
		return counts{}, err
	}
	stored, err := r.Stored(ctx, state.MostEvents)
	if err != nil {
		return counts{}, err
	}
	paused, err := c.room.Paused(ctx)
	waiting, more := int64(0), false
	for _, of := range stored {
		waiting += int64(of.Events)
		more = more || of.Events >= state.MostEvents
	}
	return countsOf(open, looked, unpublished.Waiting, waiting, more, len(paused)), err
}

// countsOf sums up. more says that others wait in consumers than were counted.
func countsOf(open []state.Letters, looked int64, inRelays int, inConsumers int64, more bool, paused int) counts {
	var letters int64
	for _, l := range open {
		letters += l.Open
	}
	return counts{
		Letters: unlessZero(counted(letters, looked >= state.MostEvents)),
		Waiting: unlessZero(counted(int64(inRelays)+inConsumers, more || inRelays >= state.MostInRelays)),
		Paused:  unlessZero(fmt.Sprint(paused)),
	}
}

func unlessZero(n string) string {
	if n == "0" {
		return ""
	}
	return n
}

// counted is a number, or that many and more.
func counted(n int64, more bool) string {
	if more {
		return fmt.Sprint(n, "+")
	}
	return fmt.Sprint(n)
}
