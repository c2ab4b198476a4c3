package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast/dlq"
)

type parkedCmd struct {
	List     parkedListCmd     `cmd:"" help:"List topics with parked events."`
	Retry    parkedRetryCmd    `cmd:"" help:"Try the parked events of a topic at once."`
	GiveUp   parkedGiveUpCmd   `cmd:"" name:"give-up" help:"Make the parked events of a topic dead letters."`
	Redirect parkedRedirectCmd `cmd:"" help:"Make the parked events of a topic events of another one."`
}

type parkedListCmd struct {
	JSON bool `help:"Print one JSON object per line." name:"json"`
}

type jsonParked struct {
	Topic     string    `json:"topic"`
	Why       string    `json:"why"`
	Events    int       `json:"events"`
	Keys      int       `json:"keys"`
	Bytes     int64     `json:"bytes"`
	OldestAt  time.Time `json:"oldest_at"`
	LastError string    `json:"last_error,omitempty"`
}

func (c *parkedListCmd) Run(p *program) error {
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	topics, err := d.ListParked(p.ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		enc := json.NewEncoder(p.out)
		for _, t := range topics {
			if err := enc.Encode(jsonParked{t.Topic, t.Why, t.Events, t.Keys, t.Bytes, t.OldestAt.UTC(), t.Error}); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tWHY\tEVENTS\tKEYS\tMiB\tOLDEST\tLAST ERROR")
	for _, t := range topics {
		failure, _, _ := strings.Cut(t.Error, "\n")
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.1f\t%s\t%.80s\n", t.Topic, t.Why, t.Events, t.Keys, float64(t.Bytes)/(1<<20), t.OldestAt.UTC().Format(time.RFC3339), clean(failure))
	}
	return w.Flush()
}

// parked are the flags of commands that change parked events.
type parked struct {
	Topic  string `help:"Whose parked events." required:"" placeholder:"TOPIC"`
	Key    string `help:"Only events of this key." placeholder:"KEY"`
	acting `embed:""`
	DryRun bool `help:"Print how many, and change nothing."`
}

// change runs one of the changes. done is what the events are then, doing what it is called meanwhile.
func (c parked) change(p *program, doing, done string, change func(*dlq.DLQ, dlq.ParkedFilter, dlq.ParkedOptions) (int, error)) error {
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
	line := progressLine{p: p, doing: doing, thing: "parked event"}
	var last dlq.ParkedProgress
	report := func(progress dlq.ParkedProgress) {
		last = progress
		line.report(progress.Moved, progress.Total)
	}
	n, err := change(d, dlq.ParkedFilter{Topic: c.Topic, Key: c.Key}, dlq.ParkedOptions{DryRun: c.DryRun, By: c.by(), Reason: c.Reason, ProgressFunc: report})
	p.sayChanged(n, "parked event", done, c.DryRun, err)
	if left := last.Total - last.Moved - last.Held; err != nil && n > 0 && left > 0 {
		fmt.Fprintf(p.errOut, "stopped with %s left: the same command continues with %s\n", count(left, "parked event"), verb(left, "it", "them"))
	}
	return err
}

type parkedRetryCmd struct {
	parked    `embed:""`
	Partition *int `help:"Only what waits for this partition of the topic." placeholder:"N"`
}

func (c *parkedRetryCmd) Run(p *program) error {
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
	n, err := d.RetryParked(p.ctx, dlq.ParkedFilter{Topic: c.Topic, Key: c.Key, Partition: c.Partition}, dlq.ParkedOptions{DryRun: c.DryRun, By: c.by(), Reason: c.Reason})
	p.sayChanged(n, "parked event", "due now", c.DryRun, err)
	if err == nil && !c.DryRun {
		fmt.Fprintln(p.out, "what is held of the topic is tried at once too; holdfast parked list shows what still waits")
	}
	return err
}

type parkedGiveUpCmd struct {
	parked  `embed:""`
	asking  `embed:""`
	Discard bool `help:"Discard them for good: their payloads stay until dlq purge."`
}

func (c *parkedGiveUpCmd) Run(p *program) error {
	done, act := "dead letters now", (*dlq.DLQ).GiveUpParked
	if c.Discard {
		done, act = "discarded", (*dlq.DLQ).DiscardParked
	}
	if !c.DryRun && c.Discard && c.checkReason() == nil {
		if err := c.ask(p, "The events are not published then, and their payloads stay until dlq purge"); err != nil {
			return err
		}
	}
	return c.change(p, "giving up", done, func(d *dlq.DLQ, f dlq.ParkedFilter, o dlq.ParkedOptions) (int, error) {
		return act(d, p.ctx, f, o)
	})
}

type parkedRedirectCmd struct {
	parked `embed:""`
	To     string `help:"The topic whose events they are from then on." required:"" placeholder:"TOPIC"`
}

func (c *parkedRedirectCmd) Run(p *program) error {
	return c.change(p, "redirecting", "redirected to "+clean(c.To), func(d *dlq.DLQ, f dlq.ParkedFilter, o dlq.ParkedOptions) (int, error) {
		return d.RedirectParked(p.ctx, f, c.To, o)
	})
}
