package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/user"
	"text/tabwriter"
	"time"
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
	EventID     string        `help:"Of this event."`
	Fingerprint string        `help:"Of this kind of failure."`
	Within      time.Duration `help:"Given up within this span." placeholder:"24h"`
}

func (c chosen) filter() dlq.Filter {
	f := dlq.Filter{IDs: c.ID, Origin: c.Origin, Consumer: c.Consumer, Type: c.Type, Topic: c.Topic, Key: c.Key, EventID: c.EventID, Fingerprint: c.Fingerprint}
	if c.Within > 0 {
		f.Since = time.Now().Add(-c.Within)
	}
	return f
}

// acting are the flags of whoever changes something.
type acting struct {
	By     string `help:"Who acts. Defaults to the name you are logged in with." placeholder:"NAME"`
	Reason string `help:"Why; it is kept." required:""`
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
	f.State, f.Limit, f.After = c.State, c.Limit, c.After
	letters, err := d.List(p.ctx, f)
	if err != nil {
		return err
	}
	if c.JSON {
		enc := json.NewEncoder(p.out)
		for _, l := range letters {
			if err := enc.Encode(jsonLetter(l)); err != nil {
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
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%.80s\n", l.ID, from, l.State, l.Event.Topic, l.Event.Key, l.Event.Type, l.Attempts, l.LastAt.UTC().Format(time.RFC3339), l.Reason)
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
func jsonLetter(l dlq.Letter) map[string]any {
	return map[string]any{"id": l.ID, "origin": l.Origin, "consumer": l.Consumer, "state": l.State, "reason": l.Reason, "fingerprint": l.Fingerprint,
		"holds": l.Holds, "event_id": l.Event.ID, "source": l.Event.Source, "type": l.Event.Type, "topic": l.Event.Topic, "key": l.Event.Key,
		"attempts": l.Attempts, "version": l.Version, "first_at": l.FirstAt.UTC(), "last_at": l.LastAt.UTC(), "partition": l.Partition, "offset": l.Offset}
}

type dlqShowCmd struct {
	ID      int64 `arg:"" help:"The letter's id."`
	Payload bool  `help:"Show the payload too."`
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
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, row := range [][2]any{{"letter", l.ID}, {"state", l.State}, {"origin", l.Origin}, {"consumer", l.Consumer}, {"reason", l.Reason}, {"fingerprint", l.Fingerprint},
		{"holds its key", l.Holds}, {"event", l.Event.ID}, {"source", l.Event.Source}, {"type", l.Event.Type}, {"topic", l.Event.Topic}, {"key", l.Event.Key},
		{"time", l.Event.Time.UTC().Format(time.RFC3339Nano)}, {"partition", l.Partition}, {"offset", l.Offset}, {"payload bytes", len(l.Event.Payload)}, {"version", l.Version},
		{"attempts", l.Attempts}, {"first given up", l.FirstAt.UTC().Format(time.RFC3339)}, {"last given up", l.LastAt.UTC().Format(time.RFC3339)}} {
		fmt.Fprintf(w, "%v\t%v\n", row[0], row[1])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i, text := range l.Errors {
		fmt.Fprintf(p.out, "error %d: %s\n", i+1, text)
	}
	if c.Payload {
		if utf8.Valid(l.Event.Payload) {
			fmt.Fprintf(p.out, "\n%s\n", l.Event.Payload)
		} else {
			fmt.Fprintf(p.out, "\n%x\n", l.Event.Payload)
		}
	}
	return nil
}

type dlqReplayCmd struct {
	chosen `embed:""`
	acting `embed:""`
	DryRun bool    `help:"Count only."`
	Rate   float64 `help:"Letters a second. Defaults to no limit."`
}

func (c *dlqReplayCmd) Run(p *program) error {
	d, done, err := p.dlq()
	if err != nil {
		return err
	}
	defer done()
	n, err := d.Replay(p.ctx, c.filter(), dlq.ReplayOptions{DryRun: c.DryRun, Rate: c.Rate, By: c.by(), Reason: c.Reason})
	if err != nil {
		return err
	}
	if c.DryRun {
		fmt.Fprintf(p.out, "%d letters would be replayed\n", n)
	} else {
		fmt.Fprintf(p.out, "%d letters are on their way; holdfast dlq list --state any shows what became of them\n", n)
	}
	return nil
}

type dlqEditCmd struct {
	acting `embed:""`
	ID     int64  `arg:"" help:"The letter's id."`
	File   string `arg:"" help:"File with the new payload, - for standard input." default:"-"`
}

func (c *dlqEditCmd) Run(p *program) error {
	var payload []byte
	var err error
	if c.File == "-" {
		payload, err = io.ReadAll(os.Stdin)
	} else {
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
