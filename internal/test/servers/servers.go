// Package servers asks the command testkit/cmd/servers for servers: PostgreSQL, PgBouncer and Kafka.
//
// The tests of this module link no container client, no embedded server and no imitation of Kafka. The command has them,
// in a module of its own, and go run builds it from the clone that the tests run in. One process serves one test binary,
// by JSON-RPC over its standard input and output. It ends when its input closes, and stops what it has started: nothing
// outlives a test binary that is killed.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// stopTimeout is how long the process may take to stop its servers. What it leaves then goes when it ends.
const stopTimeout = time.Minute

// ErrNoTestkit is what errors wrap where the tests run outside a clone of the repository.
var ErrNoTestkit = errors.New("the servers of the tests come with a clone of the repository, and this is none")

// Call asks the process for something and waits for the answer. It starts the process where it does not run. The method
// is one of Service's, by its name: "Postgres".
func Call(ctx context.Context, method string, args, reply any) error {
	p, err := running.get()
	if err != nil {
		return err
	}
	call := p.client.Go("Servers."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
	case <-ctx.Done():
		return ctx.Err()
	}
	var said rpc.ServerError
	if call.Error != nil && !errors.As(call.Error, &said) {
		return fmt.Errorf("ask the process of the servers: %w, it said:\n%s", call.Error, p.log.String())
	}
	return call.Error
}

// Stop ends the process with all servers that it has started. No test may run afterwards.
func Stop() { running.stop() }

var running starter

// starter starts the process at most once; a failure is remembered too.
type starter struct {
	once    sync.Once
	process *process
	err     error
}

func (s *starter) get() (*process, error) {
	s.once.Do(func() { s.process, s.err = start() })
	return s.process, s.err
}

// stop uses up the once: a process that no test asked for is not started to be stopped.
func (s *starter) stop() {
	s.once.Do(func() { s.err = errors.New("the tests are over") })
	if s.process != nil {
		s.process.stop()
	}
}

// machine are the variables by which the process finds servers. A test binary that has read them is not answered from
// go test's cache once one has changed: a run without Docker is no proof of one with it.
var machine = []string{"DOCKER_HOST", "DOCKER_CONTEXT", "TESTCONTAINERS_HOST_OVERRIDE"}

type process struct {
	cmd    *exec.Cmd
	client *rpc.Client
	log    log
}

func start() (*process, error) {
	for _, name := range machine {
		_ = os.Getenv(name)
	}
	dir, err := commandDir()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command("go", "run", ".")}
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), "PWD="+dir, "GOWORK=") // The clone's go.work, whatever this module was built with.
	p.cmd.Stderr = &p.log
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the process of the servers: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the process of the servers: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process of the servers: %w", err)
	}
	p.client = jsonrpc.NewClient(stream{out, in})
	return p, nil
}

// commandDir finds the command above the folder that the tests run in, which is that of their package.
func commandDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the command of the servers: %w", err)
	}
	for {
		command := filepath.Join(dir, "testkit", "cmd", "servers")
		if _, err := os.Stat(filepath.Join(command, "main.go")); err == nil {
			return command, nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return "", ErrNoTestkit
		}
		dir = above
	}
}

func (p *process) stop() {
	_ = p.client.Close() // its input
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.cmd.Wait()
	}()
	select {
	case <-done:
	case <-time.After(stopTimeout):
	}
}

// stream is both ends of a process.
type stream struct {
	io.ReadCloser
	in io.WriteCloser
}

func (s stream) Write(b []byte) (int, error) { return s.in.Write(b) }

// Close leaves the output open, which the process may still write to: Wait closes it.
func (s stream) Close() error { return s.in.Close() }

// log keeps the end of what the process says.
type log struct {
	mu   sync.Mutex
	text []byte
}

func (l *log) Write(b []byte) (int, error) {
	const most = 10_000
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	l.text = bytes.Clone(l.text[max(0, len(l.text)-most):])
	return len(b), nil
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
