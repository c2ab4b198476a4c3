// Package operate has the commands of a person who looks for events and decides what becomes of them: find, pause and resume, waiting,
// dlq, tenant. Each is a struct whose tags say its flags; Run does it.
package operate

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

// DLQ is holdfast dlq.
type DLQ struct {
	Groups  dlqGroupsCmd  `cmd:"" help:"Count dead letters by kind of failure, the most frequent first."`
	List    dlqListCmd    `cmd:"" help:"List dead letters."`
	Show    dlqShowCmd    `cmd:"" help:"Show one dead letter with its errors and what was done to it."`
	Replay  DLQReplay     `cmd:"" help:"Re-deliver dead letters."`
	Edit    dlqEditCmd    `cmd:"" help:"Give a dead letter a new payload and keep the old one."`
	Discard dlqDiscardCmd `cmd:"" help:"Close dead letters without handling them."`
	Purge   dlqPurgeCmd   `cmd:"" help:"Delete dead letters that were replayed or discarded long ago."`
}

func openDLQ(p *program.Program) (*dlq.DLQ, func(), error) {
	pool, err := p.Pool()
	if err != nil {
		return nil, nil, err
	}
	d, err := dlq.New(pool, dlq.Config{Schema: p.Database.Schema})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return d, pool.Close, nil
}

type dlqListCmd struct {
	Chosen `embed:""`
	State  string `help:"State: open, replaying, replayed, discarded or any." default:"open" enum:"open,replaying,replayed,discarded,any"`
	Limit  int    `help:"Maximum number to list." default:"100"`
	After  int64  `help:"Dead letters after this id, for the next page." placeholder:"ID"`
	JSON   bool   `help:"Print one JSON object per line, without payloads." name:"json"`
}

func (c *dlqListCmd) Run(p *program.Program) error {
	d, done, err := openDLQ(p)
	if err != nil {
		return err
	}
	defer done()
	f := c.filter()
	f.State, f.Limit, f.After, f.NoPayloads = c.State, c.Limit, c.After, true
	letters, err := d.List(p.Ctx, f)
	if err != nil {
		return err
	}
	if len(letters) == 0 {
		defer sayUnknown(p, c.Consumer)
	}
	if c.JSON {
		enc := json.NewEncoder(p.Out)
		for _, l := range letters {
			if err := enc.Encode(asJSON(l)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := table(p.Out, letters); err != nil {
		return err
	}
	if len(letters) == 0 {
		return nil
	}
	f.After, f.Limit = letters[len(letters)-1].ID, 1
	more, err := d.List(p.Ctx, f) // a page may end for its bytes
	if err == nil && len(more) > 0 {
		fmt.Fprintf(p.Out, "there are more: add --after %d\n", f.After)
	}
	return err
}

// table prints letters, one per line.
func table(out io.Writer, letters []dlq.Letter) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tFROM\tSTATE\tTOPIC\tKEY\tTYPE\tATTEMPTS\tLAST\tREASON")
	for _, l := range letters {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%.80s\n", l.ID, terminal.Clean(from(l.Origin, l.Consumer)), l.State, terminal.Clean(l.Event.Topic), terminal.Clean(l.Event.Key), terminal.Clean(l.Event.Type), l.Attempts, l.LastAt.UTC().Format(time.RFC3339), terminal.Clean(l.Reason))
	}
	return w.Flush()
}

// from names the relay or the consumer that gave a letter up.
func from(origin, consumer string) string {
	if consumer != "" {
		return consumer
	}
	return origin
}

type dlqGroupsCmd struct {
	Chosen `embed:""`
	State  string `help:"State: open, replaying, replayed, discarded or any." default:"open" enum:"open,replaying,replayed,discarded,any"`
	Limit  int    `help:"Maximum number of groups to list." default:"100"`
	JSON   bool   `help:"Print one JSON object per line." name:"json"`
}

// JSONGroup is a group of letters with one kind of failure.
type JSONGroup struct {
	Letters     int       `json:"letters"`
	Holding     int       `json:"holding"` // how many of the letters hold their key
	Origin      string    `json:"origin"`
	Consumer    string    `json:"consumer,omitempty"`
	Topic       string    `json:"topic"`
	Type        string    `json:"type"`
	Fingerprint string    `json:"fingerprint"`
	FirstAt     time.Time `json:"first_at"`
	LastAt      time.Time `json:"last_at"`
	Letter      int64     `json:"letter"` // the newest, as an example
	Reason      string    `json:"reason"` // of that letter
}

// lettersOf is the command that lists the letters of a group, and no others: "" if there is none that is safe to print.
func (c *dlqGroupsCmd) lettersOf(g dlq.Group) string {
	if g.Topic == "" || g.Type == "" || g.Fingerprint == "" { // an empty flag chooses all
		return ""
	}
	of := c.Chosen
	of.Origin, of.Consumer, of.Topic, of.Type, of.Fingerprint = g.Origin, g.Consumer, g.Topic, g.Type, g.Fingerprint
	if of.Consumer != "" {
		of.Origin = "" // only inboxes have consumers
	}
	command := "holdfast dlq list" + of.follows()
	if c.State != dlq.StateOpen {
		command += " --state=" + c.State
	}
	if strings.ContainsFunc(command, func(r rune) bool { return !unicode.IsGraphic(r) }) { // escaped, it would choose nothing; terminal.Clean leaves line breaks
		return ""
	}
	return command
}

func (c *dlqGroupsCmd) Run(p *program.Program) error {
	d, done, err := openDLQ(p)
	if err != nil {
		return err
	}
	defer done()
	f := c.filter()
	f.State, f.Limit = c.State, c.Limit
	groups, err := d.Groups(p.Ctx, f)
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		defer sayUnknown(p, c.Consumer)
	}
	if c.JSON {
		enc := json.NewEncoder(p.Out)
		for _, g := range groups {
			if err := enc.Encode(JSONGroup{g.Letters, g.Holding, g.Origin, g.Consumer, g.Topic, g.Type, g.Fingerprint, g.FirstAt.UTC(), g.LastAt.UTC(), g.Letter, g.Reason}); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(p.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LETTERS\tHOLDING\tFROM\tTOPIC\tTYPE\tFIRST\tLAST\tEXAMPLE\tREASON\tFINGERPRINT")
	for _, g := range groups {
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%.80s\t%s\n", g.Letters, g.Holding, terminal.Clean(from(g.Origin, g.Consumer)), terminal.Clean(g.Topic), terminal.Clean(g.Type),
			g.FirstAt.UTC().Format(time.RFC3339), g.LastAt.UTC().Format(time.RFC3339), g.Letter, terminal.Clean(g.Reason), terminal.Clean(g.Fingerprint))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(groups) > 0 {
		fmt.Fprintf(p.Out, "\nexample of the first group: holdfast dlq show %d\n", groups[0].Letter)
		if command := c.lettersOf(groups[0]); command != "" {
			fmt.Fprintf(p.Out, "its dead letters: %s\n", command)
		}
	}
	return nil
}
