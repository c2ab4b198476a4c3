package console

import (
	"strings"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/find"
)

type findPage struct {
	ID, Source, Topic, Key string
	Found                  find.Found
	Uses                   []find.KeyUse // of the same text as an Idempotency-Key
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
