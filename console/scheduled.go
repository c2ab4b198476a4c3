package console

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/dlq"
)

// scheduledFields are the fields of a filter of scheduled events, as in links and forms.
var scheduledFields = []string{"topic", "key", "type", "source", "event"}

type scheduledPage struct {
	Filter map[string]string
	Words  string
	Events []dlq.ScheduledEvent
	More   bool
}

func scheduledFilter(f map[string]string) dlq.ScheduledFilter {
	return dlq.ScheduledFilter{Topic: f["topic"], Key: f["key"], Type: f["type"], Source: f["source"], EventID: f["event"]}
}

const scheduledPerPage = 200

func (c *Console) scheduled(v *visit) (answer, error) {
	p := scheduledPage{Filter: fields(v, scheduledFields...)}
	p.Words = inWords(p.Filter)
	if err := noNUL(p.Filter); err != nil {
		return answer{}, err
	}
	f := scheduledFilter(p.Filter)
	f.Limit = scheduledPerPage
	var err error
	p.Events, err = c.dlq.ListScheduled(v.Context(), f)
	p.More = len(p.Events) == scheduledPerPage
	return answer{page: "scheduled", data: p}, err
}

func (c *Console) changeScheduled(v *visit) (answer, error) {
	given := fields(v, append([]string{"does"}, scheduledFields...)...)
	filter := fields(v, scheduledFields...)
	if err := noNUL(filter); err != nil {
		return answer{}, err
	}
	if given["does"] != "cancel" {
		return answer{}, refusal{http.StatusUnprocessableEntity, "does is " + strconv.Quote(given["does"]) + ": it must be cancel"}
	}
	if len(filter) == 0 {
		return answer{}, refusal{http.StatusUnprocessableEntity, "the filter is empty: name a topic, a key, a type, a source or an event"}
	}
	with := func(dry bool) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			return c.dlq.CancelScheduled(ctx, scheduledFilter(filter), dlq.ScheduledOptions{DryRun: dry, By: v.User.Name, Reason: strings.TrimSpace(v.PostForm.Get("reason"))})
		}
	}
	return c.carryOut(v, change{Does: "cancel", Things: "scheduled event", Filter: inWords(filter), Action: "/scheduled", Fields: given,
		Note: "Nobody gets them then. Each becomes a discarded dead letter, whose payload stays until a purge.", Back: "/scheduled"}, with(true), with(false))
}
