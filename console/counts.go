package console

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/state"
)

// counts are the numbers beside the links of the navigation. "" is none, or not known.
type counts struct{ Letters, Waiting, Paused string }

// readCounts counts for a page that has not read them. If it fails the page has none: what the page itself shows says more.
func (c *Console) readCounts(ctx context.Context) counts {
	r := state.Reader{DB: plain.Of(c.pool), Schema: c.c.Schema}
	open, looked, err := r.Letters(ctx, state.MostEvents)
	if err != nil {
		return counts{}
	}
	unpublished, err := r.Backlog(ctx)
	if err != nil {
		return counts{}
	}
	stored, err := r.Stored(ctx, state.MostEvents)
	if err != nil {
		return counts{}
	}
	paused, err := c.room.Paused(ctx)
	if err != nil {
		return counts{}
	}
	waiting, more := int64(0), false
	for _, of := range stored {
		waiting += int64(of.Events)
		more = more || of.Events >= state.MostEvents
	}
	return countsOf(open, looked, unpublished.Waiting, waiting, more, len(paused))
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
