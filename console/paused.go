package console

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/waiting"
)

type pausedPage struct {
	Pauses []waiting.Pause
	Names  names
}

func (c *Console) paused(v *visit) (answer, error) {
	all, err := c.room.Paused(v.Context())
	if err != nil {
		return answer{}, err
	}
	p := pausedPage{Pauses: all}
	p.Names, err = c.names(v.Context())
	return answer{page: "paused", title: "Paused", every: 10, data: p}, err
}

func (c *Console) changePaused(v *visit) (answer, error) {
	given := fields(v, "does", "consumer", "topic", "key")
	if err := noNUL(given); err != nil {
		return answer{}, err
	}
	what := waiting.Pausable{Consumer: given["consumer"], Topic: given["topic"], Key: given["key"]}
	if given["key"] != "" && (given["consumer"] == "" || given["topic"] == "") || given["key"] == "" && (given["consumer"] == "") == (given["topic"] == "") {
		return answer{}, refusal{http.StatusUnprocessableEntity, "it must be a topic, a consumer, or a key with its topic and consumer"}
	}
	does := map[string]struct {
		do   func(context.Context, waiting.Pausable, string, string) (bool, error)
		note string
	}{
		"pause":  {c.room.Pause, "Running relays and consumers see it within about a second. What comes waits in its order, and counts towards the caps."},
		"resume": {c.room.Resume, "What waited continues, in order."},
	}
	chosen, known := does[given["does"]]
	if !known {
		return answer{}, refusal{http.StatusUnprocessableEntity, "does is " + strconv.Quote(given["does"]) + ": it must be pause or resume"}
	}
	note := chosen.note
	if what.Consumer != "" && given["does"] == "pause" {
		names, err := c.room.Consumers(v.Context())
		if err != nil {
			return answer{}, err
		}
		if !slices.Contains(names, what.Consumer) {
			note = unknownConsumer(what.Consumer, names)
		}
	}
	count := func(ctx context.Context) (int, error) {
		all, err := c.room.Paused(ctx)
		there := slices.ContainsFunc(all, func(p waiting.Pause) bool { return p.Pausable == what })
		return numberOf(there == (given["does"] == "resume")), err
	}
	do := func(ctx context.Context, _ func(done, of int)) (int, error) {
		changed, err := chosen.do(ctx, what, v.User.Name, strings.TrimSpace(v.PostForm.Get("reason")))
		return numberOf(changed), err
	}
	things := "topic"
	switch {
	case what.Key != "":
		things = "key"
	case what.Consumer != "":
		things = "consumer"
	}
	return c.carryOut(v, change{
		Does:   given["does"],
		Things: things,
		Filter: what.String(),
		Action: "/paused",
		Fields: given,
		Note:   note,
		Back:   "/paused",
		BackTo: "Paused",
	}, count, do)
}

// unknownConsumer warns of a name that nobody has: a pause under it would stop nobody.
func unknownConsumer(name string, names []string) string {
	const most = 20
	known := "It knows none."
	if len(names) > 0 {
		known = "It knows " + strings.Join(names[:min(len(names), most)], ", ") + "."
	}
	return "This database knows no consumer " + name + ", so this has no effect until there is one. " + known
}

func numberOf(one bool) int {
	if one {
		return 1
	}
	return 0
}
