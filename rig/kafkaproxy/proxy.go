// Package kafkaproxy is a proxy in front of a real Kafka at which one partition misbehaves: as it would if its leader
// alone were slow, gone, frozen or short of replicas. All other requests pass at once.
//
//	proxy, err := kafkaproxy.Start(broker)
//	// … a publisher connects to proxy.Address() …
//	proxy.Set(kafkaproxy.Late("orders", 3, 3*time.Second))
//	proxy.Set(kafkaproxy.Pass())
//
// It reads Produce requests up to version 8, without TLS, as kafka-go sends them. A request of many partitions meets the fault of
// any of them as a whole: a broker answers it when the last one has. Nothing of it is linked into the library packages.
package kafkaproxy

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/freeport"
	"github.com/holdfast-go/holdfast/kafkago"
)

// Fault says how a partition misbehaves. The zero Fault is Pass.
type Fault struct {
	kind      kind
	topic     string
	partition int
	delay     time.Duration
}

type kind int

const (
	pass kind = iota
	late
	leaderless
	hang
	refuse
)

// Pass is no fault.
func Pass() Fault { return Fault{} }

// Late carries requests out at once, and holds each answer for delay.
func Late(topic string, partition int, delay time.Duration) Fault {
	return Fault{late, topic, partition, delay}
}

// Leaderless answers every request with LEADER_NOT_AVAILABLE and writes nothing.
func Leaderless(topic string, partition int) Fault { return Fault{leaderless, topic, partition, 0} }

// Hang answers no request. What was sent meanwhile never arrives: the next Set resets these connections.
func Hang(topic string, partition int) Fault { return Fault{hang, topic, partition, 0} }

// Refuse answers every request with NOT_ENOUGH_REPLICAS and writes nothing.
func Refuse(topic string, partition int) Fault { return Fault{refuse, topic, partition, 0} }

// String names the fault and its partition.
func (f Fault) String() string {
	names := []string{"pass", "late", "leaderless", "hang", "refuse"}
	if f.kind == pass {
		return names[pass]
	}
	return fmt.Sprintf("%s %s/%d", names[f.kind], f.topic, f.partition)
}

// Proxy is one proxy. Its methods may be called from any goroutine.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup
	hits     atomic.Int64

	mu     sync.Mutex
	fault  Fault
	conns  map[*conn]bool // true while it hangs
	closed bool
}

// Start listens on a port of 127.0.0.1 and passes what comes to target, "host:port".
func Start(target string) (*Proxy, error) {
	listener, err := freeport.Listen()
	if err != nil {
		return nil, fmt.Errorf("start a proxy to %s: %w", target, err)
	}
	p := &Proxy{target: target, listener: listener, conns: map[*conn]bool{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Address is where to connect in place of the target, "127.0.0.1:port".
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Dial is for kafkago.Connection: it connects to a proxy in place of every broker, as kafkago.Dial does.
func Dial(address string) func(ctx context.Context, network, broker string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return kafkago.Dial(ctx, network, address)
	}
}

// Hits is how many requests a fault has met since the start.
func (p *Proxy) Hits() int64 { return p.hits.Load() }

// Set replaces the fault in force, for open connections too.
func (p *Proxy) Set(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	for c, hangs := range p.conns {
		if hangs {
			c.end(true)
		}
	}
}

// Close resets all connections and returns when nothing of the proxy runs any more. It may be called many times.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close()
	for c := range p.conns {
		c.end(true)
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.carry(client.(*net.TCPConn)) })
	}
}

// dialTimeout bounds connecting to a target that gives no answer.
const dialTimeout = 30 * time.Second

// carry serves one connection until either side ends it.
func (p *Proxy) carry(client *net.TCPConn) {
	server, err := net.DialTimeout("tcp", p.target, dialTimeout)
	if err != nil {
		_ = client.SetLinger(0)
		_ = client.Close()
		return
	}
	c := &conn{proxy: p, client: client, server: server.(*net.TCPConn), gone: make(chan struct{})}
	p.mu.Lock()
	p.conns[c] = false
	if p.closed {
		c.end(true)
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(c.up)
	both.Go(c.down)
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// meet returns the fault that a request of some partitions meets, and counts it.
func (p *Proxy) meet(c *conn, all []place) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fault
	if f.kind == pass || !slices.Contains(all, place{f.topic, f.partition}) {
		return Fault{}
	}
	p.hits.Add(1)
	if f.kind == hang {
		p.conns[c] = true
	}
	return f
}
