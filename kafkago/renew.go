package kafkago

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// A broker with connections.max.reauth.ms ends the session of a connection after that time, or when its token expires, if
// that is earlier. It closes the connection at the next request, unless the client authenticates again before that
// (KIP-368). For a Publisher that would be a request that fails and is sent again; a Group would lose its membership, and all
// its members would stop for a rebalance. kafka-go knows nothing of it. So the connection does it by itself, between two
// requests.

// shortestSession is the shortest session that is renewed: a broker allows no renewal within a second.
const shortestSession = 2 * time.Second

// renewingConn is a connection that authenticates again before its session ends. Nobody may read from it who expects no
// answer: kafka-go reads for an answer only.
type renewingConn struct {
	net.Conn
	again   func(context.Context) (session time.Duration, err error)
	timeout time.Duration // of again

	mu              sync.Mutex // also held while it authenticates
	dueAt           time.Time
	requests        frames
	answers         frames
	readBy, writeBy time.Time // the deadlines
}

// renewing returns conn, which again authenticates before session is over; conn itself if it has no end.
func renewing(conn net.Conn, session, timeout time.Duration, again func(context.Context) (time.Duration, error)) net.Conn {
	if session < shortestSession {
		return conn
	}
	return &renewingConn{
		Conn:    conn,
		again:   again,
		timeout: timeout,
		dueAt:   renewAt(time.Now(), session, rand.Float64()),
	}
}

// renewAt is when to authenticate again. By chance, as many connections begin together.
func renewAt(now time.Time, session time.Duration, chance float64) time.Time {
	return now.Add(time.Duration(float64(session) * (0.7 + 0.2*chance)))
}

// Write authenticates first if that is due and p begins a request while no answer is outstanding.
func (c *renewingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.requests.between() && c.requests.whole == c.answers.whole && !time.Now().Before(c.dueAt) {
		if err := c.renew(); err != nil {
			c.mu.Unlock()
			_ = c.Conn.Close()
			return 0, err
		}
	}
	c.requests.pass(p) // Before it is sent: its answer must not be counted first.
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *renewingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.answers.pass(p[:n])
	c.mu.Unlock()
	return n, err
}

// renew has the time that the request has which waits for it, if that is less than its own.
func (c *renewingConn) renew() error {
	began := time.Now()
	by := began.Add(c.timeout)
	if !c.writeBy.IsZero() && c.writeBy.Before(by) {
		by = c.writeBy
	}
	ctx, cancel := context.WithDeadline(context.Background(), by)
	defer cancel()
	if err := c.Conn.SetDeadline(by); err != nil {
		return err
	}
	session, err := c.again(ctx)
	if err != nil {
		return err
	}
	if session < shortestSession { // it has none any more
		c.dueAt = began.AddDate(1000, 0, 0)
	} else {
		c.dueAt = renewAt(began, session, rand.Float64())
	}
	if err := c.Conn.SetReadDeadline(c.readBy); err != nil {
		return err
	}
	return c.Conn.SetWriteDeadline(c.writeBy)
}

func (c *renewingConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy, c.writeBy = t, t
	return c.Conn.SetDeadline(t)
}

func (c *renewingConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	return c.Conn.SetReadDeadline(t)
}

func (c *renewingConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy = t
	return c.Conn.SetWriteDeadline(t)
}

// frames counts what Kafka's protocol sends in one direction: each frame has its size before it, in 4 bytes.
type frames struct {
	whole int64 // frames that have passed
	head  [4]byte
	heads int   // bytes of head that have passed
	rest  int64 // bytes of the frame that have not
}

// between says that the next byte is the first of a frame.
func (f *frames) between() bool { return f.heads == 0 }

func (f *frames) pass(p []byte) {
	for len(p) > 0 {
		if f.heads < len(f.head) {
			n := copy(f.head[f.heads:], p)
			f.heads, p = f.heads+n, p[n:]
			if f.heads < len(f.head) {
				return
			}
			f.rest = int64(binary.BigEndian.Uint32(f.head[:]))
		}
		n := min(int64(len(p)), f.rest)
		f.rest, p = f.rest-n, p[n:]
		if f.rest == 0 {
			f.heads = 0
			f.whole++
		}
	}
}
