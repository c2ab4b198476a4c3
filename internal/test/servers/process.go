package servers

import (
	"bytes"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"sync"
	"time"
)

// stopTimeout is how long a process of this binary's own may take to stop its servers. What it leaves then goes when it
// ends.
const stopTimeout = time.Minute

// dockerVars are the variables by which the process finds Docker.
var dockerVars = []string{"DOCKER_HOST", "DOCKER_CONTEXT", "TESTCONTAINERS_HOST_OVERRIDE"}

// readDockerVars reads them as go test sees it: the result of a binary that has read them is not taken from the cache once
// one has changed, as a run without Docker is no proof of one with it. A binary that met nothing of Docker does not read
// them, and its result holds on both machines.
func readDockerVars() {
	for _, name := range dockerVars {
		_ = os.Getenv(name)
	}
}

// process is a process of servers and how to talk to it.
type process struct {
	client *rpc.Client
	said   func() string // the end of what it has printed
	stop   func()
}

// start joins the process of the whole go test, or starts one for this binary.
func start() (*process, error) {
	dir, err := commandDir()
	if err != nil {
		return nil, err
	}
	if p, err := join(dir); p != nil || err != nil {
		return p, err
	}
	return startOwn(dir)
}

// command runs the process. Nothing of this binary's environment is left out: it may say where PostgreSQL is.
func command(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("go", append([]string{"run", "."}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir, "GOWORK=") // The clone's go.work, whatever this module was built with.
	return cmd
}

func startOwn(dir string) (*process, error) {
	cmd, log := command(dir), new(log)
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the process of the servers: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the process of the servers: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process of the servers: %w", err)
	}
	client := jsonrpc.NewClient(stream{out, in})
	return &process{client: client, said: log.String, stop: func() {
		_ = client.Close() // its input
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = cmd.Wait()
		}()
		select {
		case <-done:
		case <-time.After(stopTimeout):
		}
	}}, nil
}

// stream is both ends of a process.
type stream struct {
	io.ReadCloser
	in io.WriteCloser
}

func (s stream) Write(b []byte) (int, error) { return s.in.Write(b) }

// Close leaves the output open, which the process may still write to: Wait closes it.
func (s stream) Close() error { return s.in.Close() }

// logSize is how much of what the process prints is kept, in bytes.
const logSize = 10_000

// log keeps the end of what the process prints.
type log struct {
	mu   sync.Mutex
	text []byte
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	l.text = bytes.Clone(l.text[max(0, len(l.text)-logSize):])
	return len(b), nil
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
