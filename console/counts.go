package console

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/state"
)

// counts are the numbers beside the links of the navigation. "" is none.
type counts struct{ Letters, Waiting, Paused string }

// unknown are counts that could not be read.
var unknown = counts{"?", "?", "?"}

// count counts for a page that has not read the whole state.
func (c *Console) count(ctx context.Context, _ counts, _ time.Duration) (counts, error) {
	n, err := c.readCounts(ctx)
	if err != nil {
		n = unknown
		c.c.Logger.Warn("console did not look", "error", err)
	}
	return n, nil
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
