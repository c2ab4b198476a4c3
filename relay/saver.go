package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/private"
)

// saver makes cursors durable: one statement for all lanes, not more often than saveInterval. The same statement is the
// heartbeat that keeps the leases. Saving late only means that more is published again after a crash.
type saver struct {
	r     *Relay
	dirty chan struct{}

	mu     sync.Locker  // held while cursors are written, so that none moves back
	number atomic.Int64 // of the last save that was sent
	took   time.Duration
	locked map[int]bool // lanes that the last save passed over
}

func newSaver(r *Relay) *saver {
	return &saver{
		r:     r,
		dirty: make(chan struct{}, 1),
		mu:    &sync.Mutex{},
	}
}

// note reports that a cursor has moved.
func (s *saver) note() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

func (s *saver) run(ctx context.Context) {
	every := s.r.c.Lease / 5
	for {
		heartbeat := time.NewTimer(every)
		select {
		case <-ctx.Done():
			heartbeat.Stop()
			return
		case <-heartbeat.C:
		case <-s.dirty:
			heartbeat.Stop()
		}
		began := time.Now()
		s.try(ctx, s.r.owned())
		rest := time.NewTimer(min(saveInterval(time.Since(began)), every))
		select {
		case <-ctx.Done():
			rest.Stop()
			return
		case <-rest.C:
		}
	}
}

// try saves, and logs a failure: the next save makes up for it, or the lanes lose their leases.
func (s *saver) try(ctx context.Context, lanes []*lane) {
	s.r.logMore(false)
	if err := s.save(ctx, lanes); err != nil && ctx.Err() == nil {
		s.r.giveUpIfFatal(err)
		if attrs, say := s.r.again("cursors "+private.Kind(private.Text(err)), "relay", s.r.c.Name, "error", private.Text(err)); say {
			s.r.c.Logger.Warn("cursors not saved, will retry", attrs...)
		}
	}
}

// next is the number of a save that is about to be sent. The saves of each lane are numbered in the order they are sent.
func (s *saver) next() int64 { return s.number.Add(1) }

// exclude keeps a lane out of the saves until include, and waits for a save in progress: a transaction of the lane is about
// to lock its row, and might write its cursor. All other lanes are saved meanwhile, so they keep their leases however long
// it takes. Calls are counted.
func (s *saver) exclude(l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.openTransactions++
}

func (s *saver) include(l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.openTransactions--
}

// save writes the cursors of lanes and renews their leases, except for excluded lanes, and for those whose rows somebody else
// has locked: if that lasts, they lose their leases. A lane that the statement does not return is lost. A save takes no longer
// than a lease, even on a connection that never answers: all other saves wait for it.
func (s *saver) save(ctx context.Context, lanes []*lane) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := s.r.env.limit(ctx, s.r.c.Lease)
	defer cancel()
	// A lane whose transaction failed, or may have, is about to be dropped. If the transaction was committed after all, its
	// cursor is ahead of the one in our memory, which must not overwrite it.
	lanes = slices.DeleteFunc(slices.Clone(lanes), func(l *lane) bool {
		busy := l.openTransactions > 0
		l.leftOut.Store(busy)
		return busy || l.doubtful.Load()
	})
	n := len(lanes)
	if n == 0 {
		return nil
	}
	numbers, epochs, poss, published := make([]int16, n), make([]int64, n), make([]int64, n), make([]int64, n)
	dones, uptos := make([]*string, n), make([]*string, n)
	cursors, unsaved := make([]cursor, n), make([]passedEvents, n)
	tokens := map[string][]int{}
	for i, l := range lanes {
		var further bool
		if cursors[i], further, unsaved[i] = l.toSave(); further {
			dones[i], uptos[i] = &cursors[i].done, &cursors[i].upto
		}
		numbers[i], epochs[i], poss[i], published[i] = int16(l.number), l.epoch, cursors[i].pos, l.published.Load()
		tokens[l.token] = append(tokens[l.token], i)
	}
	failpoint.Hit(failpoint.RelaySaving)
	sent, number := s.r.env.now(), s.next()
	saved, locked := map[int]bool{}, map[int]bool{}
	for _, token := range slices.Sorted(maps.Keys(tokens)) { // one, except in the moments after a crash of the database
		members := tokens[token]
		rows, err := s.r.pool.Query(ctx, s.r.sql.In(saveLanes), s.r.c.Name, s.r.c.Lease, pick(numbers, members), pick(epochs, members),
			pick(dones, members), pick(uptos, members), pick(poss, members), token, number, pick(published, members))
		if err != nil {
			return fmt.Errorf("save cursors: %w", err)
		}
		var lane int
		var done bool
		if _, err := pgx.ForEachRow(rows, []any{&lane, &done}, func() error {
			if done {
				saved[lane] = true
			} else {
				locked[lane] = true
			}
			return nil
		}); err != nil {
			return fmt.Errorf("save cursors: %w", err)
		}
	}
	failpoint.Hit(failpoint.RelaySaved)
	s.took = s.r.env.now().Sub(sent)
	for i, l := range lanes {
		if locked[l.number] {
			if !s.locked[l.number] {
				s.r.c.Logger.Warn("lane not saved: another transaction has its row locked", "lane", l.number)
			}
			continue
		}
		if !saved[l.number] {
			l.lost(errFenced)
			continue
		}
		l.savedUpTo(cursors[i], unsaved[i], sent.Add(s.r.c.Lease))
		if l.producer != nil {
			l.producer.Settled(unsaved[i].events, unsaved[i].readAt)
		}
	}
	s.locked = locked
	if observe := s.r.c.Observer.OnSaved; observe != nil {
		observe(len(saved), s.took)
	}
	return nil
}

func pick[T any](from []T, members []int) []T {
	if len(members) == len(from) {
		return from
	}
	out := make([]T, len(members))
	for i, m := range members {
		out[i] = from[m]
	}
	return out
}
