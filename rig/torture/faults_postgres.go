//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// postgresFaults are faults of the server itself.
func postgresFaults() []fault {
	return []fault{
		{name: "kill-backend", what: "kill -9 of one Postgres backend, which ends all sessions and begins crash recovery", begin: killBackend, alarms: databaseAway},
		{name: "kill-postgres", what: "an immediate stop of Postgres, and crash recovery", hold: seconds(0.2, 4), begin: killPostgres, alarms: databaseAway},
		{name: "restart-postgres", what: "a fast stop of Postgres and a start, as for an upgrade", hold: seconds(0.2, 2), begin: restartPostgres, alarms: databaseAway},
		{name: "freeze-postgres", what: "Postgres stands still for longer than a lease, and goes on", hold: outlasting(lease), begin: freezePostgres, alarms: databaseStill},
		{name: "long-transaction", what: "a transaction that writes stays open", hold: seconds(3, 8), begin: longTransaction},
		{name: "prepared-transaction", what: "a prepared transaction is forgotten", hold: seconds(3, 6), begin: preparedTransaction},
		{name: "locked-lanes", what: "somebody locks rows of lanes in a transaction that stays open", hold: seconds(2, 4), begin: lockLanes},
		{name: "no-connections", what: "the server has no connection left", hold: seconds(2, 4), begin: takeConnections},
		{name: "foreign-settings", what: "somebody gives the database other forms of times and bytes, and all sessions begin anew", hold: seconds(2, 6), begin: foreignSettings},
		{name: "clock-back", what: "the database's clock is set back by ten minutes, and then right", hold: seconds(1, 3), begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
			return stepClock(ctx, s, "10 minutes")
		}},
		// It is not reversed: events that were delayed meanwhile would rightly wait ten minutes more.
		{name: "clock-forward", what: "the database's clock is set forward by ten minutes", begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
			_, err := stepClock(ctx, s, "-10 minutes")
			return nil, err
		}},
		{name: "postgres-disk-full", what: "Postgres has no space left", hold: seconds(2, 5), begin: fillPostgres, alone: true, alarms: databaseAway,
			impossible: func(g *ground) string { return g.small.missing() }},
	}
}

// databaseStill is what must be logged while the database does not answer. A consumer may log nothing for some seconds, as
// during a long statement: it waits as long as its handlers may take.
var databaseStill = []oracle.Alarm{{By: roleRelay, Messages: []string{"relay waits for the database", "cursors not saved", "lane dropped"}, Before: sayEvery}}

// databaseAway is what must be logged while it ends statements in progress.
var databaseAway = append(slices.Clone(databaseStill), oracle.Alarm{
	By:       roleConsumer,
	Messages: []string{"waiting for the database"},
	Before:   sayEvery,
})

func killBackend(ctx context.Context, s *stage) (func(context.Context) error, error) {
	var pid int
	err := s.admin.QueryRow(ctx, `select pid from pg_stat_activity where backend_type = 'client backend' and application_name <> 'torture'
		order by random() limit 1`).Scan(&pid)
	if err != nil {
		return nil, fmt.Errorf("find a backend: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return nil, fmt.Errorf("kill a backend: %w", err)
	}
	return s.awaitPostgres, nil
}

// awaitPostgres returns when the primary answers.
func (g *ground) awaitPostgres(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := g.admin.Ping(ctx)
		if err == nil {
			return nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("the database does not come back: %w", err)
		}
	}
}

func killPostgres(_ context.Context, s *stage) (func(context.Context) error, error) {
	return s.primary.Restart, s.primary.Kill()
}

func restartPostgres(_ context.Context, s *stage) (func(context.Context) error, error) {
	return s.primary.Restart, s.primary.StopFast()
}

func freezePostgres(_ context.Context, s *stage) (func(context.Context) error, error) {
	return func(context.Context) error { return s.primary.Unpause() }, s.primary.Pause()
}

// hold begins a transaction, runs sql in it, and returns what ends it.
func (s *stage) hold(ctx context.Context, sql string) (end func(context.Context) error, err error) {
	conn, err := pgx.Connect(ctx, s.primary.DSN)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "begin; "+sql); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return func(ctx context.Context) error { return conn.Close(ctx) }, nil
}

func longTransaction(ctx context.Context, s *stage) (func(context.Context) error, error) {
	return s.hold(ctx, "insert into other values (3)")
}

// lockLanes is longer than a relay waits for a lock.
func lockLanes(ctx context.Context, s *stage) (func(context.Context) error, error) {
	return s.hold(ctx, "select from holdfast.lane where lane % 2 = 0 for update")
}

func preparedTransaction(ctx context.Context, s *stage) (func(context.Context) error, error) {
	name := fmt.Sprintf("forgotten %d", s.rng.Int64())
	end, err := s.hold(ctx, fmt.Sprintf("insert into other values (4); prepare transaction '%s'", name))
	if err != nil {
		return nil, err
	}
	verb := "commit"
	if s.rng.IntN(2) == 0 {
		verb = "rollback"
	}
	return func(ctx context.Context) error {
		_, err := s.admin.Exec(ctx, fmt.Sprintf("%s prepared '%s'", verb, name))
		return err
	}, end(ctx)
}

// foreignSettings matters to who reads and writes values as texts, as all parts do behind PgBouncer. (A producer refuses array_nulls.)
func foreignSettings(ctx context.Context, s *stage) (func(context.Context) error, error) {
	var database string
	if err := s.admin.QueryRow(ctx, "select current_database()").Scan(&database); err != nil {
		return nil, fmt.Errorf("ask for the database's name: %w", err)
	}
	set := func(ctx context.Context, settings ...string) error {
		for _, setting := range settings {
			if _, err := s.admin.Exec(ctx, "alter database "+pgx.Identifier{database}.Sanitize()+" "+setting); err != nil {
				return fmt.Errorf("alter the database: %w", err)
			}
		}
		_, err := s.endSessions(ctx)
		return err
	}
	heal := func(ctx context.Context) error {
		return set(ctx, "reset datestyle", "reset bytea_output")
	}
	return heal, set(ctx, "set datestyle = 'German, DMY'", "set bytea_output = 'escape'")
}

// takeConnections connects until the server refuses. A superuser gets the reserved ones too, so nobody else gets any.
func takeConnections(ctx context.Context, s *stage) (func(context.Context) error, error) {
	var taken []*pgx.Conn
	heal := func(ctx context.Context) error {
		for _, c := range taken {
			_ = c.Close(ctx)
		}
		return nil
	}
	// Sessions in use go on, and a part that has to reconnect is refused. Every second session is ended.
	for range 200 {
		c, err := pgx.Connect(ctx, s.primary.DSN)
		if err != nil {
			break
		}
		taken = append(taken, c)
	}
	if len(taken) == 0 {
		return nil, errors.New("no connection was to be had")
	}
	_, err := taken[0].Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity
		where backend_type = 'client backend' and application_name <> 'torture' and pid <> all ($1) and random() < 0.5`, pids(taken))
	for err == nil {
		c, refused := pgx.Connect(ctx, s.primary.DSN)
		if refused != nil {
			break
		}
		taken = append(taken, c)
	}
	return heal, err
}

func pids(conns []*pgx.Conn) (all []int32) {
	for _, c := range conns {
		all = append(all, int32(c.PgConn().PID()))
	}
	return all
}

// clockSteps move, by $1 times $2, the times that a relay or a consumer compares with the clock: when leases run out, how
// long a process counts as seen, and when something is due.
var clockSteps = []string{
	"update holdfast.lane set lease_until = lease_until + $1::text::interval * $2::text::int where isfinite(lease_until)",
	"update holdfast.relay set seen_until = seen_until + $1::text::interval * $2::text::int",
	"update holdfast.parked set next_at = next_at + $1::text::interval * $2::text::int where isfinite(next_at)",
	"update holdfast.stored set next_at = next_at + $1::text::interval * $2::text::int where isfinite(next_at)",
	"update holdfast.stored set lease_until = lease_until + $1::text::interval * $2::text::int where isfinite(lease_until)",
	"update holdfast.consumer_type set seen_until = seen_until + $1::text::interval * $2::text::int",
	"update holdfast.dependency set until = until + $1::text::interval * $2::text::int",
	"update holdfast.retention set next_at = next_at + $1::text::interval * $2::text::int where isfinite(next_at)",
	"update holdfast.scheduled set due_at = due_at + $1::text::interval * $2::text::int",
}

// clockStepOfTruth moves what the oracles compare the times of scheduled events with.
const clockStepOfTruth = "update written set due = due + $1::text::interval * $2::text::int where due is not null"

// stepClock moves all stored times. To the library this looks like an equal step of the server's clock in the other
// direction. The clock itself is the machine's, and others need it.
func stepClock(ctx context.Context, s *stage, by string) (func(context.Context) error, error) {
	step := func(ctx context.Context, sign string) error {
		return pgx.BeginFunc(ctx, s.admin, func(tx pgx.Tx) error {
			for _, sql := range append(slices.Clone(clockSteps), clockStepOfTruth) {
				if _, err := tx.Exec(ctx, sql, by, sign); err != nil {
					return fmt.Errorf("step the clock: %w", err)
				}
			}
			return nil
		})
	}
	return func(ctx context.Context) error { return step(ctx, "-1") }, step(ctx, "1")
}

// fillPostgres leaves no space for Postgres. Postgres may end because of that, and is started again.
func fillPostgres(_ context.Context, s *stage) (func(context.Context) error, error) {
	free, err := s.small.fill(postgres)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := free(); err != nil {
			return err
		}
		return s.primary.Restart(ctx)
	}, nil
}
