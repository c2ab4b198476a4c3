package console

import (
	"cmp"
	"context"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/waiting"
)

// waitFields are the fields of a filter of waiting events, as in links and forms.
var waitFields = []string{"origin", "consumer", "topic", "key", "type", "source", "event", "why", "heads"}

// waitFilter reads the fields of a filter. heads is any text.
func waitFilter(f map[string]string) waiting.Filter {
	return waiting.Filter{
		Origin:   f["origin"],
		Consumer: f["consumer"],
		Topic:    f["topic"],
		Key:      f["key"],
		Type:     f["type"],
		Source:   f["source"],
		EventID:  f["event"],
		Why:      waiting.Why(f["why"]),
		Heads:    f["heads"] != "",
	}
}

type waitGroupsPage struct {
	Filter map[string]string
	Names  names
	Sort   string
	Groups []waiting.Group
	Total  int
	Away   []state.Dependency
}

// ByType says that a group is of one type.
func (p waitGroupsPage) ByType() bool {
	return slices.ContainsFunc(p.Groups, func(g waiting.Group) bool { return g.Type != "" })
}

func (c *Console) waitingGroups(v *visit) (answer, error) {
	p := waitGroupsPage{Filter: fields(v, waitFields...)}
	if err := noNUL(p.Filter); err != nil {
		return answer{}, err
	}
	var err error
	if p.Groups, err = c.room.Groups(v.Context(), waitFilter(p.Filter)); err != nil {
		return answer{}, err
	}
	p.Sort = sorted(v, p.Groups, waitOrders, "events")
	for _, g := range p.Groups {
		p.Total += g.Events
	}
	if p.Away, err = c.away(v.Context(), p.Filter["consumer"]); err != nil {
		return answer{}, err
	}
	p.Names, err = c.names(v.Context())
	return answer{page: "waits", title: "Waiting events", every: 10, data: p}, err
}

// away lists what handlers of a consumer need that is away.
func (c *Console) away(ctx context.Context, consumer string) (away []state.Dependency, err error) {
	if consumer == "" {
		return nil, nil
	}
	err = pgx.BeginTxFunc(ctx, plain.Of(c.pool), pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := state.Settings(ctx, tx); err != nil {
			return err
		}
		all, err := state.Reader{DB: tx, Schema: c.c.Schema}.Dependencies(ctx, state.MostRows)
		away = slices.DeleteFunc(all, func(d state.Dependency) bool { return d.Consumer != consumer || !d.Away })
		return err
	})
	return away, err
}

// waitOrders are how groups of waiting events can be sorted, the largest and the oldest first.
var waitOrders = map[string]func(a, b waiting.Group) int{
	"events": func(a, b waiting.Group) int { return b.Events - a.Events },
	"keys":   func(a, b waiting.Group) int { return b.Keys - a.Keys },
	"size":   func(a, b waiting.Group) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"oldest": func(a, b waiting.Group) int { return a.OldestAt.Compare(b.OldestAt) },
}

type waitingPage struct {
	Filter    map[string]string
	Names     names
	Words     string
	Events    []waiting.Event
	Away      []state.Dependency
	More      bool
	Does      []string // what can be done with all that the filter selects
	Redirects bool
	Instead   *instead // where something can be done with them if not here; nil if it can, or nothing is there
}

// instead is a link to a page on which something can be done, and says what.
type instead struct {
	Path  string
	Query template.URL
	Says  string
}

const waitingPerPage = 200

func (c *Console) waitingList(v *visit) (answer, error) {
	p := waitingPage{Filter: fields(v, waitFields...)}
	if err := noNUL(p.Filter); err != nil {
		return answer{}, err
	}
	p.Words, p.Does = inWords(p.Filter), waitingActions(p.Filter)
	p.Redirects = slices.Contains(p.Does, "redirect")
	f := waitFilter(p.Filter)
	f.Limit = waitingPerPage
	var err error
	if p.Events, err = c.room.List(v.Context(), f); err != nil {
		return answer{}, err
	}
	p.More = len(p.Events) == waitingPerPage
	if len(p.Does) == 0 && len(p.Events) > 0 {
		p.Instead = insteadOf(p.Filter, p.Events)
	}
	if p.Away, err = c.away(v.Context(), p.Filter["consumer"]); err != nil {
		return answer{}, err
	}
	p.Names, err = c.names(v.Context())
	return answer{page: "waiting", title: "Waiting events: " + p.Words, every: 10, data: p}, err
}

// waitingActions are the changes that a filter allows.
func waitingActions(filter map[string]string) []string {
	f := waitFilter(filter)
	switch {
	case f.Why == waiting.Scheduled && f.Consumer == "" && f.Topic+f.Key+f.Type+f.Source+f.EventID != "":
		return []string{"cancel"}
	case f.Why == waiting.Scheduled:
		return nil
	case f.Consumer != "" && (f.Why == waiting.BehindEvent || f.Why == waiting.BehindLetter):
		return []string{"give-up", "discard"}
	case f.Consumer != "":
		return []string{"retry", "give-up", "discard"}
	case f.Topic != "" && f == (waiting.Filter{
		Origin: dlq.OriginRelay,
		Topic:  f.Topic,
		Key:    f.Key,
	}):
		return []string{"retry", "give-up", "redirect", "discard"}
	}
	return nil
}

// insteadOf is where something can be done with events that a filter has selected, which allows no change.
func insteadOf(filter map[string]string, events []waiting.Event) *instead {
	f := waitFilter(filter)
	inRelay := func(e waiting.Event) bool { return e.Origin == dlq.OriginRelay && e.Why != waiting.Scheduled }
	switch {
	case f.Why == waiting.Scheduled:
		return &instead{"/waiting", queryFor(waitFields, filter), "Choose a topic, to cancel what is scheduled of it"}
	case f.Consumer == "" && f.Topic != "" && slices.ContainsFunc(events, inRelay):
		what := "topic " + f.Topic
		if f.Key != "" {
			what = "key " + f.Key + " of " + what
		}
		return &instead{"/waiting/list", template.URL(queryOf("origin", dlq.OriginRelay, "topic", f.Topic, "key", f.Key)), // it is encoded
			"Show everything of " + what + " in relays, to retry, redirect, give up or discard it"}
	case f.Origin == dlq.OriginRelay:
		return &instead{"/waiting", queryFor(waitFields, filter), "Choose a topic in relays, to retry, redirect, give up or discard what waits of it"}
	case f.Origin == dlq.OriginInbox:
		return &instead{"/waiting", queryFor(waitFields, filter), "Choose a consumer, to retry, give up or discard what waits in it"}
	}
	return &instead{"/waiting", queryFor(waitFields, filter), "Choose a consumer, or a topic in relays, to change what waits there"}
}

// groupQuery is the query of the list of a group, with all of the filter that selected it. In relays changes are of a whole topic, or of a
// key of it, so there the list has what waits for other reasons too, and so it has in a consumer of what waits for nothing.
func groupQuery(g waiting.Group, filter map[string]string) template.URL {
	list := maps.Clone(filter)
	list["origin"], list["consumer"], list["topic"], list["why"] = g.Origin, g.Consumer, g.Topic, string(g.Why)
	if g.Origin == dlq.OriginRelay && g.Why != waiting.Scheduled {
		delete(list, "why")
	}
	if g.Type != "" {
		list["type"] = g.Type
	}
	return queryFor(waitFields, list)
}

// cancelled is a filter as a cancel takes it.
func cancelled(filter map[string]string) map[string]string {
	f := maps.Clone(filter)
	f["why"] = string(waiting.Scheduled)
	return f
}

func (c *Console) changeWaiting(v *visit) (answer, error) {
	given, filter := fields(v, append([]string{"does", "to"}, waitFields...)...), fields(v, waitFields...)
	if err := noNUL(given); err != nil {
		return answer{}, err
	}
	f := waitFilter(filter)
	next := "The next events of their keys continue. "
	does := map[string]struct {
		do   func(context.Context, waiting.Filter, waiting.Options) (int, error)
		note string
	}{
		"retry":   {c.room.Retry, "Those that wait for their next attempt are tried at once."},
		"give-up": {c.room.GiveUp, next + "They are dead letters then, which can be read, edited and replayed later."},
		"discard": {c.room.Discard, next + "Nobody gets them then. The payloads stay until a purge."},
		"cancel":  {c.room.Cancel, "Nobody gets them then. Each becomes a discarded dead letter, whose payload stays until a purge."},
		"redirect": {func(ctx context.Context, f waiting.Filter, o waiting.Options) (int, error) {
			return c.room.Redirect(ctx, f, given["to"], o)
		}, "They will be published to topic " + given["to"] + ", with their ids, keys and payloads."},
	}
	chosen, known := does[given["does"]]
	switch {
	case !known:
		return answer{}, refusal{http.StatusUnprocessableEntity, "does is " + strconv.Quote(given["does"]) + ": it must be retry, give-up, discard, redirect or cancel"}
	case given["does"] == "cancel" && !slices.Contains(waitingActions(cancelled(filter)), "cancel"):
		return answer{}, refusal{http.StatusUnprocessableEntity, "a cancel needs a topic, a key, a type, a source or an event, and no consumer"}
	}
	with := func(ctx context.Context, o waiting.Options) (int, error) {
		o.By, o.Reason = v.User.Name, strings.TrimSpace(v.PostForm.Get("reason"))
		return chosen.do(ctx, f, o)
	}
	return c.carryOut(v, change{
		Does:   given["does"],
		Things: "waiting event",
		Filter: inWords(filter),
		Action: "/waiting",
		Fields: given,
		Note:   chosen.note,
		Back:   "/waiting" + queryOf("origin", filter["origin"], "consumer", filter["consumer"]),
		BackTo: "Waiting events",
	}, func(ctx context.Context) (int, error) { return with(ctx, waiting.Options{DryRun: true}) },
		func(ctx context.Context, tell func(done, of int)) (int, error) {
			return with(ctx, waiting.Options{ProgressFunc: func(p waiting.Progress) { tell(p.Changed+p.Left, p.Total) }})
		})
}
