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
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/skip"
)

// BouncerPool is how many connections to the server a Bouncer has for each database: fewer than its clients want.
const BouncerPool = 6

// Bouncer runs PgBouncer in transaction pooling before the server of db until the test ends, and returns the address of
// db through it. Clients say how they do without prepared statements, which old PgBouncers do not have in this mode: by
// pgx's default_query_exec_mode, for one.
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
	version, err := exec.Command(binary, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, %d connections for each database", strings.SplitN(string(version), "\n", 2)[0], BouncerPool)
	through, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal("the database's address cannot be parsed")
	}
	dir, err := os.MkdirTemp("", "holdfast-bouncer-") // as root another user reads it, who may not enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })

	// Another process may take the port between the look and the start: then another one is tried.
	server := *through
	for try := 1; ; try++ {
		var stop func()
		if through.Host, stop, err = startBouncer(t, binary, dir, &server); err == nil {
			t.Cleanup(stop)
			return through.String()
		}
		if try == 5 {
			t.Fatal(err)
		}
	}
}

// startBouncer starts one on a free port. What it reads and says is in dir.
func startBouncer(t testing.TB, binary, dir string, server *url.URL) (address string, stop func(), err error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	_, port, _ := net.SplitHostPort(address)
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
max_client_conn = 300
`, server.Hostname(), server.Port(), port, users, BouncerPool),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	args := []string{config}
	if os.Geteuid() == 0 { // as root it refuses to run
		args = []string{"--user", "nobody", config}
		if out, err := exec.Command("chown", "-R", "nobody", dir).CombinedOutput(); err != nil {
			t.Fatalf("chown: %v: %s", err, out)
		}
	}
	cmd := exec.Command(binary, args...)
	cmd.Stderr, cmd.Stdout = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }()
	stop = func() { _ = cmd.Process.Kill(); <-done }
	through := *server
	through.Host = address
	if !answers(&through, done) {
		stop()
		said, _ := os.ReadFile(log.Name())
		return "", nil, fmt.Errorf("PgBouncer does not answer: %s", said)
	}
	return address, stop, nil
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
