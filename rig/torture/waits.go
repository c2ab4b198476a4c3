//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/history"
)

// waits are those of a producer for events that it has committed (holdfast.WaitFor). What they return goes into the history as what a consumer says does, and is judged
// with it: an event that is called handled must have its effect by then.
type waits struct {
	*producer
	free chan struct{}
	all  sync.WaitGroup
}

const (
	// mostWaits is how many events a producer waits for at once.
	mostWaits = 64
	// waitTime is how long it waits for one. Many faults last longer.
	waitTime = 15 * time.Second
	// notThere begins what a producer logs of an event that was called handled, and whose effect it does not see. No fault excuses it.
	notThere = "waited for an effect that is not there: "
	// endedEarly begins what it logs of a wait that ended before its time, without an event.
	endedEarly = "a wait ended early: "
)

// begin waits for an event, unless too many are waited for.
func (w *waits) begin(ctx context.Context, id string) {
	select {
	case w.free <- struct{}{}:
	default:
		return
	}
	w.all.Go(func() {
		defer func() { <-w.free }()
		ctx, cancel := context.WithTimeout(ctx, waitTime)
		defer cancel()
		settled, err := holdfast.WaitFor(ctx, w.pool, holdfast.Token{Source: source, ID: id}, consumerName)
		if settled == holdfast.Unseen || settled == holdfast.Stored {
			if !errors.Is(err, context.Cause(ctx)) || ctx.Err() == nil {
				w.rec.Add(history.Entry{
					Op:   history.Log,
					IDs:  []string{id},
					Text: endedEarly + fmt.Sprintf("%q, %v", settled, err),
				})
			}
			return
		}
		w.rec.Add(history.Entry{
			Op:   history.Receive,
			IDs:  []string{id},
			Text: string(settled),
		})
		if settled == holdfast.Handled {
			w.look(ctx, id)
		}
	})
}

// look looks for the effect of an event that was called handled. An older state of the database may have taken the place of all that since, with the row that said so.
func (w *waits) look(ctx context.Context, id string) {
	var there, handled bool
	err := w.pool.QueryRow(ctx, `select exists (select from effect where consumer = $1 and id = $2),
		exists (select from holdfast.inbox where consumer = $1 and source = $3 and event_id = $2 and result = 'handled')`, consumerName, id, source).Scan(&there, &handled)
	if err == nil && handled && !there {
		w.rec.Add(history.Entry{Op: history.Log, IDs: []string{id}, Text: notThere + id})
	}
}

// waited counts the waits of producers that ended before their time, and finds those that no fault excuses.
func waited(entries []history.Entry) (handled, others int, wrong []string) {
	for _, e := range entries {
		switch {
		case !strings.HasPrefix(e.Actor, roleProducer):
		case e.Op == history.Receive && e.Text == string(holdfast.Handled):
			handled++
		case e.Op == history.Receive:
			others++
		case e.Op == history.Log && (strings.HasPrefix(e.Text, notThere) || strings.HasPrefix(e.Text, endedEarly)):
			wrong = append(wrong, e.Actor+" "+e.Text)
		}
	}
	return handled, others, wrong
}

// judgeWaits says what the waits have shown.
func (r *run) judgeWaits(entries []history.Entry) {
	handled, others, wrong := waited(entries)
	r.report.waits = fmt.Sprintf("%d waits ended when the event was handled, %d when it was given up or discarded", handled, others)
	r.report.troubles = append(r.report.troubles, wrong...)
	if handled == 0 {
		r.trouble(errors.New("no wait for an event ended: nothing is shown of waits"))
	}
}
