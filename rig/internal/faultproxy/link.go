package faultproxy

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one client's connection with the one to the server that belongs to it.
type link struct {
	proxy  *Proxy
	number uint64
	gone   chan struct{} // closed when both sides are
	phase  atomic.Pointer[phase]

	up, down stream

	mu             sync.Mutex
	client, server *net.TCPConn // server is nil until it is dialed
	effect         effect
	passed         int64 // bytes since the phase began that count for the effect
	talk           *conversation
	timer          *time.Timer // resets the link; nil for none
}

func newLink(p *Proxy, number uint64, client *net.TCPConn) *link {
	l := &link{
		proxy:  p,
		number: number,
		client: client,
		gone:   make(chan struct{}),
		talk:   newConversation(),
	}
	l.up = stream{link: l, way: up, from: client, buf: make([]byte, bufferSize)}
	l.down = stream{link: l, way: down, to: client}
	return l
}

// enter begins a phase. The caller holds the proxy's lock, and the proxy is not closed.
func (l *link) enter(ph *phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isGone() {
		return
	}
	l.disarm()
	l.effect, l.passed, l.talk.awaited = ph.fault.effectOn(l.number), 0, nil
	if l.effect.within >= 0 {
		l.proxy.wg.Add(1)
		l.timer = time.AfterFunc(l.effect.within, func() {
			defer l.proxy.wg.Done()
			l.end(resets, &l.proxy.resets)
		})
	}
	// Whoever reads stops and looks at the phase: a deadline that it sets itself, it sets before it looks.
	l.phase.Store(ph)
	_ = l.client.SetReadDeadline(time.Unix(1, 0))
	if l.server != nil {
		_ = l.server.SetReadDeadline(time.Unix(1, 0))
	}
}

func (l *link) disarm() {
	if l.timer != nil && l.timer.Stop() {
		l.proxy.wg.Done()
	}
	l.timer = nil
}

func (l *link) isGone() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// end closes both sides, once. It says whether they were open, and adds them to a count, if there is one, before anybody
// else can know that they are not any more.
func (l *link) end(how end, count *atomic.Int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isGone() {
		return false
	}
	if count != nil {
		count.Add(1)
	}
	close(l.gone)
	l.disarm()
	for _, conn := range []*net.TCPConn{l.client, l.server} {
		if conn == nil {
			continue
		}
		if how == resets {
			_ = conn.SetLinger(0)
		}
		_ = conn.Close()
	}
	return true
}

// live carries the link until both directions have ended.
func (l *link) live() {
	defer l.end(closes, nil)
	if !l.reach() {
		return
	}
	var both sync.WaitGroup
	both.Go(l.up.run)
	both.Go(l.down.run)
	both.Wait()
}

// reach connects to the server, once the fault in force lets new connections through. A client that has gone by then
// never comes to the server's knowledge.
func (l *link) reach() bool {
	for first := true; ; first = false {
		ph := l.phase.Load()
		if !ph.fault.answersNobody() {
			break
		}
		if first {
			l.proxy.unanswered.Add(1)
		}
		if !l.up.receive(ph, time.Time{}) || l.up.over != nil {
			return false
		}
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(l.proxy.ctx, "tcp", l.proxy.Target())
	if err != nil {
		l.end(resets, &l.proxy.unreachable)
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isGone() {
		_ = conn.Close()
		return false
	}
	l.server = conn.(*net.TCPConn)
	l.up.to, l.down.from, l.down.buf = l.server, l.server, make([]byte, bufferSize)
	return true
}

// dialTimeout bounds connecting to a server that gives no answer.
const dialTimeout = 30 * time.Second

// admit says how many of the bytes b go on in direction d, what becomes of the link then, and which count it is one of.
func (l *link) admit(d direction, b []byte) (n int, then end, count *atomic.Int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ph := l.phase.Load()
	if n, count = l.follow(ph, d, b); count != nil {
		return n, closes, count
	}
	n, then = ph.fault.admit(l.effect, d, l.passed, n)
	if ph.fault.meters(d) {
		l.passed += int64(n)
	}
	if then == closes {
		return n, then, &l.proxy.truncated
	}
	return n, then, &l.proxy.resets
}

// follow looks for COMMITs and their answers. It returns a count where the link is cut after n bytes.
func (l *link) follow(ph *phase, d direction, b []byte) (n int, count *atomic.Int64) {
	if d == down {
		n, closing, missed := l.talk.fromServer(b)
		if missed {
			ph.cuts.Add(-1)
		}
		if closing {
			return n, &l.proxy.cutAfter
		}
		return n, nil
	}
	seen := l.talk.seen
	n, closing := l.talk.fromClient(b, func() (Moment, bool) {
		moment, ok := ph.fault.cut(ph.commits.Add(1))
		return moment, ok && ph.mayCut()
	})
	l.proxy.commits.Add(l.talk.seen - seen)
	if closing {
		return n, &l.proxy.cutBefore
	}
	return n, nil
}
