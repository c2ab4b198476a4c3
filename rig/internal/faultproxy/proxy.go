package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/freeport"
)

// Proxy is one proxy. Its methods may be called from any goroutine.
type Proxy struct {
	address string
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup // everything that runs
	counters

	mu       sync.Mutex
	target   string
	listener net.Listener // nil while new connections are refused
	phase    *phase
	links    map[*link]bool
	born     uint64 // links so far
	closed   bool
}

// phase is a fault that is in force, from one Set to the next.
type phase struct {
	fault   Fault
	over    chan struct{} // closed when the next one is in force
	commits atomic.Uint64 // that could have been cut
	cuts    atomic.Int64
}

// mayCut takes one of the cuts that the fault allows.
func (ph *phase) mayCut() bool {
	if n := ph.cuts.Add(1); ph.fault.cuts.Most == 0 || n <= ph.fault.cuts.Most {
		return true
	}
	ph.cuts.Add(-1)
	return false
}

var errClosed = errors.New("faultproxy: the proxy is closed")

// Start listens on a port of 127.0.0.1 and passes what comes to target, "host:port". Nobody has to listen there yet.
func Start(target string) (*Proxy, error) {
	listener, err := freeport.Listen()
	if err != nil {
		return nil, fmt.Errorf("start a proxy to %s: %w", target, err)
	}
	p := &Proxy{
		address:  listener.Addr().String(),
		target:   target,
		links:    map[*link]bool{},
		listener: listener,
	}
	p.phase = &phase{fault: Pass().withDefaults(), over: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(func() { p.accept(listener) })
	return p, nil
}

// Address is where to connect in place of the target, "127.0.0.1:port". It stays the same over the proxy's life.
func (p *Proxy) Address() string { return p.address }

// SetTarget sends new connections to another server, as after a failover. Those that are open stay where they are: see
// Reset.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Target is where new connections go.
func (p *Proxy) Target() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// Fault is the one that is in force.
func (p *Proxy) Fault() Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase.fault
}

// Set puts a fault in the place of the one before, for the connections that are open too. What the one before held goes
// on as the new one says. It fails for values out of their range, after Close, and when another process has taken the
// port while Refuse was in force; then the fault before stays.
func (p *Proxy) Set(f Fault) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set(f)
}

func (p *Proxy) set(f Fault) error {
	f = f.withDefaults()
	if p.closed {
		return errClosed
	}
	if err := f.validate(); err != nil {
		return fmt.Errorf("faultproxy: %w", err)
	}
	if f.kind == refuse && p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	} else if f.kind != refuse && p.listener == nil {
		listener, err := net.Listen("tcp", p.address)
		if err != nil {
			return fmt.Errorf("faultproxy: listen again: %w", err)
		}
		p.listener = listener
		p.wg.Go(func() { p.accept(listener) })
	}
	before := p.phase
	p.phase = &phase{fault: f, over: make(chan struct{})}
	for l := range p.links {
		l.enter(p.phase)
	}
	close(before.over)
	return nil
}

// PassAnew resets all connections and then passes: what a fault held never arrives. It returns how many there were.
func (p *Proxy) PassAnew() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.resetAll()
	return n, p.set(Pass())
}

// Reset resets all connections, both sides of each, whatever fault is in force, and returns how many there were.
func (p *Proxy) Reset() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resetAll()
}

func (p *Proxy) resetAll() (n int) {
	for l := range p.links {
		if l.end(resets, &p.resets) {
			n++
		}
	}
	return n
}

// Close ends the proxy and resets its connections. It returns when nothing of it runs any more, and may be called many
// times. Its error is always nil.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.cancel()
		if p.listener != nil {
			_ = p.listener.Close()
		}
		for l := range p.links {
			l.end(resets, nil)
		}
	}
	p.mu.Unlock()
	p.wg.Wait()
	return nil
}

// accept runs until the listener is closed.
func (p *Proxy) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors, for one: others may give some back
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(5 * time.Millisecond):
			}
			continue
		}
		p.welcome(conn.(*net.TCPConn))
	}
}

// welcome has a new connection live.
func (p *Proxy) welcome(client *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = client.Close()
		return
	}
	p.connections.Add(1)
	p.open.Add(1)
	p.born++
	l := newLink(p, p.born, client)
	p.links[l] = true
	l.enter(p.phase)
	p.wg.Go(func() {
		l.live()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
		p.open.Add(-1)
	})
}
