package relay_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// In these tests the server goes back in time under a relay that stays up: what the relay remembers is ahead of it, and
// transaction ids are given out again that the memory calls ended.

// ownLog gives a server of its own with a log of some lanes.
func ownLog(t *testing.T, lanes int, settings map[string]string) (*pgtest.Server, *pgxpool.Pool) {
	t.Helper()
	all := pgtest.NoSync() // processes crash here, not the machine
	for name, value := range settings {
		all[name] = value
	}
	server := pgtest.Own(t, pgtest.Options{Settings: all})
	pool := open(t, server)
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{Lanes: lanes}); err != nil {
		t.Fatal(err)
	}
	return server, pool
}

// writeEach commits events one by one, and tries again for as long as the server is not back. Only a COMMIT that was answered
// counts.
func writeEach(t *testing.T, pool *pgxpool.Pool, name string, n int) (payloads []string) {
	t.Helper()
	for i := range n {
		payload := fmt.Sprintf("%s %d", name, i)
		wait.Until(t, payload+" is written", func() bool {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				return false
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			return outbox.Write(t.Context(), tx, event(fmt.Sprint("key ", i%7), payload)) == nil && tx.Commit(t.Context()) == nil
		})
		payloads = append(payloads, payload)
	}
	return payloads
}

// copyData copies the files of a server that is stopped, and returns what puts them back.
func copyData(t *testing.T, pool *pgxpool.Pool) (copied func(), putBack func()) {
	t.Helper()
	if _, err := exec.LookPath("cp"); err != nil {
		skip.Without(t, "cp", "it is part of every Unix", err)
	}
	var data string
	if err := pool.QueryRow(t.Context(), "show data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(t.TempDir(), "copy")
	cp := func(from, to string) {
		t.Helper()
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			t.Fatalf("copy the files: %v\n%s", err, out)
		}
	}
	return func() { t.Helper(); cp(data, kept) }, func() {
		t.Helper()
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		cp(kept, data)
	}
}

func TestRestore_AColdCopyPutBackUnderARelayLosesNothing(t *testing.T) {
	skip.InShort(t, "it takes 19 s beside the others")
	t.Parallel()
	server, pool := ownLog(t, 2, nil)
	b := newBroker()
	copyNow, putBack := copyData(t, pool)
	run(t, pool, b, relay.Config{})
	arrives(t, b, writeEach(t, pool, "before the copy", 5)...)
	stop := func() {
		if err := server.StopFast(); err != nil {
			t.Fatal(err)
		}
	}
	start := func() {
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	copyNow()
	start()
	arrives(t, b, writeEach(t, pool, "undone by the copy", 50)...)
	stop()
	putBack()
	start()
	arrives(t, b, writeEach(t, pool, "after the copy", 100)...)
	wantSettled(t, pool)
}

// wantSettled waits until no lane of a log has an event that is not saved as read.
func wantSettled(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	wait.Until(t, "every cursor is saved after all events", func() bool {
		var n int
		err := pool.QueryRow(t.Context(), "select count(*) from holdfast.event e join holdfast.lane l using (lane) where not pg_visible_in_snapshot(e.xid, l.done)").Scan(&n)
		return err == nil && n == 0
	})
}

// Amazon documents the unlogged tables of Aurora as crash-safe: there a crash does not empty the table incarnation.
func TestRestore_ACrashThatKeepsUnloggedTablesLosesNothing(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	for _, c := range []struct {
		name  string
		crash func(t *testing.T, server *pgtest.Server, pool *pgxpool.Pool)
	}{
		{"the whole server is killed", func(t *testing.T, server *pgtest.Server, _ *pgxpool.Pool) {
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		{"a backend is killed, and the server recovers by itself", func(t *testing.T, _ *pgtest.Server, pool *pgxpool.Pool) {
			pid := pgtest.Count(t, pool, "select pg_backend_pid()")
			kill(t, pid)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, pool := ownLog(t, 1, map[string]string{"wal_writer_delay": "10s"})
			pgtest.Exec(t, pool, "alter table holdfast.incarnation set logged")
			frozen := &gate{broker: newBroker()}
			t.Cleanup(frozen.open)
			config, counter := pool.Config(), &pageCounter{}
			config.ConnConfig.Tracer = counter
			counted, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(counted.Close)
			run(t, counted, frozen, relay.Config{})
			arrives(t, frozen.broker, writeEach(t, pool, "first", 1)...)
			wantSettled(t, pool)
			// Two pages are in the relay's memory: one is being published, the next is read. The second is of a transaction that
			// the crash undoes, and so are many that wrote nothing.
			frozen.close()
			held := writeEach(t, pool, "held", 1)
			wait.Until(t, "the relay is inside Publish", func() bool { return frozen.waiting.Load() == 1 })
			pgtest.Exec(t, pool, "do $$ begin for i in 1..40 loop perform pg_current_xact_id(); rollback; end loop; end $$")
			tx, pages := begin(t, pool), counter.pages.Load()
			pgtest.Exec(t, tx.tx, "set local synchronous_commit = off")
			tx.write("key", "undone").commit()
			wait.Until(t, "the relay has read the next page", func() bool { return counter.pages.Load() > pages })
			c.crash(t, server, pool)
			frozen.open()
			after := writeEach(t, pool, "after", 60)
			arrives(t, frozen.broker, append(held, after...)...)
			wantSettled(t, pool)
		})
	}
}

// kill ends a backend as a crash does: the server ends all others, and recovers.
func kill(t *testing.T, pid int64) {
	t.Helper()
	backend, err := os.FindProcess(int(pid))
	if err == nil {
		err = backend.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pageCounter counts the pages that were read.
type pageCounter struct{ pages atomic.Int64 }

func (c *pageCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c *pageCounter) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	if strings.HasPrefix(d.SQL, "-- relay.page") || strings.HasPrefix(d.SQL, "-- relay.sized_page") {
		c.pages.Add(1)
	}
}

func (c *pageCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// A pgx.QueryTracer is what a pool's configuration takes.
func (c *pageCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (c *pageCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// switchboard stands between a relay and its database, which moves.
type switchboard struct {
	mu sync.Mutex
	to string
}

func (s *switchboard) lead(dsn string) {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	s.to = u.Host
	s.mu.Unlock()
}

// through gives a pool of connections that lead to where the switchboard leads when they are made.
func (s *switchboard) through(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	s.lead(dsn)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			to := s.to
			s.mu.Unlock()
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer server.Close()
				go func() { _, _ = io.Copy(server, client); server.Close() }()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = l.Addr().String()
	pool, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// A standby that lost the connection to its primary some transactions ago takes over. Its ids begin where it stands.
func TestRestore_AStandbyPromotedBehindLosesNothingThatItHas(t *testing.T) {
	skip.InShort(t, "it takes 14 s beside the others")
	t.Parallel()
	primary, direct := ownLog(t, 2, nil)
	standby, err := pgtest.InitStandby(t.Context(), primary, pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	var board switchboard
	pool, b := board.through(t, primary.DSN), newBroker()
	run(t, pool, b, relay.Config{})
	arrives(t, b, writeEach(t, pool, "on both", 5)...)
	wantSettled(t, pool)
	standbyPool := open(t, standby)
	lsn := func(from *pgxpool.Pool, function string) (at string) {
		if err := from.QueryRow(t.Context(), "select "+function+"()::text").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	written := lsn(direct, "pg_current_wal_lsn")
	wait.Until(t, "the standby has followed", func() bool {
		return pgtest.Count(t, standbyPool, "select (pg_last_wal_replay_lsn() >= $1::pg_lsn)::int", written) == 1
	})
	pgtest.Exec(t, standbyPool, "alter system set primary_conninfo = ''")
	pgtest.Exec(t, standbyPool, "select pg_reload_conf()")
	wait.Until(t, "it follows no longer", func() bool {
		return pgtest.Count(t, standbyPool, "select count(*) from pg_stat_wal_receiver") == 0
	})
	arrives(t, b, writeEach(t, pool, "lost", 50)...)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	board.lead(standby.DSN)
	arrives(t, b, writeEach(t, pool, "after", 100)...)
	wantSettled(t, pool)
}

// A pooler keeps the connections of a relay while the server behind it starts anew, so that the relay sees no error at all.
func TestRestore_EveryStartOfTheServerIsAnotherIncarnation(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	server, pool := ownLog(t, 1, nil)
	token := func() (token string) {
		wait.Until(t, "the server answers", func() bool {
			return pool.QueryRow(t.Context(), "select token from holdfast.current_incarnation").Scan(&token) == nil
		})
		return token
	}
	pgtest.Exec(t, pool, "alter table holdfast.incarnation set logged") // so that nothing empties it
	before := token()
	if again := token(); again != before {
		t.Fatalf("the incarnation is %s, and then %s", before, again)
	}
	pid := pgtest.Count(t, pool, "select pg_backend_pid()")
	kill(t, pid)
	wait.Until(t, "a recovery after a crash is another incarnation", func() bool { return token() != before })
	before = token()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if token() == before {
		t.Error("a start after a stop in good order is the same incarnation: the files may have been replaced in between")
	}
}
