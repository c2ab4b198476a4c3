package idempotency

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// This file is about requests that wait for another one with their key (Config.Wait). However many of one process wait
// for a key, one of them at a time asks the database about it, and what it finds out is for all of them. If the request
// that they wait for runs in this process, nobody asks before it has ended.

// rooms has a room for each key that requests of this process wait for.
type rooms struct {
	mu      sync.Mutex
	of      map[StoreKey]*room
	waiting atomic.Int64 // requests
}

// room is where the requests of one key wait.
type room struct {
	inside  int           // requests; guarded by rooms.mu
	turn    chan struct{} // has an element while nobody looks at the key or runs under it
	settled chan struct{} // closed when row is the last word
	row     *stored

	// The holder of the turn uses these.
	looks int       // that found another request, since one of this process ran
	next  time.Time // when to look again
}

func (rs *rooms) enter(k StoreKey) *room {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rm := rs.of[k]
	if rm == nil {
		rm = &room{turn: make(chan struct{}, 1), settled: make(chan struct{})}
		rm.turn <- struct{}{}
		if rs.of == nil {
			rs.of = map[StoreKey]*room{}
		}
		rs.of[k] = rm
	}
	rm.inside++
	return rm
}

func (rs *rooms) leave(k StoreKey, rm *room) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rm.inside--
	if rm.inside == 0 && rs.of[k] == rm {
		delete(rs.of, k)
	}
}

// settle tells all who wait what became of their key. Requests that come later ask again.
func (rs *rooms) settle(k StoreKey, rm *room, row *stored) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.of[k] == rm {
		delete(rs.of, k)
	}
	rm.row = row
	close(rm.settled)
}

// await answers a request that waits for others with its key if it has to.
func (rt *route) await(w http.ResponseWriter, req *request) (answered bool) {
	rs, k := &rt.g.rooms, req.key()
	rm := rs.enter(k)
	defer rs.leave(k, rm)
	ctx, cancel := context.WithDeadline(req.Context(), req.begun.Add(rt.o.Wait))
	defer cancel()
	select {
	case <-rm.turn:
	default:
		rs.waiting.Add(1)
		select {
		case <-rm.turn:
			rs.waiting.Add(-1)
		case <-rm.settled:
			rs.waiting.Add(-1)
			rt.answerBy(w, req, rm.row)
			return true
		case <-ctx.Done():
			rs.waiting.Add(-1)
			return false
		}
	}
	defer func() { // also if the handler panics
		if req.final != nil {
			rs.settle(k, rm, req.final)
		} else {
			rm.turn <- struct{}{}
		}
	}()
	return rt.lookForAll(ctx, w, req, rm)
}

// lookForAll looks at a key until it can answer, or ctx, which bounds the waiting, ends.
func (rt *route) lookForAll(ctx context.Context, w http.ResponseWriter, req *request, rm *room) (answered bool) {
	for {
		if rm.looks > 0 {
			rt.g.rooms.waiting.Add(1)
			inTime := pause(ctx, time.Until(rm.next))
			rt.g.rooms.waiting.Add(-1)
			if !inTime {
				return false
			}
		}
		looks := rm.looks
		rm.looks, rm.next = 0, time.Time{} // If this request runs, or panics, the next one looks at once.
		if rt.look(w, req, looks == 0) {
			return true
		}
		rm.looks = looks + 1
		rm.next = time.Now().Add(lookPause(rm.looks, rt.g.random()))
	}
}

// look answers a request, unless another request has the key.
func (rt *route) look(w http.ResponseWriter, req *request, first bool) (answered bool) {
	if rt.o.Lease > 0 {
		return rt.underLease(w, req)
	}
	if !first { // A look that finds nothing new costs one statement.
		if free, err := rt.g.peek(req); err != nil {
			rt.unavailable(w, req, err)
			return true
		} else if !free {
			return false
		}
		rt.repeats.Store(lookFirst)
	}
	return rt.inTransaction(w, req)
}

// peek reports whether no request holds a key's lock.
func (g *Guard) peek(req *request) (free bool, err error) {
	ctx, cancel := context.WithTimeoutCause(req.Context(), g.c.AcquireTimeout, errPoolExhausted)
	defer cancel()
	if err := g.pool.QueryRow(ctx, g.sql.peek, req.lock).Scan(&free); err != nil {
		return false, fmt.Errorf("look at key: %w", caused(ctx, err))
	}
	return free, nil
}

// lookPause is the delay before the next look at a key in use: 100 ms after the first, up to 1 s, half of it random. So a
// process makes two looks in the first second at most, and then one or two.
func lookPause(looks int, random float64) time.Duration {
	most := min(200*time.Millisecond<<min(looks-1, 10), time.Second)
	return most/2 + time.Duration(random*float64(most/2))
}
