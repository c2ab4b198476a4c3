// Package redistest gives tests a Redis of their own: redis-server of this machine, in a directory of its own.
package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// startTimeout is how long a server may take to be ready.
const startTimeout = 20 * time.Second

// Server is a redis-server that ends with its test.
type Server struct {
	Addr string

	t    testing.TB
	port string
	dir  string
	args []string

	cmd     *exec.Cmd
	release func()        // nobody has to end it any more
	done    chan struct{} // closed when the process has ended
}

// Start starts a server with options, as "--appendonly", "yes". Without any it keeps everything in memory only. Where
// there is no redis-server the test is skipped, and fails under REQUIRE_SERVICES=1.
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), args: options}
	if _, err := exec.LookPath("redis-server"); err != nil {
		skip.Without(t, "redis-server", "install it (apt-get install redis-server, brew install redis)", err)
	}
	var err error
	for range 10 { // another program may take the port before the server does
		if s.port, err = freePort(); err != nil {
			continue
		}
		s.Addr = "127.0.0.1:" + s.port
		if err = s.start(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	t.Cleanup(s.Kill)
	return s
}

// Client is a client of the server, which ends with the test. change may change its options.
func (s *Server) Client(change ...func(*redis.Options)) *redis.Client {
	s.t.Helper()
	o := &redis.Options{Addr: s.Addr, ContextTimeoutEnabled: true, DialerRetries: 1}
	for _, f := range change {
		f(o)
	}
	client := redis.NewClient(o)
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Kill ends the server at once, as a crash does. It may be called more than once.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.done
	s.release()
	s.cmd = nil
}

// Restart starts a killed server again on what it has on its disk.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.start(); err != nil {
		s.t.Fatalf("restart redis-server: %v", err)
	}
}

func (s *Server) start() error {
	cmd := exec.Command("redis-server", append([]string{"--port", s.port, "--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--daemonize", "no", "--enable-debug-command", "local"}, s.args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	release, err := attach(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	ready, done := make(chan error, 1), make(chan struct{})
	go func() {
		var last []string
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.Contains(lines.Text(), "Ready to accept connections") {
				ready <- nil
			}
			last = append(last[max(0, len(last)-4):], lines.Text())
		}
		_ = cmd.Wait()
		select {
		case ready <- fmt.Errorf("it ended: %s", strings.Join(last, "; ")):
		default:
		}
		close(done)
	}()
	select {
	case err = <-ready:
	case <-time.After(startTimeout):
		err = errors.New("it was not ready in time")
	}
	if err != nil {
		_ = cmd.Process.Kill()
		<-done
		release()
		return err
	}
	s.cmd, s.release, s.done = cmd, release, done
	return nil
}

// freePort is a port of the loopback interface on which nobody listens now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
