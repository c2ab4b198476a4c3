package relay_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// open gives a pool to a server of the test's own.
func open(t *testing.T, s *pgtest.Server) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// copyInto dumps one cluster's database and restores it into another, as an operator does.
func copyInto(t *testing.T, from, to *pgtest.Server) {
	t.Helper()
	dump := filepath.Join(from.BinDir(), "pg_dump")
	if _, err := os.Stat(dump); err != nil {
		skip.Without(t, "pg_dump", "install it beside the server", err)
	}
	file := filepath.Join(t.TempDir(), "dump")
	client := func(server *pgtest.Server, name string, args ...string) {
		t.Helper()
		u, err := url.Parse(server.DSN)
		if err != nil {
			t.Fatal(err)
		}
		password, _ := u.User.Password()
		cmd := exec.Command(filepath.Join(server.BinDir(), name), append([]string{"--host", u.Hostname(), "--port", u.Port(), "--username", u.User.Username(), "--dbname", "postgres"}, args...)...)
		cmd.Env = append(os.Environ(), "PGPASSWORD="+password)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	client(from, "pg_dump", "--format", "custom", "--file", file)
	client(to, "pg_restore", "--exit-on-error", "--no-owner", file)
}

func startRefuses(t *testing.T, pool *pgxpool.Pool, want error) {
	t.Helper()
	if err := runOnce(t, pool); !errors.Is(err, want) {
		t.Fatalf("Run returned %v, want %v", err, want)
	}
}

func TestAdopt_ARestoredCopyIsRefusedAndAdoptedWithoutLosingAnEvent(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	ctx := t.Context()
	old := pgtest.Own(t, pgtest.Options{Settings: pgtest.NoSync()})
	oldPool := open(t, old)
	if err := holdfast.Migrate(ctx, oldPool, holdfast.SchemaConfig{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	// The old cluster's transaction ids run ahead of the new one's.
	pgtest.Exec(t, oldPool, "do $$ begin for i in 1..2000 loop perform pg_current_xact_id(); commit; end loop; end $$")
	oldKafka := newBroker()
	write(t, oldPool, event("k", "1"), event("k", "2"))
	stop := run(t, oldPool, oldKafka, relay.Config{})
	arrives(t, oldKafka, "2")
	stop()
	write(t, oldPool, event("k", "3"), scheduled("k", "scheduled", time.Now().Add(-time.Hour)))

	fresh := pgtest.Own(t, pgtest.Options{Settings: pgtest.NoSync()})
	copyInto(t, old, fresh)
	pool, b := open(t, fresh), newBroker()
	if err := errors.Join(holdfast.Check(ctx, pool, holdfast.SchemaConfig{}), holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{})); err != nil {
		t.Errorf("the schema of the copy: %v", err)
	}
	startRefuses(t, pool, relay.ErrRestored)

	// Written after the restore, before Adopt: their small new xids look long done.
	write(t, pool, event("k", "4"))
	// In flight while Adopt takes its snapshot: one that ends before Adopt has its locks, and one that writes after it.
	before, across := begin(t, pool).lock("k").write("k", "5"), begin(t, pool).drawXid()
	adopted := make(chan error, 1)
	var did string
	go func() {
		var err error
		did, err = relay.Adopt(ctx, pool, holdfast.SchemaConfig{})
		adopted <- err
	}()
	wait.Until(t, "Adopt waits for the log's lock", func() bool {
		return pgtest.Count(t, pool, "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '-- relay.adopt_lock%'") == 1
	})
	begin(t, pool).drawXid().commit() // an xid younger than Adopt's completes
	before.commit()
	if err := <-adopted; err != nil {
		t.Fatal(err)
	}
	if did != "events adopted" {
		t.Errorf("Adopt did %q", did)
	}
	across.lock("k").write("k", "6").commit()
	write(t, pool, event("k", "7"))
	run(t, pool, b, relay.Config{})
	arrives(t, b, "1", "2", "3", "scheduled", "4", "5", "6", "7")
	wantOnce(t, b)
	last := ""
	for _, p := range b.firsts("k") {
		if p != "scheduled" && p < last {
			t.Errorf("%s came after %s", p, last)
		} else if p != "scheduled" {
			last = p
		}
	}
	again, err := relay.Adopt(ctx, pool, holdfast.SchemaConfig{})
	if err != nil || again != "nothing to adopt" {
		t.Errorf("a second Adopt did %q, %v", again, err)
	}
}

func TestAdopt_TheSameFilesUnderAnotherIdentifierKeepTheirCursors(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	write(t, pool, event("k", "1"))
	stop := run(t, pool, b, relay.Config{})
	arrives(t, b, "1")
	stop()
	if did, err := relay.Adopt(t.Context(), pool, holdfast.SchemaConfig{}); err != nil || did != "nothing to adopt" {
		t.Errorf("Adopt of a healthy database did %q, %v", did, err)
	}
	pgtest.Exec(t, pool, "update holdfast.cluster set system_identifier = 42") // what pg_upgrade leaves
	startRefuses(t, pool, relay.ErrRestored)
	write(t, pool, event("k", "2"))
	if did, err := relay.Adopt(t.Context(), pool, holdfast.SchemaConfig{}); err != nil || did != "identifier replaced" {
		t.Errorf("Adopt did %q, %v", did, err)
	}
	run(t, pool, b, relay.Config{})
	arrives(t, b, "2")
	wantOnce(t, b) // nothing is published again
}

// A publication FOR ALL TABLES, as CDC tools make it, refuses updates and deletes of a table without a replica identity.
func TestAdopt_ARestoredCopyWithAPublicationOfAllTablesIsAdopted(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	pgtest.Exec(t, pool, "create publication everything for all tables")
	write(t, pool, event("k", "1"))
	pgtest.Exec(t, pool, "update holdfast.birth set born = born; update holdfast.cluster set system_identifier = 42") // what a restored dump is like
	startRefuses(t, pool, relay.ErrRestored)
	if did, err := relay.Adopt(t.Context(), pool, holdfast.SchemaConfig{}); err != nil || did != "events adopted" {
		t.Fatalf("Adopt did %q, %v", did, err)
	}
	run(t, pool, b, relay.Config{})
	arrives(t, b, "1")
}

func TestAdopt_ACursorInTheFutureIsRefused(t *testing.T) {
	t.Parallel()
	pool := setup(t, 2)
	pgtest.Exec(t, pool, "update holdfast.lane set done = '900000000:900000000:' where lane = 1")
	startRefuses(t, pool, relay.ErrRestored)
}

func TestAdopt_AStandbyIsRefusedAndCanBeUsedOnceItIsPromoted(t *testing.T) {
	skip.InShort(t, "it takes 11 s beside the others")
	t.Parallel()
	primary := pgtest.Own(t, pgtest.Options{Settings: pgtest.NoSync()})
	pool, b := open(t, primary), newBroker()
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{Lanes: 2}); err != nil {
		t.Fatal(err)
	}
	standby, err := pgtest.InitStandby(t.Context(), primary, pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	standbyPool := open(t, standby)
	startRefuses(t, standbyPool, relay.ErrStandby)
	stop := run(t, pool, b, relay.Config{})
	write(t, pool, event("k", "1"))
	arrives(t, b, "1")
	stop()
	write(t, pool, event("k", "2"))
	wait.Until(t, "the standby has followed", func() bool {
		return pgtest.Count(t, standbyPool, "select count(*) from holdfast.event") == 2 &&
			pgtest.Count(t, standbyPool, "select count(*) from holdfast.lane where owner is not null") == 0
	})
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, standbyPool, b, relay.Config{})
	write(t, standbyPool, event("k", "3"))
	arrives(t, b, "2", "3")
	wantFirsts(t, b, "k", "1", "2", "3")
}

func TestAdopt_ACrashOfPostgresLosesNothingAndTheRelayGoesOn(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	t.Parallel()
	server := pgtest.Own(t, pgtest.Options{Settings: pgtest.NoSync()}) // the process crashes, not the machine
	pool, b := open(t, server), newBroker()
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	token := func() (s string) {
		_ = pool.QueryRow(context.Background(), "select coalesce(min(token::text), '') from holdfast.incarnation").Scan(&s)
		return s
	}
	stop := run(t, pool, b, relay.Config{Lease: time.Second, BatchSize: 20})
	committed := map[string][]string{} // by key; commits whose answer was lost are looked up in the log
	for round := range 3 {
		before, crashed := token(), make(chan struct{})
		time.AfterFunc(600*time.Millisecond, func() {
			defer close(crashed)
			if err := server.Kill(); err != nil {
				t.Error(err)
			}
		})
		// An error before the crash is of a connection that the crash of the last round has left in the pool.
		over := func() bool {
			select {
			case <-crashed:
				return true
			default:
				return false
			}
		}
		for i := 0; ; i++ {
			key, p := fmt.Sprintf("k%d", i%5), fmt.Sprintf("%d %05d", round, i)
			tx, err := pool.Begin(t.Context())
			if err != nil && over() {
				break
			}
			if err != nil {
				continue
			}
			_, err = tx.Exec(t.Context(), "select holdfast.write('orders', $1, 't', $2)", key, []byte(p))
			if err == nil {
				err = tx.Commit(t.Context())
			}
			if err != nil {
				_ = tx.Rollback(context.Background())
				if over() {
					break
				}
				continue
			}
			committed[key] = append(committed[key], p)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the relay has claimed its lanes under a new incarnation", func() bool {
			now := token()
			return now != "" && now != before && pgtest.Count(t, pool, "select count(*) from holdfast.lane where lease_until > now()") == 4
		})
	}
	write(t, pool, event("end", "end"))
	for key, payloads := range committed {
		arrives(t, b, payloads[len(payloads)-1])
		have, last := map[string]bool{}, ""
		for _, p := range b.firsts(key) {
			if p < last {
				t.Errorf("key %s: %s came after %s", key, p, last)
			}
			have[p], last = true, p
		}
		for _, p := range payloads {
			if !have[p] {
				t.Errorf("key %s: %s was committed and never published", key, p)
			}
		}
	}
	arrives(t, b, "end")
	stop()
}

// A snapshot in memory may call a transaction done that a crash undid, and whose id was given out again.
func TestAdopt_AMemoryOfBeforeACrashChangesNothing(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	lost := make(chan error, 10)
	run(t, pool, b, relay.Config{Observer: relay.Observer{OnLost: func(_ int, _ bool, err error) { lost <- err }}})
	write(t, pool, event("k", "1"))
	arrives(t, b, "1")
	epoch := pgtest.Count(t, pool, "select epoch from holdfast.lane")
	pgtest.Exec(t, pool, "delete from holdfast.incarnation") // what crash recovery does to an unlogged table
	write(t, pool, event("k", "2"))
	<-lost
	arrives(t, b, "2")
	if now := pgtest.Count(t, pool, "select epoch from holdfast.lane"); now <= epoch {
		t.Errorf("the epoch is %d after a crash, it was %d", now, epoch)
	}
	wantFirsts(t, b, "k", "1", "2")
}
