package console

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/dlq"
)

func (c *Console) parked(v *visit) (answer, error) {
	topics, err := c.dlq.ListParked(v.Context())
	return answer{page: "parked", data: topics}, err
}

func (c *Console) changeParked(v *visit) (answer, error) {
	given := fields(v, "does", "topic", "key", "to")
	if err := noNUL(given); err != nil {
		return answer{}, err
	}
	if given["topic"] == "" {
		return answer{}, refusal{http.StatusUnprocessableEntity, "topic is empty: whose parked events?"}
	}
	f := dlq.ParkedFilter{Topic: given["topic"], Key: given["key"]}
	does := map[string]struct {
		do   func(context.Context, dlq.ParkedFilter, dlq.ParkedOptions) (int, error)
		note string
	}{
		"retry":   {c.dlq.RetryParked, "Those that wait for their next attempt are tried at once."},
		"give-up": {c.dlq.GiveUpParked, "They are dead letters then, which can be replayed when the topic is back."},
		"discard": {c.dlq.DiscardParked, "Nobody gets them then. The payloads stay until a purge."},
		"redirect": {func(ctx context.Context, f dlq.ParkedFilter, o dlq.ParkedOptions) (int, error) {
			return c.dlq.RedirectParked(ctx, f, given["to"], o)
		}, "They are events of topic " + given["to"] + " then, with their ids, keys and payloads."},
	}
	chosen, known := does[given["does"]]
	switch {
	case !known:
		return answer{}, refusal{http.StatusUnprocessableEntity, "does is " + strconv.Quote(given["does"]) + ": it must be retry, give-up, discard or redirect"}
	case given["does"] == "redirect" && (given["to"] == "" || given["to"] == given["topic"]):
		return answer{}, refusal{http.StatusUnprocessableEntity, "the topic to redirect to is " + strconv.Quote(given["to"]) + ": it must be another one"}
	}
	with := func(dry bool) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			return chosen.do(ctx, f, dlq.ParkedOptions{DryRun: dry, By: v.User.Name, Reason: strings.TrimSpace(v.PostForm.Get("reason"))})
		}
	}
	words := "topic " + f.Topic
	if f.Key != "" {
		words += ", key " + f.Key
	}
	return c.carryOut(v, change{Does: given["does"], Things: "parked event", Filter: words, Action: "/parked", Fields: given, Note: chosen.note, Back: "/parked"}, with(true), with(false))
}
