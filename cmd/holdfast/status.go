package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

type statusCmd struct {
	JSON bool `help:"Print one JSON object with the tables and what needs a person." name:"json"`
}

func (c *statusCmd) Run(p *program) error {
	pool, err := p.pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := holdfast.Check(p.ctx, pool, p.schema()); err != nil {
		return err
	}
	s := &status{pool: pool, schema: p.cli.Schema, out: p.out}
	if c.JSON {
		s.out, s.tables = io.Discard, map[string][]map[string]any{}
	}
	for _, part := range []func(context.Context) error{s.history, s.lanes, s.relays, s.parked, s.segments, s.consumers, s.blocked, s.skipped, s.positions} {
		if err := part(p.ctx); err != nil {
			return fmt.Errorf("read status: %w", err)
		}
	}
	if c.JSON {
		if err := s.encode(p.out); err != nil {
			return err
		}
		if len(s.trouble) == 0 {
			return nil
		}
		return errNeedsPerson
	}
	if len(s.trouble) == 0 {
		fmt.Fprintln(p.out, "\nnothing needs a person")
		return nil
	}
	fmt.Fprintln(p.out, "\nneeds a person:")
	for _, t := range s.trouble {
		fmt.Fprintf(p.out, "- %s\n", t)
	}
	return errNeedsPerson
}

// status prints the tables and collects what needs a person, each with a remedy.
type status struct {
	pool    *pgxpool.Pool
	schema  string
	out     io.Writer
	trouble []string
	tables  map[string][]map[string]any // rows of each table by its name, for --json; nil without it
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

// each runs a statement and calls row for each row. Under head, the results of row are printed as a table; without a
// row there is no table. For --json the columns are kept under the table's name: fields names them in order.
func (s *status) each(ctx context.Context, sql, head, name, fields string, scans []any, row func() string) error {
	rows, err := s.pool.Query(ctx, sqlschema.In(s.schema, sql))
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	first := true
	columns := strings.Fields(fields)
	if s.tables != nil {
		s.tables[name] = []map[string]any{}
	}
	if _, err := pgx.ForEachRow(rows, scans, func() error {
		line := row()
		if s.tables != nil {
			object := make(map[string]any, len(columns))
			for i, column := range columns {
				object[column] = reflect.ValueOf(scans[i]).Elem().Interface()
			}
			s.tables[name] = append(s.tables[name], object)
		}
		if head == "" {
			return nil
		}
		if first {
			fmt.Fprintf(w, "\n%s\n", head)
			first = false
		}
		fmt.Fprintln(w, line)
		return nil
	}); err != nil {
		return err
	}
	return w.Flush()
}

func (s *status) history(ctx context.Context) error {
	same := false
	if err := s.pool.QueryRow(ctx, sqlschema.In(s.schema, statusHistory)).Scan(&same); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if !same {
		s.say("this database is a restored copy, or was moved, so relays refuse to run: stop them all, then run holdfast adopt --yes")
	}
	return nil
}

func (s *status) lanes(ctx context.Context) error {
	var lane, parked, scheduled, letters, idle int
	var owner string
	var lease, epoch, saved int64
	var unread bool
	err := s.each(ctx, statusLanes, "LANE\tOWNER\tLEASE\tEPOCH\tSAVED\tUNREAD\tPARKED\tSCHEDULED\tLETTERS",
		"lanes", "lane owner lease_seconds epoch saved_seconds_ago unread parked scheduled letters",
		[]any{&lane, &owner, &lease, &epoch, &saved, &unread, &parked, &scheduled, &letters}, func() string {
			if lease == 0 {
				owner = ""
				if unread || scheduled > 0 || parked > 0 {
					idle++
				}
			}
			return fmt.Sprintf("%d\t%s\t%s\t%d\t%s ago\t%s\t%d\t%d\t%d", lane, dash(owner), span(lease), epoch, span(saved), yes(unread), parked, scheduled, letters)
		})
	if idle > 0 {
		s.say("%s %s events and no owner: start a relay", count(idle, "lane"), verb(idle, "has", "have"))
	}
	return err
}

func (s *status) relays(ctx context.Context) error {
	var name string
	var up int64
	return s.each(ctx, statusRelays, "RELAY\tUP", "relays", "relay up_seconds", []any{&name, &up}, func() string { return fmt.Sprintf("%s\t%s", clean(name), span(up)) })
}

func (s *status) parked(ctx context.Context) error {
	var topic string
	var lane, events int64
	if err := s.each(ctx, statusHeldTopics, "", "held_topics", "topic events", []any{&topic, &events}, func() string {
		s.say("topic %s is missing, or the relay may not write to it: create it or grant the rights; %s %s for it. If it will not come back: holdfast parked --help", topic, count(int(events), "event"), verb(int(events), "waits", "wait"))
		return ""
	}); err != nil {
		return err
	}
	if err := s.each(ctx, statusLongParked, "", "long_parked", "lane events", []any{&lane, &events}, func() string {
		s.say("lane %d has %s parked for more than 10 minutes: %s says why, and holdfast dlq list --origin relay shows what holds their keys",
			lane, count(int(events), "event"), sqlschema.In(s.schema, fmt.Sprintf("select topic, key, why, errors from holdfast.parked where lane = %d", lane)))
		return ""
	}); err != nil {
		return err
	}
	var letters int64
	if err := s.pool.QueryRow(ctx, sqlschema.In(s.schema, statusLetters)).Scan(&letters); err != nil {
		return err
	}
	if letters > 0 {
		s.say("the relay has %s: holdfast dlq list --origin relay", count(int(letters), "open dead letter"))
	}
	return nil
}

func (s *status) segments(ctx context.Context) error {
	var segment, full int
	var current bool
	var bytes int64
	err := s.each(ctx, statusSegments, "SEGMENT\tCURRENT\tMiB", "segments", "segment current bytes", []any{&segment, &current, &bytes}, func() string {
		if bytes > 0 {
			full++
		}
		return fmt.Sprintf("%d\t%s\t%.1f", segment, yes(current), float64(bytes)/(1<<20))
	})
	if err != nil || full < 4 {
		return err
	}
	return s.full(ctx)
}

func (s *status) consumers(ctx context.Context) error {
	var consumer string
	var waiting, keys, oldest, letters, overdue int64
	return s.each(ctx, statusConsumers, "CONSUMER\tSTORED\tKEYS\tOLDEST\tLETTERS", "consumers", "consumer stored keys oldest_seconds letters overdue_seconds", []any{&consumer, &waiting, &keys, &oldest, &letters, &overdue}, func() string {
		if letters > 0 {
			s.say("consumer %s has %s: holdfast dlq list --consumer %s", clean(consumer), count(int(letters), "open dead letter"), clean(consumer))
		}
		if overdue > 0 {
			s.say("consumer %s has stored events that were due %s ago, and no node takes them: start a node of this consumer that handles their types", clean(consumer), span(overdue))
		}
		return fmt.Sprintf("%s\t%d\t%d\t%s\t%d", clean(consumer), waiting, keys, span(oldest), letters)
	})
}

func (s *status) blocked(ctx context.Context) error {
	var consumer, topic, key, id, eventType, failure string
	var events, since, attempts, next, letter int64
	return s.each(ctx, statusBlocked, "CONSUMER\tTOPIC\tBLOCKED KEY\tEVENTS\tFOR\tHEAD\tATTEMPTS\tWAITS FOR", "blocked_keys",
		"consumer topic key events seconds head_id head_type attempts next_in_seconds letter error",
		[]any{&consumer, &topic, &key, &events, &since, &id, &eventType, &attempts, &next, &letter, &failure}, func() string {
			waits := "its next attempt in " + span(next)
			switch {
			case letter != 0:
				waits = fmt.Sprintf("dead letter %d: holdfast dlq show %d", letter, letter)
			case next < 0:
				waits = "an earlier event of its key"
			case failure == "" && next == 0:
				waits = "a node that handles " + clean(eventType)
			}
			return fmt.Sprintf("%s\t%s\t%s\t%d\t%s\t%s\t%d\t%s", clean(consumer), topic, clean(key), events, span(since), clean(id), attempts, waits)
		})
}

func (s *status) skipped(ctx context.Context) error {
	var consumer, topic, eventType string
	var events, last int64
	return s.each(ctx, statusSkipped, "CONSUMER\tTOPIC\tSKIPPED TYPE\tEVENTS\tLAST", "skipped_types", "consumer topic type events last_seconds_ago",
		[]any{&consumer, &topic, &eventType, &events, &last}, func() string {
			if topic == "" {
				eventType = "(others)"
			}
			return fmt.Sprintf("%s\t%s\t%s\t%d\t%s ago", clean(consumer), dash(topic), clean(eventType), events, span(last))
		})
}

func (s *status) positions(ctx context.Context) error {
	var consumer, topic, owner, held string
	var partition int
	var position, updated int64
	return s.each(ctx, statusPositions, "CONSUMER\tTOPIC\tPARTITION\tPOSITION\tOWNER\tSAVED", "positions", "consumer topic partition position owner saved_seconds_ago held", []any{&consumer, &topic, &partition, &position, &owner, &updated, &held}, func() string {
		if held != "" {
			s.say("consumer %s holds partition %d of topic %s: %s", clean(consumer), partition, topic, clean(held))
		}
		return fmt.Sprintf("%s\t%s\t%d\t%d\t%s\t%s ago", clean(consumer), topic, partition, position, dash(owner), span(updated))
	})
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
