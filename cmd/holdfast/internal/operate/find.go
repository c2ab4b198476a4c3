package operate

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/find"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

// Find is holdfast find.
type Find struct {
	ID     string        `arg:"" help:"Id of the event, or an Idempotency-Key."`
	Source string        `help:"Only events of this source." placeholder:"SOURCE"`
	Topic  string        `help:"Only events of this topic." placeholder:"TOPIC"`
	Key    string        `help:"Only events of this key. The log is then searched in one lane." placeholder:"KEY"`
	Within time.Duration `help:"How long the search of one place may take." default:"2s"`
	JSON   bool          `help:"Print one JSON object." name:"json"`
}

// JSONFound is what find --json prints.
type JSONFound struct {
	Sightings  []jsonSighting   `json:"sightings"`
	Requests   []jsonKeyUse     `json:"requests"`   // with that Idempotency-Key
	Unsearched []jsonUnsearched `json:"unsearched"` // places that may have more
}

type jsonKeyUse struct {
	Scope     string     `json:"scope"`
	Operation string     `json:"operation"`
	State     string     `json:"state"`
	Status    int        `json:"status,omitempty"`
	ResultRef string     `json:"result_ref,omitempty"`
	Attempts  int        `json:"attempts,omitempty"`
	Steps     int        `json:"steps,omitempty"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	NextAt    *time.Time `json:"next_at,omitempty"`
	Says      string     `json:"says"`
}

type jsonUnsearched struct {
	Place string `json:"place"`
	Why   string `json:"why"`
}

type jsonSighting struct {
	Place     string     `json:"place"`
	State     string     `json:"state"`
	EventID   string     `json:"event_id"`
	Source    string     `json:"source"`
	Type      string     `json:"type,omitempty"`
	Topic     string     `json:"topic,omitempty"`
	Key       string     `json:"key,omitempty"`
	Consumer  string     `json:"consumer,omitempty"`
	Lane      int        `json:"lane"`      // -1 on a consumer's side
	Partition int        `json:"partition"` // -1 if it is not known, as offset
	Offset    int64      `json:"offset"`
	Attempts  int        `json:"attempts,omitempty"`
	LastError string     `json:"last_error,omitempty"`
	Letter    int64      `json:"letter,omitempty"`
	By        string     `json:"by,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	At        *time.Time `json:"at,omitempty"`
	NextAt    *time.Time `json:"next_at,omitempty"`
	Says      string     `json:"says"`
}

func (f *Find) Run(p *program.Program) error {
	pool, err := p.Pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	found, err := find.Event(p.Ctx, pool, find.Query{
		ID:     f.ID,
		Source: f.Source,
		Topic:  f.Topic,
		Key:    f.Key,
		Schema: p.Database.Schema,
		Within: f.Within,
	})
	if err != nil {
		return err
	}
	var uses []find.KeyUse
	if f.Source == "" && f.Topic == "" && f.Key == "" {
		var why string
		if uses, why, err = find.Keys(p.Ctx, pool, find.KeyQuery{
			Key:    f.ID,
			Schema: p.Database.Schema,
			Within: f.Within,
		}); err != nil {
			return err
		}
		if why != "" {
			found.Unsearched = append(found.Unsearched, find.Unsearched{Place: "requests", Why: why})
		}
	}
	if f.JSON {
		err = json.NewEncoder(p.Out).Encode(asJSONFound(found, uses))
	} else {
		err = f.print(p, found, uses)
	}
	if err == nil && len(found.Sightings)+len(uses) == 0 {
		err = program.ErrNeedsPerson
	}
	return err
}

func asJSONFound(found find.Found, uses []find.KeyUse) JSONFound {
	j := JSONFound{
		Sightings:  []jsonSighting{},
		Requests:   []jsonKeyUse{},
		Unsearched: []jsonUnsearched{},
	}
	for _, u := range uses {
		j.Requests = append(j.Requests, jsonKeyUse{
			Scope:     u.Scope,
			Operation: u.Operation,
			State:     u.State,
			Status:    u.Status,
			ResultRef: u.ResultRef,
			Attempts:  u.Attempts,
			Steps:     u.Steps,
			CreatedAt: unlessZero(u.CreatedAt),
			ExpiresAt: unlessZero(u.ExpiresAt),
			NextAt:    unlessZero(u.NextAt),
			Says:      u.Says,
		})
	}
	for _, s := range found.Sightings {
		j.Sightings = append(j.Sightings, jsonSighting{
			Place:     s.Place,
			State:     s.State,
			EventID:   s.Event.ID,
			Source:    s.Event.Source,
			Type:      s.Event.Type,
			Topic:     s.Event.Topic,
			Key:       s.Event.Key,
			Consumer:  s.Consumer,
			Lane:      s.Lane,
			Partition: s.Partition,
			Offset:    s.Offset,
			Attempts:  s.Attempts,
			LastError: s.Error,
			Letter:    s.Letter,
			By:        s.By,
			Reason:    s.Reason,
			At:        unlessZero(s.At),
			NextAt:    unlessZero(s.NextAt),
			Says:      s.Says,
		})
	}
	for _, u := range found.Unsearched {
		j.Unsearched = append(j.Unsearched, jsonUnsearched{u.Place, u.Why})
	}
	return j
}

func unlessZero(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (f *Find) print(p *program.Program, found find.Found, uses []find.KeyUse) error {
	w := tabwriter.NewWriter(p.Out, 0, 0, 2, ' ', 0)
	if len(found.Sightings) > 0 {
		fmt.Fprintln(w, "PLACE\tSOURCE\tTYPE\tTOPIC\tKEY\tWHAT IT SAYS")
	}
	for _, s := range found.Sightings {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Place, terminal.Clean(s.Event.Source), terminal.Clean(s.Event.Type), terminal.Clean(s.Event.Topic), terminal.Clean(s.Event.Key), terminal.Clean(s.Says))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, u := range uses {
		fmt.Fprintf(p.Out, "Idempotency-Key: %s\n", terminal.Clean(u.Says))
	}
	for _, u := range found.Unsearched {
		fmt.Fprintf(p.Out, "not searched to its end: %s: %s\n", u.Place, terminal.Clean(u.Why))
	}
	switch {
	case len(found.Sightings)+len(uses) > 0:
	case len(found.Unsearched) > 0:
		fmt.Fprintln(p.Out, "the rest of this database does not know it")
	default:
		fmt.Fprintln(p.Out, "this database does not know it: "+find.Nowhere)
	}
	return nil
}
