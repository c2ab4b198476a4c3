package console

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/find"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/steps"
)

type findPage struct {
	ID, Source, Topic, Key string
	Found                  find.Found
	Steps                  map[int][]steps.Recorded // of the handler, by the index of the consumer's first sighting
	Uses                   []find.KeyUse            // of the same text as an Idempotency-Key
	Asked                  bool
}

// Nowhere says what may have become of what was not found.
func (findPage) Nowhere() string { return find.Nowhere }

// Undecided are the open dead letters that it is.
func (p findPage) Undecided() (letters []int64) {
	for _, s := range p.Found.Sightings {
		if s.Place == "letter" && s.State == dlq.StateOpen {
			letters = append(letters, s.Letter)
		}
	}
	return letters
}

func (c *Console) find(v *visit) (answer, error) {
	p := findPage{
		ID:     strings.TrimSpace(v.FormValue("id")),
		Source: v.FormValue("source"),
		Topic:  v.FormValue("topic"),
		Key:    v.FormValue("key"),
	}
	if p.ID == "" {
		return answer{page: "find", title: "Where is my event?", data: p}, nil
	}
	if len(p.ID) > 255 || strings.ContainsRune(p.ID+p.Source+p.Topic+p.Key, 0) {
		return answer{}, refusal{422, "no event has such an id: it has 1 to 255 bytes, and no NUL"}
	}
	shows := answer{page: "find", title: "Where is " + p.ID + "?", every: 10}
	found, err := find.Event(v.Context(), c.pool, find.Query{
		ID:     p.ID,
		Source: p.Source,
		Topic:  p.Topic,
		Key:    p.Key,
		Schema: c.c.Schema,
	})
	p.Found, p.Asked = found, true
	if err == nil {
		err = c.readSteps(v, &p)
	}
	if err != nil || p.Source+p.Topic+p.Key != "" {
		shows.data = p
		return shows, err
	}
	uses, why, err := find.Keys(v.Context(), c.pool, find.KeyQuery{Key: p.ID, Schema: c.c.Schema})
	if p.Uses = uses; why != "" {
		p.Found.Unsearched = append(p.Found.Unsearched, find.Unsearched{Place: "requests", Why: why})
	}
	shows.data = p
	return shows, err
}

// readSteps adds the steps of the handlers of consumers that know the event, with results for those who may see payloads.
func (c *Console) readSteps(v *visit, p *findPage) error {
	p.Steps = map[int][]steps.Recorded{}
	seen := map[[2]string]bool{}
	for i, s := range p.Found.Sightings {
		of := [2]string{s.Consumer, s.Event.Source}
		if s.Place != "stored" && s.Place != "inbox" || seen[of] {
			continue
		}
		seen[of] = true
		recorded, err := steps.Read(v.Context(), plain.Of(c.pool), c.c.Schema, s.Consumer, s.Event.Source, s.Event.ID, nil, v.User.SeesPayload)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "42501" { // insufficient_privilege
			p.Found.Unsearched = append(p.Found.Unsearched, find.Unsearched{Place: "steps", Why: pgErr.Message + ": connect as an operator"})
			return nil
		}
		if err != nil {
			return err
		}
		p.Steps[i] = recorded
	}
	return nil
}
