package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operate"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/terminal"
	"github.com/holdfast-go/holdfast/waiting"
)

type statusCmd struct {
	JSON   bool   `help:"Print one JSON object with the tables and what needs a person." name:"json"`
	Limits limits `embed:""`

	Pause time.Duration `help:"Time between two looks at the lanes, which show two relays of one name. 0 takes one look." default:"1s"`

	Watch bool          `help:"Show it again and again until SIGINT or SIGTERM. The exit code is that of the last time."`
	Every time.Duration `help:"With --watch: how often." default:"2s"`

	Brokers []string `help:"Kafka brokers, separated by commas, to show the lag of consumers." placeholder:"HOST:PORT" env:"KAFKA_BROKERS" sep:","`

	Kafka kafkaFlags `embed:"" group:"kafka"`

	before state.Owners // with --watch: of the lanes at the last look
}

// limits are how old what waits may become.
type limits struct {
	Unpublished time.Duration `help:"Age of an unpublished event from which a person is needed. 0 means never." name:"max-unpublished-age" default:"1m"`
	Waiting     time.Duration `help:"Time that an event may wait before a person is needed. 0 means for ever." name:"max-waiting-age" default:"15m"`
}

func (c *statusCmd) Run(p *program.Program) error {
	ends, done, err := endsOf(c.Brokers, &c.Kafka, os.Getenv)
	if err != nil {
		return err
	}
	defer done()
	if c.Watch {
		return c.watching(p, ends)
	}
	pool, err := p.Pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	text, needy, err := c.look(p.Ctx, pool, p.Schema(), ends)
	if err != nil {
		return err
	}
	if _, err := p.Out.Write(text); err != nil || !needy {
		return err
	}
	return program.ErrNeedsPerson
}

// look reads everything once and returns what to print. needy says that something needs a person. ends is nil without brokers.
func (c *statusCmd) look(ctx context.Context, pool *pgxpool.Pool, schema holdfast.SchemaConfig, ends state.Ends) (text []byte, needy bool, err error) {
	wrong := holdfast.Check(ctx, pool, schema)
	if errors.Is(wrong, holdfast.ErrSchemaMissing) || errors.Is(wrong, holdfast.ErrSchemaVersion) {
		return nil, false, wrong
	}
	l := state.Limits(c.Limits)
	s, err := state.Read(ctx, pool, state.Options{
		Schema: schema.Schema,
		Limits: l,
		Ends:   ends,
		Before: c.before,
		Pause:  c.Pause,
		Drift:  wrong,
	})
	switch {
	case err != nil && wrong != nil: // It says more than the error of a statement.
		return nil, false, wrong
	case err != nil:
		return nil, false, fmt.Errorf("read status: %w", err)
	}
	if c.Watch {
		c.before = s.After
	}
	needs := s.Needs(l)
	var out bytes.Buffer
	if c.JSON {
		err = encode(&out, s, needs)
	} else {
		err = printState(&out, s)
		printNeeds(&out, needs)
	}
	return out.Bytes(), len(needs) > 0, err
}

// encode prints everything as one JSON object. Durations are in seconds.
func encode(out io.Writer, s state.State, needs []state.Need) error {
	return json.NewEncoder(out).Encode(struct {
		Needs []string `json:"needs_a_person"`
		state.State
	}{texts(needs), s})
}

// texts are needs in one line each; nil of nil.
func texts(needs []state.Need) []string {
	if needs == nil {
		return nil
	}
	all := make([]string, len(needs))
	for i, n := range needs {
		all[i] = n.String()
	}
	return all
}

func printNeeds(out io.Writer, needs []state.Need) {
	if len(needs) == 0 {
		fmt.Fprintln(out, "\nnothing needs a person")
		return
	}
	fmt.Fprintln(out, "\nneeds a person:")
	for _, text := range texts(needs) {
		fmt.Fprintf(out, "- %s\n", text)
	}
}

// printState prints a table of each list that has something.
func printState(out io.Writer, s state.State) error {
	return errors.Join(
		tableOf(out, "PAUSED\tFOR\tBY\tREASON", s.Paused, func(p state.Pause) string {
			return cells(p.Of(), state.Span(p.Seconds), p.By, p.Reason)
		}),
		tableOf(out, "LANE\tOWNER\tLEASE\tEPOCH\tSAVED\tUNREAD\tOLDEST\tWAITING\tOLDEST WAITING\tSCHEDULED\tLETTERS\tHELD BY", s.Lanes, func(l state.Lane) string {
			return cells(l.Lane, state.Dash(l.Owner), state.Span(l.Lease), l.Epoch, state.Span(l.Saved)+" ago", terminal.YesNo(l.Unread), state.Span(l.Oldest), l.WaitingText(),
				state.Span(l.OldestWaiting), l.ScheduledText(), state.AtMost(l.Letters, state.MostEvents), state.Dash(l.HeldBy))
		}),
		tableOf(out, "RELAY\tUP\tTROUBLE", s.Relays, func(r state.Relay) string { return cells(r.Relay, state.Span(r.Up), state.Dash(r.Trouble)) }),
		tableOf(out, "SEGMENT\tCURRENT\tMiB", s.Segments, func(g state.Segment) string { return cells(g.Segment, terminal.YesNo(g.Current), mebibytes(g.Bytes)) }),
		tableOf(out, "CONSUMER\tWAITING\tKEYS\tOLDEST\tLETTERS\tNODES\tHEARD", s.Consumers, func(c state.Consumer) string {
			heard := "-"
			if c.Heard >= 0 {
				heard = state.Span(c.Heard) + " ago"
			}
			return cells(c.Consumer, c.WaitingText(), c.KeysText(), state.Span(c.Oldest), state.AtMost(c.Letters, state.MostEvents), c.Nodes, heard)
		}),
		tableOf(out, "CONSUMER\tTOPIC\tBLOCKED KEY\tEVENTS\tFOR\tHEAD\tATTEMPTS\tWHY", s.Blocked, func(b state.Blocked) string {
			says := operate.WhyOr(b.Why, b.Running)
			switch b.Why {
			case waiting.BehindLetter:
				says += fmt.Sprintf(": holdfast dlq show %d", b.Letter)
			case waiting.NoHandler:
				says += " for " + b.HeadType
			case waiting.Dependency:
				if names := s.AwayFor(b.Consumer, b.HeadType); len(names) > 0 {
					says += ": " + strings.Join(names, ", ")
				}
			case waiting.Failed:
				says += ", next attempt in " + state.Span(b.Next)
			}
			return cells(b.Consumer, b.Topic, b.Key, state.AtMost(b.Events, state.MostRows), state.Span(b.Seconds), b.HeadID, b.Attempts, says)
		}),
		tableOf(out, "CONSUMER\tTOPIC\tSKIPPED TYPE\tEVENTS\tLAST", s.Skipped, func(k state.Skipped) string {
			if k.Topic == "" {
				k.Type = "(others)"
			}
			return cells(k.Consumer, state.Dash(k.Topic), k.Type, k.Events, state.Span(k.Last)+" ago")
		}),
		tableOf(out, "CONSUMER\tDEPENDENCY\tFOR\tWAITING\tTYPES\tSTATE\tLAST ERROR", s.Needed, func(d state.Dependency) string {
			return cells(d.Consumer, d.Name, state.Span(d.Seconds), d.WaitingText(), state.Dash(d.TypesText()), d.State(), state.Dash(d.Error))
		}),
		tableOf(out, "CONSUMER\tBACKFILLED\tOF\tPARTITIONS\tPER SECOND\tTIME LEFT\tTOLD\tSTATE", s.Backfills, func(b state.Backfill) string {
			timeLeft, perSecond := "-", "-"
			if b.Runs() {
				perSecond = fmt.Sprint(b.PerSecond())
				if left := b.WholeSecondsLeft(); left >= 0 {
					timeLeft = state.Span(left)
				}
			}
			return cells(b.Consumer, b.Done, b.All(), fmt.Sprintf("%d of %d", b.PartitionsDone(), b.Partitions), perSecond, timeLeft, state.Span(b.Told)+" ago", b.State())
		}),
		tableOf(out, "CONSUMER\tTOPIC\tPARTITION\tPOSITION\tLAG\tOWNER\tSAVED", s.Positions, func(p state.Position) string {
			behind := "-"
			if p.Known {
				behind = fmt.Sprint(p.Lag)
			}
			return cells(p.Consumer, p.Topic, p.Partition, p.Position, behind, state.Dash(p.Owner), state.Span(p.Saved)+" ago")
		}),
		tableOf(out, "TABLE\tMiB\tROWS", s.Sizes, func(z state.Size) string {
			about := fmt.Sprint(z.Rows)
			if z.Rows < 0 {
				about = "-"
			}
			return cells(z.Table, mebibytes(z.Bytes), about)
		}),
	)
}

// tableOf prints rows under a head; without rows it prints nothing.
func tableOf[T any](out io.Writer, head string, rows []T, line func(T) string) error {
	if len(rows) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%s\n", head)
	for _, row := range rows {
		fmt.Fprintln(w, line(row))
	}
	return w.Flush()
}

// cells are a line of a table.
func cells(values ...any) string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = terminal.Clean(fmt.Sprint(value))
	}
	return strings.Join(texts, "\t")
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f", float64(bytes)/(1<<20)) }
