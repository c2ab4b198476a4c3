package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/dlq"
)

type dlqCmd struct {
	List    dlqListCmd    `cmd:"" help:"List letters."`
	Show    dlqShowCmd    `cmd:"" help:"Show one letter with its chain of errors."`
	Replay  dlqReplayCmd  `cmd:"" help:"Send letters through the same door again."`
	Edit    dlqEditCmd    `cmd:"" help:"Give a letter a new payload; the old one is kept."`
	Discard dlqDiscardCmd `cmd:"" help:"Give a letter up for good."`
}

// chosen are the flags of a filter.
type chosen struct {
	ID          []int64       `help:"These letters only." placeholder:"N"`
	Origin      string        `help:"relay or inbox." enum:",relay,inbox" default:""`
	Consumer    string        `help:"Of this consumer."`
	Type        string        `help:"Of this type."`
	Topic       string        `help:"Of this topic."`
	Key         string        `help:"Of this key."`
	Source      string        `help:"Of this source."`
	EventID     string        `help:"Of this event."`
	Fingerprint string        `help:"Of this kind of failure."`
	Since       time.Time     `help:"Given up at this moment or later." placeholder:"2026-01-31T00:00:00Z"`
	Until       time.Time     `help:"Given up before this moment." placeholder:"2026-01-31T00:00:00Z"`
	Within      time.Duration `help:"Given up within this span." placeholder:"24h"`
}

func (c chosen) filter() dlq.Filter {
	f := dlq.Filter{IDs: c.ID, Origin: c.Origin, Consumer: c.Consumer, Type: c.Type, Topic: c.Topic, Key: c.Key, Source: c.Source, EventID: c.EventID, Fingerprint: c.Fingerprint,
		Since: c.Since, Until: c.Until}
	if c.Within > 0 {
		f.Since = time.Now().Add(-c.Within)
	}
	return f
}

// acting are the flags of whoever changes something.
type acting struct {
	By     string `help:"Who acts. Defaults to the name you are logged in with." placeholder:"NAME"`
	Reason string `help:"Why; it is kept." placeholder:"WHY"`
}

// checkReason asks for what a later reader of the letter will want to know.
func (a acting) checkReason() error {
	if a.Reason == "" {
		return usageError{errors.New("missing flags: --reason=WHY: it is kept with the letter")}
	}
	return nil
}

func (a acting) by() string {
	if a.By != "" {
		return a.By
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

func (p *program) dlq() (*dlq.DLQ, func(), error) {
	pool, err := p.pool()
	if err != nil {
		return nil, nil, err
	}
	d, err := dlq.New(pool, dlq.Config{Schema: p.cli.Schema})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return d, pool.Close, nil
}

type dlqListCmd struct {
	chosen `embed:""`
	State  string `help:"open, replaying, replayed, discarded or any." default:"open" enum:"open,replaying,replayed,discarded,any"`
	Limit  int    `help:"At most so many." default:"100"`
	After  int64  `help:"Letters behind this id: the next page."`
	JSON   bool   `help:"One JSON object a line, without payloads." name:"json"`
}

func (c *dlqListCmd) Run(p *program) error {
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	f := c.filter()
	f.State, f.Limit, f.After, f.NoPayloads = c.State, c.Limit, c.After, true
	letters, err := d.List(p.ctx, f)
	if err != nil {
		return err
	}
	if c.JSON {
		enc := json.NewEncoder(p.out)
		for _, l := range letters {
			if err := enc.Encode(asJSON(l)); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tFROM\tSTATE\tTOPIC\tKEY\tTYPE\tATTEMPTS\tLAST\tREASON")
	for _, l := range letters {
		from := l.Origin
		if l.Consumer != "" {
			from = l.Consumer
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%.80s\n", l.ID, clean(from), l.State, l.Event.Topic, clean(l.Event.Key), clean(l.Event.Type), l.Attempts, l.LastAt.UTC().Format(time.RFC3339), clean(l.Reason))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(letters) == c.Limit {
		fmt.Fprintf(p.out, "there may be more: add --after %d\n", letters[len(letters)-1].ID)
	}
	return nil
}

// jsonLetter is a letter without what may be private: payload and header values.
type jsonLetter struct {
	ID           int64        `json:"id"`
	Origin       string       `json:"origin"`
	Consumer     string       `json:"consumer,omitempty"`
	State        string       `json:"state"`
	Reason       string       `json:"reason"`
	Fingerprint  string       `json:"fingerprint"`
	Holds        bool         `json:"holds"`
	EventID      string       `json:"event_id"`
	Source       string       `json:"source"`
	Type         string       `json:"type"`
	Topic        string       `json:"topic"`
	Key          string       `json:"key"`
	Time         time.Time    `json:"time"`
	PayloadBytes int          `json:"payload_bytes"` // -1: a tombstone
	Version      int          `json:"version"`
	Attempts     int          `json:"attempts"`
	FirstAt      time.Time    `json:"first_at"`
	LastAt       time.Time    `json:"last_at"`
	Partition    int          `json:"partition"` // -1: not from Kafka
	Offset       int64        `json:"offset"`
	Errors       []string     `json:"errors,omitempty"`
	Actions      []jsonAction `json:"actions,omitempty"` // of show
	Payload      []byte       `json:"payload,omitempty"` // of show --payload, in base64
}

type jsonAction struct {
	Action  string    `json:"action"`
	By      string    `json:"by"`
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
	Version int       `json:"version,omitempty"`
}

func asJSON(l dlq.Letter) jsonLetter {
	return jsonLetter{ID: l.ID, Origin: l.Origin, Consumer: l.Consumer, State: l.State, Reason: l.Reason, Fingerprint: l.Fingerprint, Holds: l.Holds,
		EventID: l.Event.ID, Source: l.Event.Source, Type: l.Event.Type, Topic: l.Event.Topic, Key: l.Event.Key, Time: l.Event.Time.UTC(),
		PayloadBytes: l.PayloadSize, Version: l.Version, Attempts: l.Attempts, FirstAt: l.FirstAt.UTC(), LastAt: l.LastAt.UTC(),
		Partition: l.Partition, Offset: l.Offset, Errors: l.Errors}
}

type dlqShowCmd struct {
	ID      int64 `arg:"" help:"The letter's id."`
	Payload bool  `help:"Show the payload too."`
	JSON    bool  `help:"As a JSON object; the payload in base64." name:"json"`
}

func (c *dlqShowCmd) Run(p *program) error {
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	l, err := d.Get(p.ctx, c.ID)
	if err != nil {
		return err
	}
	actions, err := d.Actions(p.ctx, c.ID)
	if err != nil {
		return err
	}
	if c.JSON {
		j := asJSON(l)
		if c.Payload {
			j.Payload = l.Event.Payload
		}
		for _, a := range actions {
			j.Actions = append(j.Actions, jsonAction{a.Action, a.By, a.Reason, a.At.UTC(), a.Version})
		}
		return json.NewEncoder(p.out).Encode(j)
	}
	size := fmt.Sprint(l.PayloadSize)
	if l.PayloadSize < 0 {
		size = "none: a tombstone"
	}
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, row := range [][2]any{{"letter", l.ID}, {"state", l.State}, {"origin", l.Origin}, {"consumer", l.Consumer}, {"reason", l.Reason}, {"fingerprint", l.Fingerprint},
		{"holds its key", yes(l.Holds)}, {"event", l.Event.ID}, {"source", l.Event.Source}, {"type", l.Event.Type}, {"topic", l.Event.Topic}, {"key", l.Event.Key},
		{"time", l.Event.Time.UTC().Format(time.RFC3339Nano)}, {"partition", l.Partition}, {"offset", l.Offset}, {"payload bytes", size}, {"version", l.Version},
		{"attempts", l.Attempts}, {"first given up", l.FirstAt.UTC().Format(time.RFC3339)}, {"last given up", l.LastAt.UTC().Format(time.RFC3339)}} {
		fmt.Fprintf(w, "%v\t%s\n", row[0], clean(fmt.Sprint(row[1])))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i, text := range l.Errors {
		fmt.Fprintf(p.out, "error %d: %s\n", i+1, clean(text))
	}
	for _, a := range actions {
		fmt.Fprintf(p.out, "%s %s by %s: %s\n", a.At.UTC().Format(time.RFC3339), a.Action, clean(a.By), clean(a.Reason))
	}
	if c.Payload {
		if text := string(l.Event.Payload); clean(text) == text {
			fmt.Fprintf(p.out, "\n%s\n", text)
		} else {
			fmt.Fprintf(p.out, "\n%x\n", l.Event.Payload)
		}
	}
	return nil
}

// clean makes what others wrote safe for a terminal: characters that would move the cursor, or worse, are escaped.
func clean(text string) string {
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsGraphic(r) && r != '\n' && r != '\t' {
			quoted := strconv.QuoteToGraphic(text)
			return quoted[1 : len(quoted)-1]
		}
	}
	return text
}

type dlqReplayCmd struct {
	chosen `embed:""`
	acting `embed:""`
	DryRun bool    `help:"Count only."`
	Limit  int     `help:"At most so many, the oldest first. Defaults to no limit." placeholder:"N"`
	Rate   float64 `help:"Letters a second. Defaults to no limit."`
}

func (c *dlqReplayCmd) Run(p *program) error {
	if err := c.checkReason(); err != nil && !c.DryRun {
		return err
	}
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	f := c.filter()
	f.Limit = c.Limit
	n, err := d.Replay(p.ctx, f, dlq.ReplayOptions{DryRun: c.DryRun, Rate: c.Rate, By: c.by(), Reason: c.Reason})
	switch {
	case err != nil && n == 0:
	case c.DryRun:
		fmt.Fprintf(p.out, "%d letters would be replayed\n", n)
	default: // Also when it broke off: those are on their way.
		fmt.Fprintf(p.out, "%d letters are on their way; holdfast dlq list --state any shows what became of them\n", n)
	}
	return err
}

type dlqEditCmd struct {
	acting    `embed:""`
	ID        int64  `arg:"" help:"The letter's id."`
	File      string `arg:"" optional:"" help:"File with the new payload, - for standard input." default:"-"`
	Tombstone bool   `help:"No payload at all: a Kafka record without a value."`
}

func (c *dlqEditCmd) Run(p *program) error {
	if err := c.checkReason(); err != nil {
		return err
	}
	var payload []byte
	var err error
	switch {
	case c.Tombstone && c.File != "-":
		return usageError{errors.New("--tombstone and a file are given: one of them")}
	case c.Tombstone:
	case c.File == "-":
		payload, err = io.ReadAll(os.Stdin)
	default:
		payload, err = os.ReadFile(c.File)
	}
	if err != nil {
		return fmt.Errorf("read the new payload: %w", err)
	}
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	if err := d.Edit(p.ctx, c.ID, payload, c.by(), c.Reason); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "letter %d has a new payload; holdfast dlq replay --id %d sends it\n", c.ID, c.ID)
	return nil
}

type dlqDiscardCmd struct {
	acting `embed:""`
	ID     int64 `arg:"" help:"The letter's id."`
}

func (c *dlqDiscardCmd) Run(p *program) error {
	if err := c.checkReason(); err != nil {
		return err
	}
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	if err := d.Discard(p.ctx, c.ID, c.by(), c.Reason); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "letter %d is discarded\n", c.ID)
	return nil
}
