package faultproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "left running by the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// bundle is a proxy and its server, which hands its connections to the test.
type bundle struct {
	testing.TB
	*Proxy
	server   string
	accepted chan *net.TCPConn
}

func setup(t testing.TB) *bundle {
	t.Helper()
	b := &bundle{TB: t}
	b.server, b.accepted = serve(t)
	p, err := Start(b.server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	b.Proxy = p
	return b
}

// serve runs a server that keeps what it accepts until it is received.
func serve(t testing.TB) (address string, accepted chan *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = make(chan *net.TCPConn, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c.(*net.TCPConn)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
		for len(accepted) > 0 {
			_ = (<-accepted).Close()
		}
	})
	return l.Addr().String(), accepted
}

// dial connects a client. Everything it and a server's side do has a deadline.
func (b *bundle) dial() *net.TCPConn {
	b.Helper()
	c, err := net.DialTimeout("tcp", b.Address(), wait.Limit())
	if err != nil {
		b.Fatal(err)
	}
	return b.own(c.(*net.TCPConn))
}

func (b *bundle) own(c *net.TCPConn) *net.TCPConn {
	b.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(wait.Limit()))
	return c
}

// arrival is the next connection that the server accepts.
func (b *bundle) arrival(accepted chan *net.TCPConn) *net.TCPConn {
	b.Helper()
	select {
	case c := <-accepted:
		return b.own(c)
	case <-time.After(wait.Limit()):
		b.Fatal("no connection arrives at the server")
		return nil
	}
}

// pair connects a client to the server, once one byte has gone each way.
func (b *bundle) pair() (client, server *net.TCPConn) {
	b.Helper()
	client = b.dial()
	b.send(client, "?")
	server = b.arrival(b.accepted)
	b.gets(server, "?")
	b.send(server, "!")
	b.gets(client, "!")
	return client, server
}

func (b *bundle) set(f Fault) {
	b.Helper()
	if err := b.Set(f); err != nil {
		b.Fatal(err)
	}
}

func (b *bundle) send(c net.Conn, text string) {
	b.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		b.Fatal(err)
	}
}

func (b *bundle) gets(c net.Conn, want string) {
	b.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		b.Fatalf("got %q, %v; want %q", got[:n], err, want)
	}
}

// getsNothing looks at what has arrived by now: the caller has seen to it that it would have.
func (b *bundle) getsNothing(c net.Conn) {
	b.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	got := make([]byte, 100)
	if n, err := c.Read(got); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		b.Fatalf("got %q, %v; want nothing", got[:n], err)
	}
	_ = c.SetReadDeadline(time.Now().Add(wait.Limit()))
}

// endsWith reads until the end, which has to be err.
func (b *bundle) endsWith(c net.Conn, text string, want error) {
	b.Helper()
	got, err := io.ReadAll(c)
	if err == nil {
		err = io.EOF
	}
	if string(got) != text || !errors.Is(err, want) {
		b.Fatalf("got %q and %v, want %q and %v", got, err, text, want)
	}
}

// eventually polls: counters tell nobody that they change.
func (b *bundle) eventually(what string, ok func() bool) {
	b.Helper()
	if !wait.For(wait.Limit(), ok) {
		b.Fatalf("not within %s: %s; %+v", wait.Limit(), what, b.Counts())
	}
}

var reset = syscall.ECONNRESET
