package bouncer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

// Server is one PgBouncer that this process started. Its methods may be called from any goroutine; they run one after
// another.
type Server struct {
	opts    Options
	path    string // of the program
	version string
	dir     string // holds pgbouncer.ini, users, log and, while it runs, pid
	account *account
	port    int
	line    *lifeline.Line

	mu      sync.Mutex
	cmd     *exec.Cmd
	done    chan struct{} // closed when cmd has ended and was waited for
	end     error         // how cmd ended, once done is closed
	killed  bool          // by kill
	stopped bool
}

// Start runs a PgBouncer on a free port of 127.0.0.1 and returns when it answers; its Target need not. When it fails
// nothing is left behind. The error wraps ErrNoBouncer when there is no such program.
//
// It ends and its folder goes when this process ends, however it ends.
func Start(ctx context.Context, opts Options) (*Server, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("bouncer: %w", err)
	}
	path, err := opts.binary()
	if err != nil {
		return nil, err
	}
	s, err := newServer(path, opts)
	if err != nil {
		return nil, err
	}
	// Another process may take the port between the look and the start: then another one is tried.
	for range 5 {
		if s.port, err = opts.choosePort(); err != nil {
			err = fmt.Errorf("find a free port: %w", err)
			break
		}
		if err = s.launch(ctx); !errors.Is(err, errEnded) {
			break
		}
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// newServer makes the folder. As root another user reads it, who may not enter the folders of tests.
func newServer(path string, opts Options) (*Server, error) {
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	version, err := exec.Command(path, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask PgBouncer for its version: %w", err)
	}
	first, _, _ := strings.Cut(string(version), "\n")
	dir, err := os.MkdirTemp("", "holdfast-bouncer-")
	if err != nil {
		return nil, fmt.Errorf("make PgBouncer's folder: %w", err)
	}
	s := &Server{opts: opts, path: path, version: first, dir: dir, account: account}
	if err = account.own(dir); err == nil {
		s.line, err = attachLifeline(dir)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("make PgBouncer's folder: %w", err)
	}
	return s, nil
}

// Address is where clients connect, "127.0.0.1:port". It stays the same over Restart.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Version is what the program calls itself, "PgBouncer 1.18.0".
func (s *Server) Version() string { return s.version }

// Dir is the server's own folder.
func (s *Server) Dir() string { return s.dir }

// Err says how PgBouncer ended and what it said last, where nobody asked it to end; nil otherwise.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endedByItself()
}

func (s *Server) endedByItself() error {
	if s.cmd == nil || s.runs() || s.killed {
		return nil
	}
	return fmt.Errorf("%s ended by itself: %w, its log ends with:\n%s", s.version, s.end, s.logEnd())
}

// Revive starts PgBouncer again where it has ended and nobody asked it to, as a supervisor does, and then returns how it
// ended. It returns nil where there is nothing to do.
func (s *Server) Revive(ctx context.Context) (ended, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended = s.endedByItself(); ended == nil || s.stopped {
		return nil, nil
	}
	return ended, s.launch(ctx)
}

// Kill ends PgBouncer at once: every connection breaks, on both sides. It returns when it is gone; Restart brings it
// back.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	return s.kill()
}

// Pause freezes it: connections stay open, new ones are accepted by the kernel, and nothing answers.
func (s *Server) Pause() error { return s.signal(pauseSignal) }

// Unpause lets a frozen one go on.
func (s *Server) Unpause() error { return s.signal(unpauseSignal) }

// Restart ends PgBouncer if it runs, frozen or not, and starts it on the same port. It returns when it answers.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	if err := s.kill(); err != nil {
		return err
	}
	return s.launch(ctx)
}

// Stop ends it and removes its folder. It may be called many times, and after Kill or Pause.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	_ = s.kill()
	if err := os.RemoveAll(s.dir); err == nil {
		s.line.Release()
	} // else the lifeline tries again when this process ends
}

var (
	errStopped = errors.New("bouncer: this one was stopped for good")
	errDown    = errors.New("bouncer: it does not run")
	errEnded   = errors.New("it ended at once")
)

// launch starts the program and returns when it answers, which it does whether or not the target is there.
func (s *Server) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StartTimeout)
	defer cancel()
	for name, text := range s.opts.files(s.port, filepath.Join(s.dir, "users")) {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write PgBouncer's settings: %w", err)
		}
	}
	log, err := os.Create(s.logPath())
	if err != nil {
		return fmt.Errorf("make PgBouncer's log: %w", err)
	}
	defer log.Close()
	if err := s.account.own(s.dir); err != nil {
		return fmt.Errorf("give PgBouncer its folder: %w", err)
	}
	// The shell writes down its process, which becomes PgBouncer, before there is anything for the lifeline to end.
	cmd := exec.Command("/bin/sh", "-ec", `echo $$ > "$1/pid"; exec "$2" "$1/pgbouncer.ini"`, "holdfast-bouncer", s.dir, s.path)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	s.account.prepare(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start PgBouncer: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s.end = cmd.Wait(); s.end == nil {
			s.end = errors.New("exit status 0")
		}
		_ = os.Remove(filepath.Join(s.dir, "pid"))
	}()
	s.cmd, s.done, s.killed = cmd, done, false
	for {
		err := s.answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("start PgBouncer: %w, its log ends with:\n%s", errEnded, s.logEnd())
		case <-ctx.Done():
			_ = s.kill()
			return fmt.Errorf("start PgBouncer: %w, last answer: %w, its log ends with:\n%s", ctx.Err(), err, s.logEnd())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// answers connects to the console, which is PgBouncer's own.
func (s *Server) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	console := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(s.opts.User, s.opts.Password),
		Host:     s.Address(),
		Path:     "/pgbouncer",
		RawQuery: "sslmode=disable",
	}
	conn, err := pgconn.Connect(ctx, console.String())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "log") }

// logEnd is what it said last.
func (s *Server) logEnd() []byte {
	said, _ := os.ReadFile(s.logPath())
	return said[max(0, len(said)-2000):]
}

func (s *Server) signal(signal syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return errStopped
	case !s.runs():
		return errDown
	}
	if err := s.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("signal PgBouncer: %w", err)
	}
	return nil
}

func (s *Server) runs() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// kill ends it if it runs.
func (s *Server) kill() error {
	if !s.runs() {
		return nil
	}
	s.killed = true
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill PgBouncer: %w", err)
	}
	<-s.done
	return nil
}
