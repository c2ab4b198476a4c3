//go:build unix

package endtoend

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/rig/internal/auditlog"
)

// This file is what the oracles of the failpoints know beside what is there in the end: who changed which lane and which
// position, and who took which event in (O6), what the saved cursors said at any moment (O7), and, once all have stopped,
// what is left (O8, O10). None of it is the word of a process: the subjects have no history, because they end where they
// cannot say so.

// looks are the looks at the cursors so far, and what of Kafka has been read for them.
type looks struct {
	taken []oracle.CursorSample
	last  time.Time
	seen  map[string]struct{} // ids in Kafka
	next  map[kafkaLog]int64  // offsets
}

type kafkaLog struct {
	topic     string
	partition int
}

// How many partitions topics have: that of an env, and those of single rows.
const (
	ofEnv = 3
	ofRow = 2
)

// look takes one: what a saved cursor calls published must be in Kafka, parked, or a letter. It is taken where a subject
// has just ended, before anybody can have fixed that, and while one is waited for.
func (en *env) look() {
	en.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	var sample oracle.CursorSample
	if err := wait.Try(ctx, func(ctx context.Context) (err error) { // A busy broker may not answer in time.
		sample, err = auditlog.Look(ctx, en.Db, en.readOn)
		return err
	}); err != nil {
		en.Fatal(err)
	}
	en.looks.taken, en.looks.last = append(en.looks.taken, sample), time.Now()
	if len(sample.Missing) > 0 { // What is skipped never comes: the row would wait for it in vain.
		en.Fatalf("the oracles say no: %s", en.accused())
	}
}

// lookNowAndThen is look for those who wait. It asks the broker for every partition, so it does not do so often.
func (en *env) lookNowAndThen() {
	en.Helper()
	if time.Since(en.looks.last) > time.Second {
		en.look()
	}
}

// published looks whether Kafka has every event that was written.
func (en *env) published() bool {
	en.Helper()
	en.look()
	rows, err := en.Db.Query(en.Context(), "select id from written")
	if err != nil {
		en.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		en.Fatal(err)
	}
	return !slices.ContainsFunc(ids, func(id string) bool { _, there := en.looks.seen[id]; return !there })
}

// readOn reads what Kafka has got since the last look.
func (en *env) readOn(ctx context.Context) (map[string]struct{}, error) {
	for _, topic := range en.Topics {
		partitions := ofRow
		if topic == en.Topic() {
			partitions = ofEnv
		}
		for n := range partitions {
			at := kafkaLog{topic, n}
			records, err := en.Cluster.Server.ReadFrom(ctx, topic, n, en.looks.next[at])
			if err != nil {
				return nil, err
			}
			for _, r := range records {
				id, _ := r.Header("ce_id")
				en.looks.seen[id] = struct{}{}
				en.looks.next[at] = r.Offset + 1
			}
		}
	}
	return en.looks.seen, nil
}

// accused is what O6 and O7 say while events are still on their way.
func (en *env) accused() endtoend.Verdict {
	en.Helper()
	v := endtoend.VerdictOf(en.audited())
	v.Findings = slices.DeleteFunc(v.Findings, func(f oracle.Finding) bool { return f.Oracle != oracle.Fencing && f.Oracle != oracle.CursorTruth })
	return v
}

// audited is what is known of the env, as far as the looks at the cursors go.
func (en *env) audited() (run oracle.Run) {
	en.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	run = en.Facts("billing")
	run.Cursors = en.looks.taken
	var err error
	if run.LaneLog, err = auditlog.Lanes(ctx, en.Db, ""); err == nil {
		run.PositionLog, err = auditlog.Positions(ctx, en.Db, "")
	}
	if err == nil {
		run.TakenLog, err = auditlog.Taken(ctx, en.Db, "")
	}
	if err != nil {
		en.Fatal(err)
	}
	return run
}

// known is all that is known of the env by now. All may have had its effect before a relay has saved anything: then there is
// nothing yet to look at.
func (en *env) known() oracle.Run {
	en.Helper()
	wait.For(wait.Limit(), func() bool {
		en.look()
		return slices.ContainsFunc(en.looks.taken, func(s oracle.CursorSample) bool { return s.Done > 0 })
	})
	run := en.audited()
	if err := oracle.TooLittle(run); err != nil {
		en.Error(err)
	}
	return run
}

// unreadEvents are the events of the log that no saved cursor is past.
const unreadEvents = `
	select e.id from holdfast.event e join holdfast.lane l using (lane)
		where not pg_visible_in_snapshot(e.xid, l.done) and (l.upto is null or not pg_visible_in_snapshot(e.xid, l.upto) or e.seq > l.pos)`

// left adds what is left once everybody has stopped in order. A server sees the end of a connection a moment later than
// who had it.
func (en *env) left(run *oracle.Run) {
	en.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	wait.For(wait.Limit(), func() bool {
		run.Leftovers = nil
		endtoend.Collect(ctx, en.Path, &run.Leftovers, `
			select 'connection', format('%s of %s: %s', state, application_name, query) from pg_stat_activity
				where backend_type = 'client backend' and datname = current_database() and application_name <> ''
			union all select 'prepared transaction', gid from pg_prepared_xacts where database = current_database()
			union all select 'lock', format('%s %s', locktype, mode) from pg_locks
				where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`)
		return len(run.Leftovers) == 0
	})
	var unread []oracle.Waiting
	endtoend.Collect(ctx, en.Path, &unread, "select 'unread', '', id from ("+unreadEvents+`) u
		union all select 'scheduled', '', id from holdfast.scheduled`)
	run.Pending = append(run.Pending, unread...)
}
