//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/rig/internal/auditlog"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// sampler looks at the saved cursors during the run. It reads what is in Kafka once, also for the oracles.
type sampler struct {
	taken []oracle.CursorSample
	seen  map[string]struct{}           // ids in Kafka
	logs  map[partition][]oracle.Record // each in the order of offsets
}

type partition struct {
	topic  string
	number int
}

// sample looks at the cursors, and reads what is new in Kafka.
func (r *run) sample(ctx context.Context) error {
	s, err := auditlog.Look(ctx, r.admin, func(ctx context.Context) (map[string]struct{}, error) {
		err := r.readOn(ctx)
		return r.samples.seen, err
	})
	if err != nil {
		return err
	}
	r.samples.taken = append(r.samples.taken, s)
	return nil
}

// allTopics are those that events go to.
func (g *ground) allTopics() []string { return append([]string{g.late}, g.topics...) }

// readOn reads what has come into Kafka since the last sample.
func (r *run) readOn(ctx context.Context) error {
	s := &r.samples
	if s.seen == nil {
		s.seen, s.logs = map[string]struct{}{}, map[partition][]oracle.Record{}
	}
	for _, topic := range r.allTopics() {
		for n := range partitions {
			log := s.logs[partition{topic, n}]
			next := int64(0)
			if len(log) > 0 {
				next = log[len(log)-1].Offset + 1
			}
			records, err := r.read(ctx, topic, n, next)
			if err != nil {
				return err
			}
			for _, record := range records {
				e, err := eventOf(topic, record)
				if err != nil {
					return err
				}
				s.seen[e.ID] = struct{}{}
				log = append(log, oracle.Record{
					ID:        e.ID,
					Topic:     topic,
					Key:       e.Key,
					Partition: n,
					Offset:    record.Offset,
					Content:   content(e),
				})
			}
			s.logs[partition{topic, n}] = log
		}
	}
	return nil
}

// read reads what comes from an offset on. A topic that has just been made may have no leader for a moment.
func (r *run) read(ctx context.Context, topic string, n int, from int64) (records []kafkaserver.Record, err error) {
	for end := time.Now().Add(10 * time.Second); ; {
		if records, err = r.kafka.ReadFrom(ctx, topic, n, from); err == nil || time.Now().After(end) || !sleep(ctx, 100*time.Millisecond) {
			return records, err
		}
	}
}

// records are all that were read, partition by partition.
func (r *run) records() (all []oracle.Record) {
	for _, topic := range r.allTopics() {
		for n := range partitions {
			all = append(all, r.samples.logs[partition{topic, n}]...)
		}
	}
	return all
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// rowsOf reads all rows of a query.
func rowsOf[T any](ctx context.Context, db querier, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

func texts(ctx context.Context, db querier, sql string, args ...any) ([]string, error) {
	return rowsOf(ctx, db, pgx.RowTo[string], sql, args...)
}

// judge collects all that is known, and asks the oracles.
func (r *run) judge(ctx context.Context, histories string) (err error) {
	r.say("the oracles judge")
	killed := r.killed()
	known := oracle.Run{
		Consumers: []string{consumerName},
		Cursors:   r.samples.taken,
		Records:   r.records(),
		Alarms:    map[string][]oracle.Alarm{},
		Killed:    slices.Collect(maps.Keys(killed)),
		KilledAt:  killed,
		Limits: oracle.Limits{
			Recovery: max(r.limit, r.slowest),
			Canary:   canary,
			MayDie:   []string{typePoison, typeShaky},
			Tries:    attempts,
			Unsaving: "cursors not saved",
			Unsaved:  r.unsaved,
			Keeping:  []string{},
		},
	}
	if known.Entries, known.Torn, err = history.Read(histories); err != nil {
		return err
	}
	if known.Leaks, err = leaks(filepath.Join(r.Dir, "log")); err != nil {
		return err
	}
	for _, f := range r.report.faults {
		if f.keeps {
			known.Limits.Keeping = append(known.Limits.Keeping, f.name)
		}
		if f.alarms != nil {
			known.Alarms[f.name] = f.alarms
		}
	}
	for _, read := range []func(context.Context, *oracle.Run) error{r.readTables, r.readLetters, r.readLogs, r.readPending, r.readLeftovers} {
		if err := read(ctx, &known); err != nil {
			return fmt.Errorf("read what is known: %w", err)
		}
	}
	whole := known.Entries // What was called for an event that the database has lost since was called.
	forget(&known, r.undone)
	r.report.troubles = append(r.report.troubles, endings(&known)...)
	r.report.seen = oracle.SeenIn(known)
	r.trouble(oracle.TooLittle(known))
	r.judgeApart(known)
	r.judgeWaits(known.Entries)
	r.judgeSteps(known, whole)
	r.report.Verdict = oracle.Judge(known)
	r.report.judged = true
	return nil
}

func (r *run) readTables(ctx context.Context, known *oracle.Run) (err error) {
	known.Written, err = rowsOf(ctx, r.admin, pgx.RowToStructByPos[oracle.Written], "select id, topic, key, number, type, content, due from written")
	if err != nil {
		return err
	}
	known.Effects, err = rowsOf(ctx, r.admin, pgx.RowToStructByPos[oracle.Effect], "select consumer, id, key, content, at from effect order by n")
	if err != nil {
		return err
	}
	return r.admin.QueryRow(ctx, "select lanes from holdfast.installation").Scan(&known.Lanes)
}

func (r *run) readLetters(ctx context.Context, known *oracle.Run) (err error) {
	known.Letters, err = rowsOf(ctx, r.admin, pgx.RowToStructByPos[oracle.Letter],
		"select id, event_id, consumer, state, reason, '' from holdfast.letter")
	for i := range known.Letters {
		known.Letters[i].Command = commandOf(known.Letters[i].Reason)
	}
	return err
}

// readLogs names no process for changes that the run itself made: a step of the clock, an adoption.
func (r *run) readLogs(ctx context.Context, known *oracle.Run) (err error) {
	if known.LaneLog, err = auditlog.Lanes(ctx, r.admin, "torture"); err != nil {
		return err
	}
	if known.PositionLog, err = auditlog.Positions(ctx, r.admin, "torture"); err != nil {
		return err
	}
	if known.TakenLog, err = auditlog.Taken(ctx, r.admin, "torture"); err != nil {
		return err
	}
	known.Places, err = rowsOf(ctx, r.admin, pgx.RowToStructByPos[oracle.Place], "select id, xid::text::bigint, seq, at from place_log")
	if err != nil {
		return err
	}
	known.Removed, err = rowsOf(ctx, r.admin, pgx.RowToStructByPos[oracle.Removal], "select id, by, at from removed_log")
	if err != nil {
		return err
	}
	known.Parked, err = rowsOf(ctx, r.admin, pgx.RowToStructByPos[oracle.Parking], "select id, at from parked_log")
	return err
}

func (r *run) readPending(ctx context.Context, known *oracle.Run) (err error) {
	known.Pending, err = rowsOf(ctx, r.admin, pgx.RowToStructByPos[oracle.Waiting], `
		select 'unread', '', e.id from holdfast.event e join holdfast.lane l using (lane)
			where not pg_visible_in_snapshot(e.xid, l.done) and (l.upto is null or not pg_visible_in_snapshot(e.xid, l.upto) or e.seq > l.pos)
		union all select 'parked', '', id from holdfast.parked
		union all select 'stored', consumer, event_id from holdfast.stored
		union all select 'scheduled', '', id from holdfast.scheduled`)
	return err
}

// leaving is how long a server may take to end a backend whose client has closed its connection.
const leaving = 5 * time.Second

// readLeftovers looks for what parts have left behind in the database: what is still there after enough time to go.
func (r *run) readLeftovers(ctx context.Context, known *oracle.Run) error {
	for end := time.Now().Add(leaving); ; {
		if err := r.readLeftoversOnce(ctx, known); err != nil || len(known.Leftovers) == 0 || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// readLeftoversOnce looks once. A pooler's idle connections are its own.
func (r *run) readLeftoversOnce(ctx context.Context, known *oracle.Run) (err error) {
	known.Leftovers, err = rowsOf(ctx, r.admin, pgx.RowToStructByPos[oracle.Leftover], `
		select 'connection', format('%s of %s: %s', state, application_name, query) from pg_stat_activity
			where backend_type = 'client backend' and application_name <> 'torture' and not ($1 and state = 'idle')
		union all select 'prepared transaction', gid from pg_prepared_xacts
		union all select 'lock', format('%s %s', locktype, mode) from pg_locks where locktype = 'advisory'`, r.PgBouncer)
	return err
}
