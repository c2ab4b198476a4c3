package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// undone is effect.Undone with the settings of a Reader's transaction.
func undone(t *testing.T, db *pgtest.DB, do func(tx pgx.Tx)) {
	t.Helper()
	effect.Undone(t, db, func(tx pgx.Tx) {
		if err := Settings(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, tx, "set local statement_timeout = '10s'") // each goes from one to the next, and so to an end
		do(tx)
	})
}

// What ends now has ended, and who has waited for just the limit has not waited for longer.
func TestNeighbours_ATimeIsOverWhenItIsReached(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for name, c := range map[string]struct {
		set, statement string
		args           []any
		at, before     string // what is read when the time is now, and a microsecond before it
	}{
		"the lease of a lane": {
			set:       "update holdfast.lane set owner = 'r', lease_until = %s where lane = 3; delete from holdfast.lane where lane <> 3",
			statement: readOwners,
			at:        "3  0",
			before:    "3 r 0",
		},
		"a relay": {
			set:       "insert into holdfast.relay (name, seen_until, trouble) values ('r', %s, 'away')",
			statement: readRelays,
			before:    "r 0 away",
		},
		"what the owner of a lane says": {
			set: `update holdfast.lane set owner = 'r', lease_until = now() + interval '1 hour', saved_at = now() where lane = 3; delete from holdfast.lane where lane <> 3;
				insert into holdfast.relay (name, seen_until, trouble) values ('r', %s, 'away')`,
			statement: readLanes,
			args:      []any{100},
			at:        "3 r 3600 0 0 false 0 0 0 0 ",
			before:    "3 r 3600 0 0 false 0 0 0 0 away",
		},
		"an event that waits": {
			set: `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time)
				values (3, 'orders', '', 1, 'record', now(), now() - (%s - now()) - interval '10 seconds', 'e', '', 't', now())`,
			statement: readLongWaiting,
			args:      []any{int64(10), 100},
			before:    "3 1",
		},
		"the node of a consumer": {
			set: `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash) values ('b', 'orders', '', 1, 's', 'e', 't', now(), '');
				insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('b', 't', 'n', %s)`,
			statement: readStored,
			args:      []any{100},
			at:        "b 1 0 0 1",
			before:    "b 1 0 0 0",
		},
		"a head that is due": {
			set: `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
				values ('b', 'orders', '', 1, 's', 'e', 't', now(), '', now() - (%s - now()) - interval '5 minutes')`,
			statement: readOverdue,
			args:      []any{100, 100},
			before:    "b 300",
		},
	} {
		for at, want := range map[string]string{"now()": c.at, "now() + interval '1 microsecond'": c.before} {
			undone(t, db, func(tx pgx.Tx) {
				pgtest.Exec(t, tx, fmt.Sprintf(c.set, at))
				if got := effect.Returned(t, tx, sqlschema.In("", c.statement), c.args...); got != want {
					t.Errorf("%s, until %s: read is %q, want %q", name, at, got, want)
				}
			})
		}
	}
}

// storedRows are due for so many minutes, dormant without a number. The consumers aa, bb and part of b have rows without an id, which are no events.
const storedRows = `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
	select c, 'o', k, row_number() over (), 's', i, t, now(), '', case when m is null then 'infinity' else now() - m * interval '1 minute' end
	  from (values ('b', 'k1', '1', 'm', 10), ('b', 'k1', '2', 'a', null), ('b', 'k1', '3', 'n', null), ('b', 'k2', '4', 'p', 20), ('b', 'k3', '5', '', 50), ('b', 'k4', '', 'z', null),
	               ('c', 'k1', '6', 'd', 30), ('c', 'k2', '7', 'n', 40), ('aa', 'k1', '', 'm', 10), ('bb', 'k1', '', 'm', 10)) s (c, k, i, t, m)`

// Of each consumer so many types are looked at as are asked for: its own ones, of events that are due.
func TestNeighbours_OverdueIsWhatAConsumersOwnTypesSay(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, storedRows)
		for types, want := range map[int]string{1: "b 600, c 1800", 2: "b 1200, c 2400", 3: "b 1200, c 2400"} {
			if got := effect.Returned(t, tx, sqlschema.In("", readOverdue), types, 20); got != want {
				t.Errorf("of %d types: overdue are %s, want %s", types, got, want)
			}
		}
	})
	// Nothing holds what has no key.
	undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at) values ('b', 'o', '', 2, 's', 'e', 't', now(), '', now() - interval '9 minutes');
			insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash, place) values ('inbox', 'b', 'r', true, 'l', 's', 't', 'o', '', now(), '', 1)`)
		if got := effect.Returned(t, tx, sqlschema.In("", readOverdue), 100, 20); got != "b 540" {
			t.Errorf("without a key: overdue are %q", got)
		}
	})
}

// What waits for a dependency is no node's to take, while that is tried.
func TestNeighbours_OverdueIsNotWhatWaitsForADependency(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const needs = `insert into holdfast.consumer_type (consumer, type, node, seen_until, needs) values ('b', 'p', 'n', now() + interval '1 hour', '{mail,stripe}'), ('b', 'm', 'n', now() + interval '1 hour', '{mail}')`
	for set, want := range map[string]string{
		"('b', 'stripe', true, now() + interval '5 seconds')":                           "b 600",
		"('b', 'stripe', true, now() - interval '5 minutes')":                           "b 600",
		"('b', 'stripe', true, now() - interval '5 minutes 1 microsecond')":             "b 1200",
		"('b', 'stripe', false, now())":                                                 "b 1200",
		"('c', 'stripe', true, now())":                                                  "b 1200",
		"('b', 'other', true, now())":                                                   "b 1200",
		"('b', 'mail', true, now() - interval '1 hour'), ('b', 'stripe', true, now())":  "b 600",
		"('b', 'mail', true, now() - interval '1 hour'), ('b', 'stripe', false, now())": "b 1200",
		"('b', 'mail', true, now() - interval '1 hour'), ('c', 'stripe', true, now())":  "b 1200",
		"('b', 'mail', true, now())":                                                    "",
	} {
		undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, storedRows)
			pgtest.Exec(t, tx, "delete from holdfast.stored where consumer <> 'b' or type not in ('p', 'm')")
			pgtest.Exec(t, tx, needs+"; insert into holdfast.dependency (consumer, name, away, until) values "+set)
			if got := effect.Returned(t, tx, sqlschema.In("", readOverdue), 100, 20); got != want {
				t.Errorf("with %s overdue are %q, want %q", set, got, want)
			}
		})
	}
}

// Rows that are no events are counted nowhere, and what another consumer handles is not handled.
func TestNeighbours_AConsumersEventsAreCountedByThemselves(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, storedRows+`; insert into holdfast.consumer_type (consumer, type, node, seen_until)
			select c, t, 'n', now() + interval '1 hour' from (values ('b', 'p'), ('aa', 'm'), ('bb', 'm'), ('c', 'm'), ('c', 'n')) h (c, t)`)
		if got := effect.Returned(t, tx, sqlschema.In("", readStored), 100); got != "b 5 3 0 4, c 2 2 0 1" {
			t.Errorf("stored are %s", got)
		}
		blocked := pgtest.Text(t, tx, "select string_agg(concat(consumer, ' ', key, ' ', events), ', ' order by consumer, key) from ("+sqlschema.In("", readBlocked)+") b (consumer, topic, key, events)", 100, 100)
		if blocked != "b k1 3, b k2 1, b k3 1, c k1 1, c k2 1" {
			t.Errorf("blocked are %s", blocked)
		}
	})
}

// Who has written to the log, or has locked lanes, is found once and by its own name and age, in this database. Who only waits, or reads lanes, holds nothing.
func TestNeighbours_WhoHoldsSomethingIsFoundOnce(t *testing.T) {
	t.Parallel()
	ours, theirs := migrated.New(t), migrated.New(t)
	name := func(db *pgtest.DB) string { return db.Config().ConnConfig.Database }
	if name(ours) > name(theirs) {
		ours, theirs = theirs, ours // so that there is a database whose name comes after ours
	}
	begin := func(db *pgtest.DB, sql string) string {
		t.Helper()
		tx := pgtest.Begin(t, db)
		pgtest.Exec(t, tx, sql)
		return pgtest.Text(t, tx, "select pg_backend_pid()::text")
	}
	prepare := func(sql, suffix string) string {
		t.Helper()
		named := "holder " + suffix + " in " + name(ours)
		tx := pgtest.Begin(t, ours)
		pgtest.Exec(t, tx, sql)
		pgtest.Exec(t, tx, "prepare transaction '"+named+"'")
		t.Cleanup(func() { pgtest.Exec(t, ours.Pool, "rollback prepared '"+named+"'") })
		return "0 " + named
	}
	const (
		write        = "select holdfast.write('orders', 'k', 't', ''); "
		lock         = "select from holdfast.lane where lane = %d for update; "
		serializable = "set transaction isolation level serializable; "
		readARow     = "set local enable_seqscan = off; select from holdfast.lane where lane = 7; "
	)
	begin(theirs, write+fmt.Sprintf(lock, 3))
	begin(ours, "select from holdfast.lane; create table elsewhere ()")
	// One that has committed holds nothing, even if Postgres remembers what it has read, because another serializable transaction is as old.
	begin(ours, serializable+"select from holdfast.installation")
	if err := pgx.BeginFunc(t.Context(), ours, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), serializable+"select from holdfast.lane; select from holdfast.event_1; "+readARow)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	log := []string{
		begin(ours, "savepoint a; "+write+"savepoint b; "+write) + " ",
		prepare(write, "of the log"),
		prepare(serializable+readARow+write, "of the log too"),
	}
	lanes := []string{
		begin(ours, "savepoint a; "+fmt.Sprintf(lock, 3)+"savepoint b; "+fmt.Sprintf(lock, 6)) + " ",
		prepare(fmt.Sprintf(lock, 5), "of a lane"),
		prepare(serializable+readARow+fmt.Sprintf(lock, 4), "of another lane"),
	}
	waitForLock(t, ours, "lock table holdfast.event_0 in access exclusive mode", "holdfast.event_0")
	waitForLock(t, ours, "lock table holdfast.lane in exclusive mode", "holdfast.lane")
	for statement, want := range map[string][]string{readLogHolders: log, readLaneHolders: lanes} {
		holders, err := list[Holder](t.Context(), Reader{ours.Pool, "holdfast"}, statement)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range holders {
			got = append(got, fmt.Sprint(h.PID, " ", h.Prepared))
			if h.Seconds < 0 {
				t.Errorf("its age is %+v", h)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("found are\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
