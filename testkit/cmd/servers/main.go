// Servers starts PostgreSQL, PgBouncer and Kafka for the tests of other modules, by whatever the machine has, and stops
// them when its standard input ends. Package internal/test/servers has the client and says what can be asked for; requests
// and replies are JSON-RPC on standard input and output.
package main

import (
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

func main() {
	// An interrupt goes to the test binary too, which closes our input when it ends.
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	replies := os.Stdout
	os.Stdout = os.Stderr // for what libraries print
	if err := serve(os.Stdin, replies); err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
		os.Exit(1)
	}
}

// serve answers requests until in ends, and stops the servers that were asked for.
func serve(in io.Reader, out io.Writer) error {
	s := &Servers{}
	defer s.stopAll()
	server := rpc.NewServer()
	if err := server.Register(s); err != nil {
		return fmt.Errorf("register the methods: %w", err)
	}
	// Calls that still run when the input ends are waited for, and one may pull an image: what was started stops at once.
	server.ServeCodec(jsonrpc.NewServerCodec(stream{&ending{in, func() { go s.stopAll() }}, out}))
	return nil
}

// ending is a reader that says when it has ended.
type ending struct {
	io.Reader
	end func()
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err != nil {
		e.end()
	}
	return n, err
}

// stream is both ends of a conversation, which others close.
type stream struct {
	io.Reader
	io.Writer
}

func (stream) Close() error { return nil }

// Servers has the methods that can be called, and the servers that they started.
type Servers struct {
	mu      sync.Mutex
	started map[int]any // by ID
	stops   []func()
	stopped bool

	stopping sync.Once
}

// add keeps a server that was started, and returns its ID. Where all were stopped meanwhile it is stopped too.
func (s *Servers) add(server any, stop func()) (id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		stop()
		return 0
	}
	if s.started == nil {
		s.started = map[int]any{}
	}
	id = len(s.started) + 1
	s.started[id] = server
	s.stops = append(s.stops, stop)
	return id
}

func get[S any](s *Servers, id int) (S, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	server, ok := s.started[id].(S)
	if !ok {
		return server, fmt.Errorf("%d is no such server", id)
	}
	return server, nil
}

// stopAll stops every server, once, and returns when all have stopped.
func (s *Servers) stopAll() {
	s.stopping.Do(func() {
		s.mu.Lock()
		s.stopped = true
		stops := s.stops
		s.mu.Unlock()
		var all sync.WaitGroup
		for _, stop := range stops {
			all.Go(stop)
		}
		all.Wait()
	})
}
