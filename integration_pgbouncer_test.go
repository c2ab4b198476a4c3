package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/kafkatest"
	"github.com/holdfast-go/holdfast/internal/pgtest"
	"github.com/holdfast-go/holdfast/internal/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// bouncerPool is how many connections to the server PgBouncer has for each database: fewer than its clients want.
const bouncerPool = 6

// startBouncer runs PgBouncer in transaction pooling before the server of dsn, for all its databases, and returns what
// makes of a database's address the one through PgBouncer.
func startBouncer(t *testing.T, dsn string) func(dsn string) string {
	t.Helper()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		binary = "/usr/sbin/pgbouncer" // where Debian puts it, often not in PATH
		_, err = os.Stat(binary)
	}
	if err == nil && runtime.GOOS == "windows" {
		err = errors.New("not tried on Windows")
	}
	if err != nil {
		skip.Without(t, "PgBouncer", "apt-get install pgbouncer", err)
	}
	version, err := exec.Command(binary, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, %d connections for each database", strings.SplitN(string(version), "\n", 2)[0], bouncerPool)
	server, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the server's address cannot be parsed")
	}
	password, _ := server.User.Password()
	dir, err := os.MkdirTemp("", "holdfast-bouncer-") // as root another user reads it, who may not enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })

	// Another process may take the port between the look and the start: then another one is tried.
	for try := 1; ; try++ {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := listener.Addr().String()
		_, port, _ := net.SplitHostPort(address)
		_ = listener.Close()
		users, config := filepath.Join(dir, "users"), filepath.Join(dir, "pgbouncer.ini")
		for file, text := range map[string]string{
			users: fmt.Sprintf("%q %q\n", server.User.Username(), password),
			config: fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = transaction
default_pool_size = %d
max_client_conn = 300
`, server.Hostname(), server.Port(), port, users, bouncerPool),
		} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		args := []string{config}
		if os.Geteuid() == 0 { // as root it refuses to run
			args = []string{"--user", "nobody", config}
			if out, err := exec.Command("chown", "-R", "nobody", dir).CombinedOutput(); err != nil {
				t.Fatalf("chown: %v: %s", err, out)
			}
		}
		cmd := exec.Command(binary, args...)
		log := &tail{}
		cmd.Stderr, cmd.Stdout = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = cmd.Wait() }()
		stop := func() { _ = cmd.Process.Kill(); <-done }
		through := func(dsn string) string {
			u, err := url.Parse(dsn)
			if err != nil {
				t.Fatal("the database's address cannot be parsed")
			}
			u.Host = address
			return u.String()
		}
		if answers(through(dsn), done) {
			t.Cleanup(stop)
			return through
		}
		stop()
		if try == 5 {
			t.Fatalf("PgBouncer does not answer: %s", log)
		}
	}
}

func answers(dsn string, done <-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, dsn+"&default_query_exec_mode=simple_protocol")
		if err == nil {
			err = conn.Ping(ctx)
			_ = conn.Close(ctx)
		}
		if err == nil {
			return true
		}
		select {
		case <-done:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

func TestTheWholeWayWorksThroughATransactionPoolerWithoutPreparedStatements(t *testing.T) {
	t.Parallel()
	// The first database is only there to learn the server's address.
	through := startBouncer(t, pgtest.Container(t, pgtest.Image).DSN)
	for _, c := range []struct {
		name string
		mode pgx.QueryExecMode
	}{
		{"exec", pgx.QueryExecModeExec},
		{"simple protocol", pgx.QueryExecModeSimpleProtocol},
		{"cache describe", pgx.QueryExecModeCacheDescribe},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), 3)
			p.dsn, p.mode = through(p.db.DSN), c.mode
			// The schema must be makeable through it as well.
			if err := holdfast.Migrate(t.Context(), p.pool(2), holdfast.SchemaConfig{}); err != nil {
				t.Fatal(err)
			}
			if err := holdfast.Check(t.Context(), p.pool(2), holdfast.SchemaConfig{}); err != nil {
				t.Fatal(err)
			}
			var mended atomic.Bool
			var poisoned []holdfast.Event
			for n := range int64(5) {
				poisoned = append(poisoned, p.event("poisoned", n+1))
			}
			handler := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if err := putEffect(ctx, tx, "billing", e); err != nil {
					return err
				}
				if e.ID == poisoned[1].ID && !mended.Load() {
					return errors.New("this cannot be")
				}
				return nil
			}
			relays := []func(){p.relay(nil), p.relay(nil)}
			consumers := []func(){p.consume("billing", handler, func(c *inbox.Config) {
				c.HoldKey = true
				c.Retry = retry.Policy{Attempts: 4, Base: 10 * time.Millisecond, Cap: 20 * time.Millisecond}
			}), p.consume("mail", effectOf("mail"), nil)}
			lasting := 4 * time.Second
			if testing.Short() {
				lasting = 2 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), lasting)
			defer cancel()
			begun := time.Now()
			w := load{writers: 3, keys: 8, perSecond: 40}.write(ctx, p)
			p.writeAll(poisoned...)

			// PgBouncer keeps to its few connections meanwhile, however many its clients are.
			var most int64
			var watch sync.WaitGroup
			watch.Go(func() {
				for ctx.Err() == nil {
					most = max(most, p.count("select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"))
					after(ctx, 100*time.Millisecond)
				}
			})
			w.wg.Wait()
			watch.Wait()
			p.await("the letter", func() bool {
				return p.count("select count(*) from holdfast.letter where state = 'open'") == 1
			})
			d := p.letters()
			for _, l := range p.openLetters(d) {
				if l.Event.ID != poisoned[1].ID || l.Attempts != 4 {
					t.Errorf("the letter is %+v", l)
				}
			}
			mended.Store(true)
			p.replay(d)
			p.await("the replayed event is handled", func() bool {
				return p.count("select count(*) from holdfast.letter where state = 'replayed'") == 1
			})
			v := p.finish(relays, consumers, "billing", "mail")
			t.Logf("in %v, with at most %d connections to the server: %s; %s", time.Since(begun).Round(time.Millisecond), most, w, v)
			v.mustHold(t)
			w.kept(p)
			// Whoever leaves a lock or a setting with a pooled session leaves it to a stranger.
			if n := p.count("select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"); n > 0 {
				t.Errorf("%d advisory locks were left behind", n)
			}
			if most > 2*bouncerPool { // some are the test's own; the clients may want 34
				t.Errorf("%d connections to the server: that was not through PgBouncer", most)
			}
		})
	}
}
