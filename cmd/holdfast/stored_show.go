package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast/dlq"
)

type storedShowCmd struct {
	Consumer string `help:"Whose event." required:"" placeholder:"NAME"`
	Source   string `help:"The event's source, if several have an event with this id." placeholder:"SOURCE"`
	Payload  bool   `help:"Print the payload, and the values of headers."`
	JSON     bool   `help:"Print one JSON object." name:"json"`
	ID       string `arg:"" name:"event" help:"Id of the event."`
}

type jsonStoredDetail struct {
	jsonStored
	Paused      bool              `json:"paused"`
	WaitsFor    string            `json:"waits_for"`
	Errors      []string          `json:"errors"`
	FailedAt    *time.Time        `json:"failed_at,omitempty"`
	Partition   int               `json:"partition"`
	Offset      int64             `json:"offset"`
	PayloadSize int               `json:"payload_size"`
	Headers     map[string]string `json:"headers,omitempty"`
	Payload     []byte            `json:"payload,omitempty"`
}

func (c *storedShowCmd) Run(p *program) error {
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	found, err := d.GetStored(p.ctx, c.Consumer, c.Source, c.ID, c.Payload)
	if err != nil {
		return err
	}
	for _, s := range found {
		if c.JSON {
			err = c.encode(p, s)
		} else {
			err = c.print(p, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *storedShowCmd) encode(p *program, s dlq.StoredDetail) error {
	j := jsonStoredDetail{jsonStored: jsonOfStored(s.StoredEvent), Paused: s.Paused, WaitsFor: waitsFor(s.StoredEvent), Errors: s.Errors, FailedAt: unlessZero(s.FailedAt.UTC()),
		Partition: s.Partition, Offset: s.Offset, PayloadSize: s.PayloadSize}
	if c.Payload {
		j.Headers, j.Payload = s.Event.Headers, s.Event.Payload
	}
	return json.NewEncoder(p.out).Encode(j)
}

func (c *storedShowCmd) print(p *program, s dlq.StoredDetail) error {
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	line("event", "%s of %s, %s", clean(s.Event.ID), dash(s.Event.Source), clean(s.Event.Type))
	line("consumer", "%s", clean(s.Consumer))
	line("topic", "%s, key %s", s.Event.Topic, dash(s.Event.Key))
	if s.Partition >= 0 {
		line("record", "partition %d, offset %d", s.Partition, s.Offset)
	}
	line("stored", "%s", s.StoredAt.UTC().Format(time.RFC3339))
	line("waits for", "%s", waitsFor(s.StoredEvent))
	line("attempts", "%d", s.Attempts)
	if !s.FailedAt.IsZero() {
		line("failed first", "%s", s.FailedAt.UTC().Format(time.RFC3339))
	}
	if s.Letter != 0 {
		line("replay of", "dead letter %d", s.Letter)
	}
	for i, text := range s.Errors {
		line(fmt.Sprintf("error %d", i+1), "%s", clean(text))
	}
	line("payload bytes", "%s", bytesOf(s.PayloadSize))
	if c.Payload {
		for name, value := range s.Event.Headers {
			line("header "+clean(name), "%s", clean(value))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if c.Payload && s.Event.Payload != nil {
		printPayload(p.out, s.Event.Payload)
	}
	return nil
}
