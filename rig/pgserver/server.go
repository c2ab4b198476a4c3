package pgserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/freeport"
	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

// Server is one PostgreSQL that this process started. Its methods may be called from any
// goroutine; they run one after another.
type Server struct {
	// DSN connects to the database "postgres" as a superuser. It stays the same over Restart.
	DSN string

	opts     Options
	binDir   string
	dir      string // holds data/, socket/ and server.log
	port     int
	password string
	account  *account
	line     *lifeline.Line

	mu      sync.Mutex
	proc    *process // the latest run of the postmaster; nil before the first
	stopped bool     // Stop was called: the folder is gone
}

// Start makes a new cluster in a folder of its own and starts it on a free port of 127.0.0.1.
// It returns once the server accepts connections. When it fails nothing is left behind. The
// error wraps ErrNoServer when this machine has no PostgreSQL and none could be downloaded.
//
// The server ends and its folder goes when this process ends, however it ends; on Windows only
// when Stop is called.
func Start(ctx context.Context, opts Options) (*Server, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	binDir, err := binDirFor(ctx, account, opts)
	if err != nil {
		return nil, err
	}
	s, err := newServer(account, binDir, opts)
	if err != nil {
		return nil, err
	}
	// The time-out starts here: a download has its own.
	ctx, cancel := context.WithTimeout(ctx, opts.StartTimeout)
	defer cancel()
	if err := s.create(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// newServer makes the server's folder, which the account owns.
func newServer(account *account, binDir string, opts Options) (*Server, error) {
	dir, err := os.MkdirTemp(opts.Dir, "holdfast-pg-")
	if err != nil {
		return nil, fmt.Errorf("make the server's folder: %w", err)
	}
	s := &Server{opts: opts, binDir: binDir, dir: dir, account: account}
	if err = os.Mkdir(s.socketDir(), 0o700); err == nil {
		err = account.own(dir)
	}
	if err == nil {
		s.line, err = attachLifeline(account, dir)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("make the server's folder: %w", err)
	}
	return s, nil
}

// create runs initdb and the first start.
func (s *Server) create(ctx context.Context) error {
	if s.password = s.opts.Password; s.password == "" {
		s.password = rand.Text()
	}
	pwfile := filepath.Join(s.dir, "password")
	if err := os.WriteFile(pwfile, []byte(s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the password file: %w", err)
	}
	defer os.Remove(pwfile)
	if err := s.account.own(pwfile); err != nil {
		return fmt.Errorf("write the password file: %w", err)
	}
	// The password keeps other users of this machine out: a superuser may run programs. It is
	// kept for md5: to check one that is kept for SCRAM takes the server milliseconds at each
	// connection, which was a sixth of what the tests kept it busy with.
	err := s.run(ctx, "initdb", "--pgdata", s.dataDir(), "--username", "postgres", "--pwfile", pwfile,
		"--auth", "md5", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	if err != nil {
		return err
	}
	return s.startOnFreePort(ctx)
}

// startOnFreePort tries a few ports: another process may take one between the look and the start.
func (s *Server) startOnFreePort(ctx context.Context) error {
	var err error
	for range 5 {
		if s.port, err = freeport.Find(); err != nil {
			return fmt.Errorf("find a free port: %w", err)
		}
		if err = s.configure(); err != nil {
			return err
		}
		s.DSN = fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", s.password, s.port)
		if err = s.launch(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// configure writes our settings beside postgresql.conf, which includes them.
func (s *Server) configure() error {
	own := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    fmt.Sprint(s.port),
		"unix_socket_directories": s.socketDir(),
	}
	if len(s.socketDir()) > maxSocketDir {
		own["unix_socket_directories"] = ""
	}
	text := confLines(s.opts.Settings) + confLines(own)
	path := filepath.Join(s.dataDir(), "holdfast.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the settings: %w", err)
	}
	if err := s.account.own(path); err != nil {
		return fmt.Errorf("write the settings: %w", err)
	}
	main := filepath.Join(s.dataDir(), "postgresql.conf")
	old, err := os.ReadFile(main)
	if err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	include := []byte("\ninclude 'holdfast.conf'\n")
	if bytes.HasSuffix(old, include) {
		return nil
	}
	if err := os.WriteFile(main, append(old, include...), 0o600); err != nil {
		return fmt.Errorf("write the settings: %w", err)
	}
	return nil
}

var errPortTaken = errors.New("the port was taken by another process")

// launch starts the postmaster and returns when it answers a query.
func (s *Server) launch(ctx context.Context) error {
	before := s.logSize()
	cmd := exec.Command(s.bin("postgres"), "-D", s.dataDir())
	cmd.Dir = s.dir
	cmd.Env = childEnv()
	s.account.prepare(cmd)
	proc, err := spawn(cmd, s.logPath())
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	s.proc = proc
	for {
		err := ping(ctx, s.DSN)
		if err == nil {
			return nil
		}
		select {
		case <-proc.done:
			log := s.logSince(before)
			if bytes.Contains(log, []byte("could not bind IPv4 address")) {
				return errPortTaken
			}
			return fmt.Errorf("start postgres: it ended at once, its log says:\n%s", log)
		case <-ctx.Done():
			_ = s.end(stopImmediate)
			return fmt.Errorf("start postgres: %w, last answer: %w, its log says:\n%s", ctx.Err(), err, s.logSince(before))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func ping(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.Ping(ctx)
}

// run runs one of the binaries to its end, as the server's account.
func (s *Server) run(ctx context.Context, name string, args ...string) error {
	_, err := s.account.output(ctx, s.dir, nil, s.bin(name), args...)
	return err
}
