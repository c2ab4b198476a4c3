package relay

import (
	"context"
	"fmt"
	"time"
)

// aheadTimeout bounds a read ahead: meanwhile the lane's own pages wait.
const aheadTimeout = 20 * time.Second

// hand gives a page of the first reader to run, and waits until that has room for it. If tenants are told apart, it reads ahead
// meanwhile (overtake.go). What it finds run takes at any time.
func (l *lane) hand(ctx context.Context, p page, pages, ahead chan<- page) error {
	fair, next := l.reader.fair, p
	if fair != nil {
		next = fair.left(p)
	}
	for began := l.r.env.now(); ; {
		var due <-chan time.Time
		if fair != nil {
			if fair.due(l.r.env.now()) {
				if err := l.handAhead(ctx, began, ahead); err != nil {
					l.r.budget.give(p.kept)
					return err
				}
				next = fair.left(p)
			}
			if fair.noisy != nil {
				due = time.After(fair.nextAt.Sub(l.r.env.now()))
			}
		}
		select {
		case <-ctx.Done():
			l.r.budget.give(p.kept)
			return ctx.Err()
		case pages <- next:
			l.met(p)
			return nil
		case <-due:
		}
	}
}

// met notes a page of the first reader that run has, or that says that there is nothing to read.
func (l *lane) met(p page) {
	l.reader.handed = p.after
	if fair := l.reader.fair; fair != nil {
		fair.meet(p, l.reader.limit, l.r.env.now())
	}
}

// handAhead reads ahead, and gives to run what it finds, since began beside a page of the first reader that waits. Without room in the
// budget it does so later: pages that wait for their lanes may have all of it, and this one must not keep its lane from taking them.
func (l *lane) handAhead(ctx context.Context, began time.Time, ahead chan<- page) error {
	if !l.r.budget.tryTake() {
		now := l.r.env.now()
		l.reader.fair.nextAt = readsAgain(now, 0, now.Sub(began), false, false)
		return nil
	}
	limited, cancel := l.r.env.limit(ctx, l.r.statementTimeout)
	reading := l.r.env.now()
	p, found := l.reader.readAhead(limited, began)
	cancel()
	if observe := l.r.c.Observer.OnRead; observe != nil && found {
		observe(l.number, len(p.events), l.r.env.now().Sub(reading))
	}
	l.keep(&p)
	if !found {
		l.r.budget.give(p.kept)
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		l.r.budget.give(p.kept)
		return ctx.Err()
	case ahead <- p:
		return nil
	}
}

// readAhead reads a page of the second reader. since is when the page of the first that waits began to. If it cannot be read in time, the
// second reader rests: the first meets the same rows later, and finds the one that is to blame.
func (r *logReader) readAhead(ctx context.Context, since time.Time) (page, bool) {
	began, noisy, done, first := r.now(), r.fair.noisy, r.fair.at.done, r.fair.at.done == r.fair.from.done
	bounded, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	events, upto, full, err := r.readQuiet(bounded)
	if err != nil {
		if rest := r.fair.failed(r.now()); ctx.Err() == nil {
			r.notAhead(err, rest)
		}
		return page{}, false
	}
	ended := r.now()
	r.fair.nextAt = readsAgain(ended, ended.Sub(began), ended.Sub(since), first, full)
	events = r.fair.take(events, upto, full)
	if len(events) == 0 {
		return page{}, false
	}
	return page{
		events: events,
		window: cursor{done: done, upto: upto},
		after:  r.handed,
		moves:  true,
		still:  true,
		noisy:  noisy,
	}, true
}

// readQuiet reads the next page of the log without the noisy tenants, and without what the first reader had handed out when the second
// began.
func (r *logReader) readQuiet(ctx context.Context) (events []logEvent, upto string, full bool, err error) {
	o := r.fair
	var end, handed *string
	if o.at.upto != "" {
		end = &o.at.upto
	}
	pos := int64(0)
	if o.from.upto != "" && o.at.done == o.from.done { // its first window
		handed, pos = &o.from.upto, o.from.pos
	}
	rows, err := r.pool.Query(ctx, r.sql.In(readQuietPage), r.lane, o.at.done, end, o.at.pos, r.limit, r.token, r.bytes, o.separator, o.noisy, handed, pos)
	if err != nil {
		return nil, "", false, fmt.Errorf("read ahead: %w", err)
	}
	events, upto, bytes, err := r.collect(rows, r.limit)
	return events, upto, len(events) == r.limit || bytes >= r.bytes, err
}
