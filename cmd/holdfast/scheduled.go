package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast/dlq"
)

type scheduledCmd struct {
	List   scheduledListCmd   `cmd:"" help:"List events that wait for their time, those first that are due first."`
	Cancel scheduledCancelCmd `cmd:"" help:"Take events back before their time."`
}

// scheduledFlags choose scheduled events.
type scheduledFlags struct {
	Topic   string `help:"Only events of this topic." placeholder:"TOPIC"`
	Key     string `help:"Only events of this key." placeholder:"KEY"`
	Type    string `help:"Only events of this type." placeholder:"TYPE"`
	Source  string `help:"Only events of this source." placeholder:"SOURCE"`
	EventID string `help:"Only the event with this id." placeholder:"ID"`
}

func (f scheduledFlags) filter(limit int) dlq.ScheduledFilter {
	return dlq.ScheduledFilter{Topic: f.Topic, Key: f.Key, Type: f.Type, Source: f.Source, EventID: f.EventID, Limit: limit}
}

type scheduledListCmd struct {
	scheduledFlags `embed:""`
	Limit          int  `help:"Maximum number to list." default:"100"`
	JSON           bool `help:"Print one JSON object per line, without payloads." name:"json"`
}

type jsonScheduled struct {
	DueAt   time.Time `json:"due_at"`
	Topic   string    `json:"topic"`
	Key     string    `json:"key"`
	EventID string    `json:"event_id"`
	Source  string    `json:"source"`
	Type    string    `json:"type"`
	Lane    int       `json:"lane"`
}

func (c *scheduledListCmd) Run(p *program) error {
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	events, err := d.ListScheduled(p.ctx, c.filter(c.Limit))
	if err != nil {
		return err
	}
	if c.JSON {
		enc := json.NewEncoder(p.out)
		for _, s := range events {
			if err := enc.Encode(jsonScheduled{s.Event.NotBefore.UTC(), s.Event.Topic, s.Event.Key, s.Event.ID, s.Event.Source, s.Event.Type, s.Lane}); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DUE\tTOPIC\tKEY\tID\tTYPE\tSOURCE")
	for _, s := range events {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Event.NotBefore.UTC().Format(time.RFC3339), s.Event.Topic, clean(s.Event.Key), clean(s.Event.ID), clean(s.Event.Type), clean(s.Event.Source))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(events) == c.Limit {
		fmt.Fprintln(p.out, "there may be more: raise --limit (1000 at most), or narrow the filter")
	}
	return nil
}

type scheduledCancelCmd struct {
	scheduledFlags `embed:""`
	acting         `embed:""`
	asking         `embed:""`
	Events         []string `arg:"" optional:"" name:"event" help:"Ids of the events. Give these or a filter."`
	All            bool     `help:"All scheduled events. Needed when there is no filter."`
	DryRun         bool     `help:"Print how many, and change nothing."`
	Limit          int      `help:"Maximum number, those first that are due first. Defaults to no limit." placeholder:"N"`
}

func (c *scheduledCancelCmd) Run(p *program) error {
	switch given := c.scheduledFlags != (scheduledFlags{}); {
	case len(c.Events) > 0 && (c.Topic != "" || c.Key != "" || c.Type != "" || c.EventID != "" || c.All || c.Limit > 0):
		return usageError{errors.New("ids and a filter exclude each other: give one of them (only --source may be with ids)")}
	case len(c.Events) == 0 && !given && !c.All:
		return usageError{errors.New("which scheduled events? give ids, a filter (--topic, --key, --type, …), or --all for all of them")}
	case given && c.All:
		return usageError{errors.New("--all and a filter exclude each other: give one of them")}
	}
	if !c.DryRun {
		if err := c.checkReason(); err != nil {
			return err
		}
	}
	if !c.DryRun {
		if err := c.ask(p, "The events are not published then, and their payloads stay until dlq purge"); err != nil {
			return err
		}
	}
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	filters := []dlq.ScheduledFilter{c.filter(c.Limit)}
	if len(c.Events) > 0 {
		filters = nil
		for _, id := range c.Events {
			filters = append(filters, dlq.ScheduledFilter{EventID: id, Source: c.Source})
		}
	}
	n, line := 0, progressLine{p: p, doing: "cancelling", thing: "scheduled event"}
	var wrong []error
	for _, f := range filters {
		before := n
		cancelled, err := d.CancelScheduled(p.ctx, f, dlq.ScheduledOptions{DryRun: c.DryRun, By: c.by(), Reason: c.Reason,
			ProgressFunc: func(sofar int) { line.report(before+sofar, 0) }})
		n += cancelled
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	err = errors.Join(wrong...)
	p.sayChanged(n, "scheduled event", "cancelled: holdfast dlq list --origin relay --state discarded shows "+verb(n, "it", "them"), c.DryRun, err)
	return oneLineEach(err)
}

// oneLineEach is joined errors as one, separated by semicolons: what is printed is one line.
func oneLineEach(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}
