package main

import (
	"fmt"
	"io"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"path/filepath"
	"sync"

	"github.com/holdfast-go/holdfast/internal/test/servers"
)

// Servers has the methods that a test binary can call, and the servers that are its own.
type Servers struct {
	started
	shared *shared
}

// shared are the servers of all test binaries.
type shared struct {
	started
	starting sync.Mutex
	kafka    *servers.KafkaReply // nil before the first that asks
}

// serve answers the requests of one test binary until in ends, and stops the servers that are its own.
func serve(all *shared, in io.Reader, out io.Writer) error {
	s := &Servers{shared: all}
	defer s.stopAll()
	server := rpc.NewServer()
	if err := server.Register(s); err != nil {
		return fmt.Errorf("register the methods: %w", err)
	}
	// Calls that still run when the input ends are waited for, and one may pull an image: what was started stops at once.
	server.ServeCodec(jsonrpc.NewServerCodec(stream{&ending{in, func() { go s.stopAll() }}, out}))
	return nil
}

// listen serves all test binaries that connect until the owner ends. The folder of the socket goes with it.
func listen(socket string, owner int) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for test binaries: %w", err)
	}
	defer os.RemoveAll(filepath.Dir(socket))
	all := new(shared)
	defer all.stopAll()
	var open connections
	defer open.endAll()
	go func() {
		waitFor(owner)
		_ = listener.Close()
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return nil // the owner has ended
		}
		open.begin(conn, func() {
			if err := serve(all, conn, conn); err != nil {
				fmt.Fprintln(os.Stderr, "servers:", err)
			}
		})
	}
}

// connections are those of the test binaries that run.
type connections struct {
	mu    sync.Mutex
	open  map[net.Conn]bool
	serve sync.WaitGroup
}

func (c *connections) begin(conn net.Conn, serve func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[net.Conn]bool{}
	}
	c.open[conn] = true
	c.serve.Go(func() {
		serve()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, conn)
		_ = conn.Close()
	})
}

// endAll ends the connections that are left, and returns when their servers have stopped.
func (c *connections) endAll() {
	c.mu.Lock()
	for conn := range c.open {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.serve.Wait()
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
