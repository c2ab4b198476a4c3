package faultproxy

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

const (
	// bufferSize is how much is read at once.
	bufferSize = 128 << 10
	// maxQueued is how much of a direction may be held or delayed before the proxy stops reading, and the sender's
	// window closes. Slow's promise rests on it.
	maxQueued = 1 << 20
)

// stream is one direction of a link. A single goroutine at a time uses it.
type stream struct {
	link     *link
	way      direction
	from, to *net.TCPConn // to is nil until the server is dialed
	buf      []byte

	queue  []parcel // in the order of arrival; empty while bytes just pass
	queued int      // bytes in it
	pacer  pacer    // of the phase paced
	paced  *phase
	over   error // why nothing more comes: io.EOF, or how the connection broke
}

// parcel is bytes that wait.
type parcel struct {
	bytes  []byte
	due    time.Time // when they go on while the phase slowed lasts
	slowed *phase    // nil for what was held
}

// run carries bytes until there are no more, or nobody takes them.
func (s *stream) run() {
	for {
		ph := s.link.phase.Load()
		var next time.Time
		if !ph.fault.loses(s.way) {
			var ok bool
			if next, ok = s.deliver(ph); !ok {
				return
			}
			if s.over != nil && len(s.queue) == 0 {
				s.tellEnd()
				return
			}
		}
		if !s.receive(ph, next) {
			return
		}
	}
}

// receive reads once, or waits where there is nothing to read: until next, unless it is zero, or until the phase is over.
// It returns false when the link is gone.
func (s *stream) receive(ph *phase, next time.Time) bool {
	if s.over != nil || s.queued >= maxQueued {
		return s.wait(ph, next)
	}
	_ = s.from.SetReadDeadline(next)
	if s.link.phase.Load() != ph {
		return true // the deadline that should have told us is lost
	}
	n, err := s.from.Read(s.buf)
	if n > 0 && !s.take(s.buf[:n]) {
		return false
	}
	switch {
	case err == nil || errors.Is(err, os.ErrDeadlineExceeded):
	case errors.Is(err, net.ErrClosed):
		return false
	default:
		s.over = err
	}
	return true
}

func (s *stream) wait(ph *phase, next time.Time) bool {
	var due <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-s.link.gone:
		return false
	case <-ph.over:
	case <-due:
	}
	return true
}

// take writes what was read, or lets it wait.
func (s *stream) take(b []byte) bool {
	ph := s.link.phase.Load()
	f := ph.fault
	switch {
	case f.loses(s.way) || s.to == nil:
		s.link.proxy.held.Add(int64(len(b)))
		s.push(parcel{bytes: b})
	case f.kind == slow:
		s.link.proxy.delayed.Add(int64(len(b)))
		if s.paced != ph {
			s.pacer, s.paced = pacer{}, ph
		}
		for now := time.Now(); len(b) > 0; {
			n := min(len(b), f.piece())
			s.push(parcel{bytes: b[:n], due: s.pacer.due(f, now, n), slowed: ph})
			b = b[n:]
		}
	case len(s.queue) > 0:
		s.push(parcel{bytes: b})
	default:
		return s.write(b)
	}
	return true
}

// push lets bytes wait that belong to the reader.
func (s *stream) push(p parcel) {
	p.bytes = append([]byte(nil), p.bytes...)
	s.queue = append(s.queue, p)
	s.queued += len(p.bytes)
}

// deliver writes what waits and is due, and says when the next is. It returns false when nobody takes it.
func (s *stream) deliver(ph *phase) (next time.Time, ok bool) {
	for len(s.queue) > 0 && s.link.phase.Load() == ph {
		head := s.queue[0]
		if head.slowed == ph && head.due.After(time.Now()) {
			return head.due, true
		}
		s.queue[0] = parcel{}
		s.queue = s.queue[1:]
		s.queued -= len(head.bytes)
		if !s.write(head.bytes) {
			return time.Time{}, false
		}
	}
	return time.Time{}, true
}

// write writes as much as the fault admits. It returns false when this direction has come to its end.
func (s *stream) write(b []byte) bool {
	n, then, count := s.link.admit(s.way, b)
	if n > 0 {
		// Where it fails the other direction fails too, once it has passed what arrived before.
		if _, err := s.to.Write(b[:n]); err != nil {
			return false
		}
		s.link.proxy.carried[s.way].Add(int64(n))
	}
	if then == goesOn {
		return true
	}
	s.link.end(then, count)
	return false
}

// tellEnd passes on how this direction ended.
func (s *stream) tellEnd() {
	if errors.Is(s.over, io.EOF) {
		_ = s.to.CloseWrite()
	} else {
		s.link.end(resets, nil)
	}
}
