package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/waiting"
)

type statusCmd struct {
	JSON bool `help:"Print one JSON object with the tables and what needs a person." name:"json"`
	Ages ages `embed:""`

	Pause time.Duration `help:"Time between two looks at the lanes while a relay runs, which show two relays of one name. 0 takes one look." default:"1s"`

	Watch bool          `help:"Show it again and again until stopped by SIGINT or SIGTERM. The exit code is that of the last time."`
	Every time.Duration `help:"With --watch: how often." default:"2s"`

	Brokers []string `help:"Kafka brokers as host:port, separated by commas: to show the lag of consumers. Defaults to none." placeholder:"HOST:PORT" env:"KAFKA_BROKERS" sep:","`

	Kafka kafkaFlags `embed:""`

	before map[int]laneLook // with --watch: the lanes at the last look
}

func (c *statusCmd) Run(p *program) error {
	ends, done, err := endsOf(c.Brokers, &c.Kafka, os.Getenv)
	if err != nil {
		return err
	}
	defer done()
	if c.Watch {
		return c.watching(p, ends)
	}
	pool, err := p.pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	text, needy, err := c.look(p.ctx, pool, p.schema(), ends)
	if err != nil {
		return err
	}
	if _, err := p.out.Write(text); err != nil || !needy {
		return err
	}
	return errNeedsPerson
}

// look reads everything once and returns what to print. needy says that something needs a person. ends is nil without brokers.
func (c *statusCmd) look(ctx context.Context, pool *pgxpool.Pool, schema holdfast.SchemaConfig, ends metrics.Ends) (text []byte, needy bool, err error) {
	wrong := holdfast.Check(ctx, pool, schema)
	if errors.Is(wrong, holdfast.ErrSchemaMissing) || errors.Is(wrong, holdfast.ErrSchemaVersion) {
		return nil, false, wrong
	}
	var out bytes.Buffer
	s := &status{schema: schema.Schema, out: &out, ages: c.Ages, ends: ends, drifted: wrong != nil, pause: c.Pause, before: c.before}
	if c.JSON {
		s.out, s.tables = io.Discard, map[string][]map[string]any{}
	}
	if wrong != nil {
		s.say("holdfast check fails, so what is shown here may be incomplete: %s; docs/operations/runbooks.md, 'Schema drift', says how to repair it", clean(oneLine(wrong)))
	}
	if err := s.read(ctx, pool); err != nil {
		if wrong != nil { // It says more than the error of a statement.
			return nil, false, wrong
		}
		return nil, false, fmt.Errorf("read status: %w", err)
	}
	if c.Watch {
		c.before = s.looks
	}
	if c.JSON {
		err := s.encode(&out)
		return out.Bytes(), len(s.trouble) > 0, err
	}
	if len(s.trouble) == 0 {
		fmt.Fprintln(&out, "\nnothing needs a person")
		return out.Bytes(), false, nil
	}
	fmt.Fprintln(&out, "\nneeds a person:")
	for _, t := range s.trouble {
		fmt.Fprintf(&out, "- %s\n", t)
	}
	return out.Bytes(), true, nil
}

// status prints the tables and collects what needs a person, each with a remedy.
type status struct {
	db      queries
	schema  string
	out     io.Writer
	ages    ages
	ends    metrics.Ends // nil: no brokers were given
	trouble []string
	tables  map[string][]map[string]any // rows of each table by its name, for --json; nil without it

	paused      map[waiting.Pausable]bool
	allLanes    []laneState
	holds       map[int64][]string // what takes nothing, of each lane
	lettersOf   map[string]int64   // open dead letters of each consumer, "" for the relay
	lettersIn   map[int64]int64    // and of each lane
	lettersSeen bool               // more are open than were counted

	before map[int]laneLook // the lanes at the last look of --watch; nil without one
	looks  map[int]laneLook // and now
	lookAt time.Time
	pause  time.Duration
	runs   bool // a relay does

	drifted bool // the schema is not what this build needs: a part that cannot be read does not keep the others from being shown
}

// queries is what status uses of a transaction.
type queries interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// read reads all parts in one transaction, which has the settings that keep its statements bounded.
func (s *status) read(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, statusSettings); err != nil {
			return err
		}
		return s.readParts(ctx, tx)
	})
}

// readParts reads each part, in a savepoint of its own if some may fail. It fails if none can be read.
func (s *status) readParts(ctx context.Context, tx pgx.Tx) error {
	var failed []error
	for _, part := range s.parts() {
		if s.db = tx; !s.drifted {
			if err := part.read(ctx); err != nil {
				return err
			}
			continue
		}
		err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			s.db = savepoint
			return part.read(ctx)
		})
		if err != nil {
			failed = append(failed, err)
			s.say("status cannot read %s: %s", part.name, clean(err.Error()))
		}
	}
	if len(failed) == len(s.parts()) {
		return errors.Join(failed...)
	}
	return nil
}

// statusPart reads and prints one section, or several that belong together.
type statusPart struct {
	name string // in "cannot read"
	read func(context.Context) error
}

func (s *status) parts() []statusPart {
	return []statusPart{{"the history", s.history}, {"pauses", s.pauses}, {"dead letters", s.letters}, {"held topics", s.held}, {"lanes", s.lanes}, {"relays", s.relays},
		{"parked events", s.parked}, {"segments", s.segments}, {"consumers", s.consumers}, {"blocked keys", s.blocked}, {"skipped types", s.skipped},
		{"backfills", s.backfills}, {"positions", s.positions}, {"sizes", s.sizes}, {"the lanes again", s.names}}
}

// encode prints everything as one JSON object. Durations are in seconds. A lane whose lease ran out has no owner.
func (s *status) encode(out io.Writer) error {
	object := map[string]any{"needs_a_person": append([]string{}, s.trouble...)}
	for name, rows := range s.tables {
		object[name] = rows
	}
	return json.NewEncoder(out).Encode(object)
}

func (s *status) say(format string, args ...any) {
	s.trouble = append(s.trouble, fmt.Sprintf(format, args...))
}

// section is what each reads and prints.
type section struct {
	sql      string
	args     []any
	head     string // "" prints nothing
	name     string // for --json
	fields   string // names for --json, of scans and then of computed; "-" is not in it
	scans    []any
	computed []any // what row sets
}

// each runs a table's statement and calls row for each row. Under the table's head, the results of row are printed; without a
// row there is no table. For --json the columns are kept under its name.
func (s *status) each(ctx context.Context, t section, row func() string) error {
	rows, err := s.db.Query(ctx, sqlschema.In(s.schema, t.sql), t.args...)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	first := true
	columns, values := strings.Fields(t.fields), append(t.scans[:len(t.scans):len(t.scans)], t.computed...)
	if s.tables != nil {
		s.tables[t.name] = []map[string]any{}
	}
	if _, err := pgx.ForEachRow(rows, t.scans, func() error {
		line := row()
		if s.tables != nil {
			object := make(map[string]any, len(columns))
			for i, column := range columns {
				if column == "-" {
					continue
				}
				object[column] = reflect.ValueOf(values[i]).Elem().Interface()
			}
			s.tables[t.name] = append(s.tables[t.name], object)
		}
		if t.head == "" {
			return nil
		}
		if first {
			fmt.Fprintf(w, "\n%s\n", t.head)
			first = false
		}
		fmt.Fprintln(w, line)
		return nil
	}); err != nil {
		delete(s.tables, t.name) // an empty table would say that there is nothing
		return err
	}
	return w.Flush()
}

func (s *status) history(ctx context.Context) error {
	same := false
	if err := s.db.QueryRow(ctx, sqlschema.In(s.schema, statusHistory)).Scan(&same); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if !same {
		s.say("this database is a restored copy, or was moved, so relays refuse to run: stop them all, then run holdfast adopt --yes")
	}
	return nil
}

// dash is shown in a table instead of an empty name.
func dash(name string) string {
	if name == "" {
		return "-"
	}
	return clean(name)
}

func span(seconds int64) string { return (time.Duration(seconds) * time.Second).String() }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
