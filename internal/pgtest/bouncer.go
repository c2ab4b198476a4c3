package pgtest

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
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/pgserver/lifeline"
	"github.com/holdfast-go/holdfast/internal/skip"
)

// BouncerPool is how many connections to the server a Bouncer has for each database: fewer than its clients want.
const BouncerPool = 6

// Bouncer returns the address of db through a PgBouncer in transaction pooling. The tests of a binary share one for each
// server; it ends with them, as New's server does. Clients say how they do without prepared statements, which old
// PgBouncers do not have in this mode: by pgx's default_query_exec_mode, for one.
func Bouncer(t testing.TB, db *DB) (dsn string) {
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
	through, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal("the database's address cannot be parsed")
	}
	server := *through
	before, _ := bouncers.LoadOrStore(server.Host+" "+server.User.String(), new(shared))
	through.Host, err = before.(*shared).get(func() (string, func(), error) { return startBouncer(binary, &server) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("PgBouncer, %d connections for each database", BouncerPool)
	return through.String()
}

// startBouncer starts one before a server, with a folder of its own for what it reads and says.
func startBouncer(binary string, server *url.URL) (address string, stop func(), err error) {
	// Another process may take the port between the look and the start: then another one is tried.
	for range 5 {
		var b *bouncer
		if b, err = newBouncer(binary, server); err != nil {
			return "", nil, err
		}
		if err = b.wait(server); err == nil {
			return b.address, b.stop, nil
		}
		b.stop()
	}
	return "", nil, err
}

// bouncer is one PgBouncer that runs.
type bouncer struct {
	address, dir string
	cmd          *exec.Cmd
	done         chan struct{} // closed when it has ended
	line         *lifeline.Line
}

// newBouncer starts one on a free port.
func newBouncer(binary string, server *url.URL) (_ *bouncer, err error) {
	dir, err := os.MkdirTemp("", "holdfast-bouncer-") // as root another user reads it, who may not enter t.TempDir
	if err != nil {
		return nil, fmt.Errorf("make PgBouncer's folder: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	b := &bouncer{address: listener.Addr().String(), dir: dir, done: make(chan struct{})}
	_, port, _ := net.SplitHostPort(b.address)
	_ = listener.Close()
	password, _ := server.User.Password()
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
max_client_conn = 800
`, server.Hostname(), server.Port(), port, users, BouncerPool),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("write PgBouncer's settings: %w", err)
		}
	}
	log, err := os.Create(b.log())
	if err != nil {
		return nil, fmt.Errorf("make PgBouncer's log: %w", err)
	}
	defer log.Close()
	args := []string{config}
	if os.Geteuid() == 0 { // as root it refuses to run
		args = []string{"--user", "nobody", config}
		if out, err := exec.Command("chown", "-R", "nobody", dir).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("give PgBouncer its folder: %w: %s", err, out)
		}
	}
	b.cmd = exec.Command(binary, args...)
	b.cmd.Stderr, b.cmd.Stdout = log, log
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start PgBouncer: %w", err)
	}
	go func() { defer close(b.done); _ = b.cmd.Wait() }()
	if b.line, err = attachLifeline(b.cmd.Process.Pid, dir); err != nil {
		b.stop()
		return nil, fmt.Errorf("start PgBouncer: %w", err)
	}
	return b, nil
}

func (b *bouncer) log() string { return filepath.Join(b.dir, "log") }

// wait returns when it lets a client through to the server.
func (b *bouncer) wait(server *url.URL) error {
	through := *server
	through.Host = b.address
	if answers(&through, b.done) {
		return nil
	}
	said, _ := os.ReadFile(b.log())
	return fmt.Errorf("PgBouncer does not answer: %s", said)
}

// stop ends it and removes what it has left.
func (b *bouncer) stop() {
	_ = b.cmd.Process.Kill()
	<-b.done
	b.line.Release()
	_ = os.RemoveAll(b.dir)
}

// answers waits until a bouncer lets a client through to the server. False: it ended, or took too long.
func answers(through *url.URL, done <-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	config, err := pgx.ParseConfig(through.String())
	if err != nil {
		return false
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	for ctx.Err() == nil {
		conn, err := pgx.ConnectConfig(ctx, config)
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
