package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/private"
)

// poller looks at the log for all lanes that have read everything, in one statement, and wakes those with something to
// do. The pause between two looks doubles from PollMin to PollMax while nothing is found.
type poller struct {
	r     *Relay
	poked chan struct{}

	// By lane and not by number: the answer to a look may come when its lane has ended and another has its number. That one
	// must not count as woken: nobody would look for it again.
	mu     sync.Mutex
	dones  map[*lane]string // of the lanes that are idle
	missed map[*lane]bool   // lanes that were reading when a look was requested: they may just have missed the reason for it
}

func newPoller(r *Relay) *poller {
	return &poller{
		r:      r,
		poked:  make(chan struct{}, 1),
		dones:  map[*lane]string{},
		missed: map[*lane]bool{},
	}
}

// poke makes the next look come at once.
func (p *poller) poke() {
	select {
	case p.poked <- struct{}{}:
	default:
	}
}

// idle says that a lane has read everything up to done, and waits on its wake channel.
func (p *poller) idle(l *lane, done string) {
	p.mu.Lock()
	p.dones[l] = done
	l.emptyUpTo.Store(nil) // of a look that took it for idle while it read: it is older
	missed := p.missed[l]
	delete(p.missed, l)
	p.mu.Unlock()
	if missed {
		p.poke()
	}
}

// refresh replaces the end of what an idle lane has read by a later one, up to which the lane has nothing: the looks that
// come have less to look up.
func (p *poller) refresh(l *lane, done, fresh string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dones[l] == done {
		p.dones[l] = fresh
	}
}

// wake lets an idle lane read, which a look has found something for that had nothing up to done.
func (p *poller) wake(l *lane, done string) {
	p.mu.Lock()
	if p.dones[l] == done {
		l.emptyUpTo.Store(&done)
	}
	p.mu.Unlock()
	p.forget(l)
	signal(l.wake)
}

func (p *poller) forget(l *lane) {
	p.mu.Lock()
	delete(p.dones, l)
	delete(p.missed, l)
	p.mu.Unlock()
}

func (p *poller) run(ctx context.Context) {
	pause := p.r.c.PollMin
	for {
		timer, poked := time.NewTimer(pause), false
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.poked:
			timer.Stop()
			pause, poked = p.r.c.PollMin, true
		case <-timer.C:
		}
		found, err := p.look(ctx, poked)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// The lanes and the saver meet the same error and log it; here it slows the polling down.
			pause = p.r.c.PollMax
			p.failed(err)
		case found:
			pause = p.r.c.PollMin
		default:
			pause = min(2*pause, p.r.c.PollMax)
		}
	}
}

// failed drops all lanes if the connection was lost. The server may come back with less than it had, and then what they
// remember is wrong. A look comes more often than any other statement, and with no server behind it fails. That the
// incarnation changed shows the same, but only on servers that let us see that they started anew.
func (p *poller) failed(err error) {
	p.r.giveUpIfFatal(err)
	if !lostConnection(err) {
		return
	}
	for _, l := range p.r.owned() {
		l.doubtful.Store(true)
		l.lost(fmt.Errorf("%w: the connection to the database was lost: %w", errLost, private.Error(err)))
	}
}

// lostConnection says whether a statement failed because its connection ended or could not be made, and not because it took
// too long or was refused.
func lostConnection(err error) bool {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return strings.HasPrefix(pgErr.Code, "57P") || strings.HasPrefix(pgErr.Code, "08")
	}
	return !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// look runs one statement for all lanes and wakes those that have something to do.
func (p *poller) look(ctx context.Context, poked bool) (found bool, err error) {
	owned := p.r.owned()
	if len(owned) == 0 {
		return false, nil
	}
	byNumber := make(map[int]*lane, len(owned))
	numbers, dones := make([]int16, 0, len(owned)), make([]*string, 0, len(owned))
	p.mu.Lock()
	maps.DeleteFunc(p.missed, func(l *lane, _ bool) bool { return !slices.Contains(owned, l) })
	for _, l := range owned {
		byNumber[l.number] = l
		numbers = append(numbers, int16(l.number))
		if done, idle := p.dones[l]; idle {
			dones = append(dones, &done)
		} else {
			dones = append(dones, nil)
			if poked {
				p.missed[l] = true
			}
		}
	}
	p.mu.Unlock()
	ctx, cancel := p.r.env.limit(ctx, p.r.c.Lease)
	defer cancel()
	if observe := p.r.c.Observer.OnPolled; observe != nil {
		began := p.r.env.now()
		defer func() {
			if err == nil {
				observe(len(owned), found, p.r.env.now().Sub(began))
			}
		}()
	}
	rows, err := p.r.pool.Query(ctx, p.r.sql.In(probeLanes), numbers, dones, owned[0].token)
	if err != nil {
		return false, fmt.Errorf("probe lanes: %w", err)
	}
	var number int
	var unread, parked, scheduled bool
	var fresh *string
	seen := 0
	_, err = pgx.ForEachRow(rows, []any{&number, &unread, &parked, &scheduled, &fresh}, func() error {
		seen++
		l, done := byNumber[number], dones[slices.Index(numbers, int16(number))]
		switch {
		case unread:
			found = true
			p.wake(l, *done)
		case fresh != nil:
			p.refresh(l, *done, *fresh)
		}
		var due uint32
		if parked {
			due |= parkedDue
		}
		if scheduled {
			due |= scheduledDue
		}
		if due != 0 {
			l.tasks.Or(due)
			signal(l.tasksDue)
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("probe lanes: %w", err)
	}
	if seen == 0 {
		// The incarnation changed, a cursor lies ahead of the server, or this is a standby now. Each lane that is woken finds
		// that out itself.
		for _, l := range owned {
			p.forget(l)
			signal(l.wake)
		}
	}
	return found, nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
