package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// What no time will mend ends Run, whatever part of the relay meets it, with the sentence that says what to do.
func TestGiveUp_RunEndsWhereARightOrAPartOfTheSchemaIsMissing(t *testing.T) {
	t.Parallel()
	const noRights, noSchema = "docs/operations.md lists what to grant to a relay", "run holdfast migrate"
	for _, c := range []struct {
		name, breaks string
		want         error
		says         string
		due          bool // only an event shows it
		first        bool // before the relay starts
	}{
		{"a lane may not read the log", "revoke select on holdfast.event from %[1]s", sqlschema.ErrNoRights, noRights, true, false},
		{"the saver may not save", "revoke update on holdfast.lane from %[1]s", sqlschema.ErrNoRights, noRights, false, false},
		{"a lane may not park", "revoke insert on holdfast.parked from %[1]s", sqlschema.ErrNoRights, noRights, true, false},
		{"the poller may not look at what is scheduled", "revoke select on holdfast.scheduled from %[1]s", sqlschema.ErrNoRights, noRights, false, false},
		{"a column of the log is missing", "alter table holdfast.event rename column letter to letter_of_later", holdfast.ErrSchemaMissing, noSchema, true, false},
		{"a table is missing", "alter table holdfast.parked rename to parked_of_later", holdfast.ErrSchemaMissing, noSchema, false, false},
		{"a function is missing", "drop function holdfast.reclaim(integer, uuid, integer); update holdfast.segments set current = 1", holdfast.ErrSchemaMissing, noSchema, true, false},
		{"it may not claim from the start", "revoke update on holdfast.lane from %[1]s", sqlschema.ErrNoRights, noRights, false, true},
		{"a column of the lanes is missing from the start", "alter table holdfast.lane rename column epoch to epoch_of_later", holdfast.ErrSchemaMissing, noSchema, false, true},
		{"the schema is older than the build", "update holdfast.installation set version = 0", holdfast.ErrSchemaVersion, noSchema, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 2), newBroker()
			role := fmt.Sprintf("relay_%d", time.Now().UnixNano())
			pgtest.Exec(t, pool, "create role "+role)
			t.Cleanup(func() {
				_, _ = pool.Exec(context.Background(), "drop owned by "+role)
				_, _ = pool.Exec(context.Background(), "drop role "+role)
			})
			for _, grant := range []string{"usage on schema holdfast", "select, insert, update, delete on all tables in schema holdfast",
				"usage on all sequences in schema holdfast", "execute on all functions in schema holdfast"} {
				pgtest.Exec(t, pool, "grant "+grant+" to "+role)
			}
			config := pool.Config()
			config.ConnConfig.RuntimeParams["role"] = role
			its, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(its.Close)
			b.set(refusing(publish.FaultRecord, "refused"))
			r, err := relay.New(its, b, relay.Config{Logger: quiet, Lease: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
			defer cancel()
			done := make(chan error, 1)
			run := func() { go func() { done <- r.Run(ctx) }() }
			if !c.first {
				run()
				write(t, pool, event("k", "1"))
				arrives(t, b, "1")
			}
			broken := c.breaks
			if strings.Contains(broken, "%") {
				broken = fmt.Sprintf(broken, role)
			}
			for _, sql := range strings.Split(broken, "; ") {
				pgtest.Exec(t, pool, sql)
			}
			if c.first {
				run()
			}
			if c.due {
				_, _ = pool.Exec(t.Context(), `insert into holdfast.event_0 (lane, id, type, topic, key, payload) values (0, 'x', 't', 'orders', 'k', 'refused')`)
			}
			if err := <-done; !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Run returned %v, want %v, which says %q", err, c.want, c.says)
			}
		})
	}
}

// A lane that fails at every start was claimed again seven times a second, for good: with all that a claim writes.
func TestGiveUp_ALaneThatFailsAtEveryStartIsClaimedMoreAndMoreRarely(t *testing.T) {
	skip.InShort(t, "it judges a rate over seconds")
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	pgtest.Exec(t, pool, `create function fail() returns trigger language plpgsql as $$ begin raise exception 'scripted'; end $$`)
	pgtest.Exec(t, pool, "create trigger fail before insert on holdfast.parked for each row execute function fail()")
	b.set(refusing(publish.FaultRecord, "refused"))
	write(t, pool, event("k", "refused"))
	broken := pgtest.Count(t, pool, "select lane from holdfast.event")
	var lost atomic.Int32
	began := time.Now()
	run(t, pool, b, relay.Config{Retry: untiring, Observer: relay.Observer{OnLost: func(lane int, _ bool, err error) {
		if int64(lane) != broken {
			t.Errorf("lane %d was lost: %v", lane, err)
		}
		lost.Add(1)
	}}})
	wait.Until(t, "the lane has failed four times", func() bool { return lost.Load() >= 4 })
	for i := 0; time.Since(began) < 6*time.Second; i++ { // the other lane goes on meanwhile
		key := fmt.Sprint("key ", i)
		write(t, pool, event(key, key))
		if pgtest.Count(t, pool, "select lane from holdfast.event where key = $1", key) != broken {
			arrives(t, b, key)
		}
	}
	// Its first rests are short. From the sixth on each takes a second at least.
	n, took := lost.Load(), time.Since(began)
	if most := 6 + int32(took/time.Second); n > most {
		t.Errorf("the lane was dropped %d times in %v, want %d at most", n, took.Round(time.Second), most)
	}
	pgtest.Exec(t, pool, "drop trigger fail on holdfast.parked")
	b.set(nil)
	arrives(t, b, "refused")
}

// Somebody locks the row of one lane and takes long. The lanes are saved, and their leases renewed, by one statement.
func TestGiveUp_ALockOnOneLanesRowCostsNoOtherLaneItsLease(t *testing.T) {
	skip.InShort(t, "it takes 14 s beside the others")
	t.Parallel()
	const lease = 16 * time.Second // half of it is more than a save takes on a busy machine
	pool, b := setup(t, 4), newBroker()
	lost := make(chan int, 100)
	stop := run(t, pool, b, relay.Config{Lease: lease, Observer: relay.Observer{OnLost: func(lane int, _ bool, err error) {
		lost <- lane
		t.Logf("lane %d was lost: %v", lane, err)
	}}})
	n := 0
	flow := func() {
		for range 12 {
			n++
			write(t, pool, event(fmt.Sprint("key ", n), fmt.Sprint(n)))
		}
	}
	flow()
	wait.Until(t, "all lanes flow", func() bool { return len(b.events()) == n })
	locked := begin(t, pool)
	pgtest.Exec(t, locked.tx, "select from holdfast.lane where lane = 2 for update")
	began := time.Now()
	wait.Until(t, "the lane whose row is locked is lost, when it has something to publish", func() bool { flow(); return len(lost) > 0 })
	for time.Since(began) < lease+lease/4 {
		flow()
		time.Sleep(20 * time.Millisecond) // sleep: a steady trickle for more than a lease, by the clock of a real Postgres, that leaves others time
	}
	if err := locked.tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "all of it arrives", func() bool {
		seen := map[string]bool{}
		for _, p := range b.payloads() {
			seen[p] = true
		}
		return len(seen) == n
	})
	stop()
	close(lost)
	for lane := range lost {
		if lane != 2 {
			t.Errorf("lane %d was lost", lane)
		}
	}
}

// Behind a pooler in transaction pooling, a role that another service sets and leaves is that of whoever gets the connection
// next.
func TestGiveUp_ARoleThatOthersLeaveBehindAPoolerEndsNoRelay(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{Lanes: 2}); err != nil {
		t.Fatal(err)
	}
	pool, b := pgtest.BouncerPoolOf(t, db), newBroker()
	pgtest.LeaveRoles(t, pool)
	r, err := relay.New(pool, b, relay.Config{Logger: quiet, Lease: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	for i := range 3 {
		write(t, db.Pool, event("k", fmt.Sprint(i)))
		arrives(t, b, fmt.Sprint(i))
		pgtest.LeaveRoles(t, pool)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run returned %v", err)
	}
}
