package redistest

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// Proxy stands between a client and a server, and loses answers.
type Proxy struct {
	Addr string
	lose atomic.Int32
}

// NewProxy stands before a server until its test ends.
func NewProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &Proxy{Addr: l.Addr().String()}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(far, near)
				_ = far.Close()
			}()
			go p.answers(near, far)
		}
	}()
	return p
}

// LoseNext loses the next answer, and the connection with it, after the server has given it.
func (p *Proxy) LoseNext() { p.lose.Store(1) }

// Lost says that the answer was lost.
func (p *Proxy) Lost() bool { return p.lose.Load() == 0 }

// answers passes on what the server says.
func (p *Proxy) answers(near, far net.Conn) {
	defer near.Close()
	defer far.Close()
	chunk := make([]byte, 64<<10)
	for {
		n, err := far.Read(chunk)
		if n > 0 && p.lose.CompareAndSwap(1, 0) {
			return
		}
		if _, werr := near.Write(chunk[:n]); err != nil || werr != nil {
			return
		}
	}
}
