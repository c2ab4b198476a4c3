package idempotency

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/internal/pause"
	"github.com/holdfast-go/holdfast/idempotency/store"
)

// This file is about requests that wait for another one with their key (Config.Wait). However many of one process wait
// for a key, one of them at a time asks the database about it, and what it finds out is for all of them. If the request
// that they wait for runs in this process, nobody asks before it has ended.

// waiters has a group for each key that requests of this process wait for.
type waiters struct {
	mu      sync.Mutex
	of      map[store.Key]*waiterGroup
	waiting atomic.Int64 // requests
}

// waiterGroup are the requests that wait for one key.
type waiterGroup struct {
	count   int           // requests; guarded by waiters.mu
	poller  chan struct{} // has an element while nobody looks at the key or runs under it
	settled chan struct{} // closed when row is the last word
	row     *stored

	// Only the poller uses these: the one who has taken the element.
	polls int       // that found another request, since one of this process ran
	next  time.Time // when to look again
}

func (ws *waiters) enter(k store.Key) *waiterGroup {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	group := ws.of[k]
	if group == nil {
		group = &waiterGroup{poller: make(chan struct{}, 1), settled: make(chan struct{})}
		group.poller <- struct{}{}
		if ws.of == nil {
			ws.of = map[store.Key]*waiterGroup{}
		}
		ws.of[k] = group
	}
	group.count++
	return group
}

func (ws *waiters) leave(k store.Key, group *waiterGroup) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	group.count--
	if group.count == 0 && ws.of[k] == group {
		delete(ws.of, k)
	}
}

// settle tells all who wait what became of their key. Requests that come later ask again.
func (ws *waiters) settle(k store.Key, group *waiterGroup, row *stored) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.of[k] == group {
		delete(ws.of, k)
	}
	group.row = row
	close(group.settled)
}

// await answers a request that waits for others with its key if it has to.
func (rt *route) await(w http.ResponseWriter, req *request) (answered bool) {
	ws, k := &rt.g.waiters, req.key()
	group := ws.enter(k)
	defer ws.leave(k, group)
	ctx, cancel := context.WithDeadline(req.Context(), req.begun.Add(rt.o.Wait))
	defer cancel()
	select {
	case <-group.poller:
	default:
		ws.waiting.Add(1)
		select {
		case <-group.poller:
			ws.waiting.Add(-1)
		case <-group.settled:
			ws.waiting.Add(-1)
			rt.answerBy(w, req, group.row)
			return true
		case <-ctx.Done():
			ws.waiting.Add(-1)
			return false
		}
	}
	defer func() { // also if the handler panics
		if req.final != nil {
			ws.settle(k, group, req.final)
		} else {
			group.poller <- struct{}{}
		}
	}()
	return rt.lookForAll(ctx, w, req, group)
}

// lookForAll looks at a key until it can answer, or ctx, which bounds the waiting, ends.
func (rt *route) lookForAll(ctx context.Context, w http.ResponseWriter, req *request, group *waiterGroup) (answered bool) {
	for {
		if group.polls > 0 {
			rt.g.waiters.waiting.Add(1)
			inTime := pause.For(ctx, time.Until(group.next))
			rt.g.waiters.waiting.Add(-1)
			if !inTime {
				return false
			}
		}
		polls := group.polls
		group.polls, group.next = 0, time.Time{} // If this request runs, or panics, the next one looks at once.
		if rt.look(w, req, polls == 0) {
			return true
		}
		group.polls = polls + 1
		group.next = time.Now().Add(lookPause(group.polls, rt.g.random()))
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
func lookPause(polls int, random float64) time.Duration {
	most := min(200*time.Millisecond<<min(polls-1, 10), time.Second)
	return most/2 + time.Duration(random*float64(most/2))
}
