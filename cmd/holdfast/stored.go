package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast/dlq"
)

type storedCmd struct {
	List       storedListCmd       `cmd:"" help:"List events that wait in a consumer."`
	Show       storedShowCmd       `cmd:"" help:"Show a stored event with its errors."`
	Release    storedReleaseCmd    `cmd:"" aliases:"retry" help:"Try events at once that wait for their next attempt."`
	Skip       storedSkipCmd       `cmd:"" help:"Give events up for good, so that the next of their key go on."`
	DeadLetter storedDeadLetterCmd `cmd:"" name:"dead-letter" help:"Make events dead letters, so that the next of their key go on."`
}

// waiting are the flags that choose stored events.
type waiting struct {
	Consumer  string `help:"Whose events." required:"" placeholder:"NAME"`
	Topic     string `help:"Only events of this topic." placeholder:"TOPIC"`
	Key       string `help:"Only events of this key." placeholder:"KEY"`
	Type      string `help:"Only events of this type." placeholder:"TYPE"`
	Source    string `help:"Only events of this source." placeholder:"SOURCE"`
	EventID   string `help:"Only the event with this id." placeholder:"ID"`
	Unhandled bool   `help:"Only events of types that no node handles."`
	Heads     bool   `help:"Only events that nothing of their key is before."`
}

// given is the filter as on the command line; "" if there is none beside the consumer.
func (w waiting) given() string {
	var flags []string
	for _, f := range [][2]string{{"topic", w.Topic}, {"key", w.Key}, {"type", w.Type}, {"source", w.Source}, {"event-id", w.EventID}} {
		if f[1] != "" {
			flags = append(flags, "--"+f[0]+" "+quoted(f[1]))
		}
	}
	if w.Unhandled {
		flags = append(flags, "--unhandled")
	}
	if w.Heads {
		flags = append(flags, "--heads")
	}
	return strings.Join(flags, " ")
}

func (w waiting) filter(limit int) dlq.StoredFilter {
	return dlq.StoredFilter{Consumer: w.Consumer, Topic: w.Topic, Key: w.Key, Type: w.Type, Source: w.Source, EventID: w.EventID,
		Unhandled: w.Unhandled, Heads: w.Heads, Limit: limit}
}

type storedListCmd struct {
	waiting `embed:""`
	Limit   int  `help:"Maximum number to list." default:"100"`
	JSON    bool `help:"Print one JSON object per line, without payloads." name:"json"`
}

type jsonStored struct {
	Consumer  string     `json:"consumer"`
	Topic     string     `json:"topic"`
	Key       string     `json:"key"`
	EventID   string     `json:"event_id"`
	Source    string     `json:"source"`
	Type      string     `json:"type"`
	Head      bool       `json:"head"`
	Running   bool       `json:"running"`
	Handled   bool       `json:"handled"` // some node handles its type
	Attempts  int        `json:"attempts"`
	LastError string     `json:"last_error,omitempty"`
	StoredAt  time.Time  `json:"stored_at"`
	NextAt    *time.Time `json:"next_at,omitempty"`
	Letter    int64      `json:"letter,omitempty"`
}

func jsonOfStored(s dlq.StoredEvent) jsonStored {
	return jsonStored{Consumer: s.Consumer, Topic: s.Event.Topic, Key: s.Event.Key, EventID: s.Event.ID, Source: s.Event.Source, Type: s.Event.Type, Head: s.Head,
		Running: s.Running, Handled: s.Handled, Attempts: s.Attempts, LastError: s.Error, StoredAt: s.StoredAt.UTC(), Letter: s.Letter, NextAt: unlessZero(s.NextAt.UTC())}
}

func (c *storedListCmd) Run(p *program) error {
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	events, err := d.ListStored(p.ctx, c.filter(c.Limit))
	if err != nil {
		return err
	}
	if c.JSON {
		enc := json.NewEncoder(p.out)
		for _, s := range events {
			if err := enc.Encode(jsonOfStored(s)); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tKEY\tID\tTYPE\tATTEMPTS\tSTORED\tWAITS FOR\tLAST ERROR")
	for _, s := range events {
		failure, _, _ := strings.Cut(s.Error, "\n")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%.80s\n", s.Event.Topic, clean(s.Event.Key), clean(s.Event.ID), clean(s.Event.Type), s.Attempts,
			s.StoredAt.UTC().Format(time.RFC3339), waitsFor(s), clean(failure))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(events) == c.Limit {
		fmt.Fprintln(p.out, "there may be more: raise --limit (1000 at most), or narrow the filter")
	}
	return nil
}

// waitsFor says what a stored event waits for.
func waitsFor(s dlq.StoredEvent) string {
	switch {
	case s.Running:
		return "its handler, which runs"
	case !s.Head:
		return "an earlier event of its key"
	case s.Paused:
		return "its consumer or its key, which is paused"
	case !s.Handled:
		return "a node that handles its type"
	case s.NextAt.IsZero():
		return "a dead letter of its key"
	default:
		return "its attempt at " + s.NextAt.UTC().Format(time.RFC3339)
	}
}

// changing are the flags of commands that change stored events.
type changing struct {
	waiting `embed:""`
	acting  `embed:""`
	All     bool `help:"All stored events of the consumer. Needed when there is no filter."`
	DryRun  bool `help:"Print how many, and change nothing."`
	Limit   int  `help:"Maximum number. Defaults to no limit." placeholder:"N"`
}

type storedChange func(*dlq.DLQ, context.Context, dlq.StoredFilter, dlq.StoredOptions) (int, error)

// change runs one of the three changes. done is what they are then.
func (c changing) change(p *program, change storedChange, done string) error {
	switch given := c.given(); {
	case given == "" && !c.All:
		return usageError{errors.New("which stored events? give a filter (--type, --key, --event-id, --unhandled, …), or --all for all of the consumer")}
	case given != "" && c.All:
		return usageError{errors.New("--all and a filter exclude each other: give one of them")}
	}
	if !c.DryRun {
		if err := c.checkReason(); err != nil {
			return err
		}
	}
	d, end, err := p.dlq()
	if err != nil {
		return err
	}
	defer end()
	n, err := change(d, p.ctx, c.filter(c.Limit), dlq.StoredOptions{DryRun: c.DryRun, By: c.by(), Reason: c.Reason})
	p.sayChanged(n, "stored event", done, c.DryRun, err)
	return err
}

type storedReleaseCmd struct {
	changing `embed:""`
}

func (c *storedReleaseCmd) Run(p *program) error {
	return c.change(p, (*dlq.DLQ).ReleaseStored, "released")
}

type storedSkipCmd struct {
	changing `embed:""`
	asking   `embed:""`
}

func (c *storedSkipCmd) Run(p *program) error {
	if !c.DryRun && c.checkReason() == nil {
		if err := c.ask(p, "The events are never handled then, and their payloads stay until dlq purge"); err != nil {
			return err
		}
	}
	return c.change(p, (*dlq.DLQ).SkipStored, "skipped")
}

type storedDeadLetterCmd struct {
	changing `embed:""`
}

func (c *storedDeadLetterCmd) Run(p *program) error {
	return c.change(p, (*dlq.DLQ).DeadLetterStored, "dead letters now")
}
