package console

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/dlq"
)

// storedFields are the fields of a filter of stored events, as in links and forms.
var storedFields = []string{"consumer", "topic", "key", "type", "source", "event"}

type storedPage struct {
	Filter map[string]string
	Words  string
	Events []dlq.StoredEvent
	More   bool
}

func storedFilter(f map[string]string) dlq.StoredFilter {
	return dlq.StoredFilter{Consumer: f["consumer"], Topic: f["topic"], Key: f["key"], Type: f["type"], Source: f["source"], EventID: f["event"]}
}

const storedPerPage = 200

func (c *Console) stored(v *visit) (answer, error) {
	p := storedPage{Filter: fields(v, storedFields...)}
	p.Words = inWords(p.Filter)
	if err := noNUL(p.Filter); err != nil || p.Filter["consumer"] == "" {
		return answer{page: "stored", data: p}, err
	}
	f := storedFilter(p.Filter)
	f.Limit = storedPerPage
	f.Heads = v.FormValue("heads") != ""
	var err error
	p.Events, err = c.dlq.ListStored(v.Context(), f)
	p.More = len(p.Events) == storedPerPage
	return answer{page: "stored", data: p}, err
}

func (c *Console) changeStored(v *visit) (answer, error) {
	given := fields(v, append([]string{"does"}, storedFields...)...)
	filter := fields(v, storedFields...)
	if err := noNUL(filter); err != nil {
		return answer{}, err
	}
	if filter["consumer"] == "" {
		return answer{}, refusal{http.StatusUnprocessableEntity, "consumer is empty: whose stored events?"}
	}
	does := map[string]struct {
		do   func(context.Context, dlq.StoredFilter, dlq.StoredOptions) (int, error)
		note string
	}{
		"release":     {c.dlq.ReleaseStored, "Those that wait for their next attempt are tried at once."},
		"skip":        {c.dlq.SkipStored, "Nobody handles them then. The next events of their keys go on. The payloads stay until a purge."},
		"dead-letter": {c.dlq.DeadLetterStored, "They can be read, edited and replayed later. The next events of their keys go on."},
	}
	chosen, known := does[given["does"]]
	if !known {
		return answer{}, refusal{http.StatusUnprocessableEntity, "does is " + strconv.Quote(given["does"]) + ": it must be release, skip or dead-letter"}
	}
	with := func(dry bool) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			return chosen.do(ctx, storedFilter(filter), dlq.StoredOptions{DryRun: dry, By: v.User.Name, Reason: strings.TrimSpace(v.PostForm.Get("reason"))})
		}
	}
	return c.carryOut(v, change{Does: given["does"], Things: "stored event", Filter: inWords(filter), Action: "/stored", Fields: given, Note: chosen.note,
		Back: "/stored" + queryOf("consumer", filter["consumer"])}, with(true), with(false))
}
