package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// This file makes dead letters of rows that cannot be published or parked. Postgres copies them: they do not come to the relay.

// errMalformed is what the log and OnDead say of a row that is given up without a try.
type errMalformed string

func (e errMalformed) Error() string { return string(e) }

// letterHolds says whether the letter of a malformed event will hold its key: not one that no index can hold.
func (l *lane) letterHolds(p *pending) bool {
	q := p.item.queue
	return l.r.c.HoldKey && q.ordered() && len(q.topic)+len(q.key) <= maxAddress
}

// deadBatch is a window's malformed events that leave together, and their letters.
type deadBatch struct {
	window       cursor
	events       []*pending
	seqs         []int64
	reasons      []string
	fingerprints []string
	holds        []bool
	letters      map[int64]deadLetter // by seq
}

// deadLetter is a letter and the row that it was.
type deadLetter struct {
	id           int64
	segment, xid string
}

// deadBatches are the malformed events among those that leave, in their order.
func (l *lane) deadBatches(leave []*pending) (all []deadBatch) {
	for _, p := range leave {
		if p.disposition != malformed {
			continue
		}
		if n := len(all); n == 0 || all[n-1].window != p.page.window {
			all = append(all, deadBatch{window: p.page.window})
		}
		b, err := &all[len(all)-1], errMalformed(p.event.malformed)
		b.events, b.seqs, b.reasons = append(b.events, p), append(b.seqs, p.event.seq), append(b.reasons, reason(err))
		b.fingerprints, b.holds = append(b.fingerprints, fingerprint(p.event.Type, err)), append(b.holds, l.letterHolds(p))
	}
	return all
}

// queue adds the statement that writes the letters.
func (b *deadBatch) queue(l *lane, batch *pgx.Batch) {
	batch.Queue(l.r.sql.In(deadLetterEvents), l.number, b.window.done, b.window.upto, b.seqs, b.reasons, b.fingerprints, b.holds).Query(func(rows pgx.Rows) error {
		b.letters = map[int64]deadLetter{}
		var seq int64
		var to deadLetter
		_, err := pgx.ForEachRow(rows, []any{&seq, &to.id, &to.segment, &to.xid}, func() error { b.letters[seq] = to; return nil })
		return err
	})
}

// publish adds the statements that publish the letters, once they are written.
func (b *deadBatch) publish(l *lane, batch *pgx.Batch) {
	for _, p := range b.events {
		l.queueLetter(batch, b.letters[p.event.seq].id, p)
	}
}

// queueLetter publishes a dead letter, if that is configured.
func (l *lane) queueLetter(batch *pgx.Batch, letter int64, p *pending) {
	topic := wire.LetterTopic(l.r.c.DeadLetterTopic, p.event.Topic)
	if letter == 0 || topic == "" {
		return
	}
	batch.Queue(l.r.sql.In(publishLetter), letter, topic).QueryRow(func(row pgx.Row) error {
		var refused *string
		err := row.Scan(&refused)
		if refused != nil && l.r.mayLog("dead letter not published") {
			l.r.c.Logger.Warn("dead letter not published", "lane", l.number, "topic", p.event.Topic, "event_id", p.event.ID, "letter", letter, "error", *refused)
		}
		return err
	})
}

// tell says what was given up, after COMMIT.
func (b *deadBatch) tell(l *lane) {
	for i, p := range b.events {
		if b.holds[i] {
			l.queues.held[p.item.queue] = true
		}
		to, err := b.letters[p.event.seq], errMalformed(p.event.malformed)
		if l.r.mayLog("event given up") {
			l.r.c.Logger.Error("event given up", "lane", l.number, "topic", p.event.Topic, "event_id", p.event.ID, "type", p.event.Type, "attempts", 0,
				"letter", to.id, "segment", to.segment, "xid", to.xid, "seq", p.event.seq, "error", err)
		}
		if observe := l.r.c.Observer.OnDead; observe != nil {
			observe(DeadLettered{Lane: l.number, Event: p.event.Event, Letter: to.id, Err: err})
		}
	}
}

// isolate decides what to do after events could not be parked: how many to park next. If one of them is to blame, it is found
// by halves, and made a dead letter. Where its transaction also makes the head of its queue due, the head is tried apart first, and given
// up if it is to blame. An error of anything else is returned.
func (l *lane) isolate(ctx context.Context, leave []*pending, err error) (most int, _ error) {
	if len(l.dormant) > 0 && l.divides(err) { // they are parked already, and go with any transaction: it may be for one of them
		return max(len(leave), 1), l.holdDormant(ctx)
	}
	if len(leave) == 1 && l.divides(err) {
		p := leave[0]
		if head := l.rowsOf(leave).resume; len(head.topics) > 0 { // it may be for that
			gaveUp, e := l.resumeOrGiveUp(ctx, head, func() {})
			if again := gaveUp || !p.headTried; e != nil || again {
				p.headTried = true
				return 1, e
			}
		}
	}
	if blameOf(err) != aRow {
		if len(leave) == 1 && blameOf(err) != elsewhere {
			err = leave[0].named(err)
		}
		return 0, err
	}
	switch n := len(leave); {
	case n == 0:
		return 0, err
	case n > 1:
		return n / 2, nil
	}
	p := leave[0]
	if p.disposition == malformed || p.disposition == published {
		return 0, p.named(err)
	}
	p.event.malformed = toValidText(private.Text(err))
	p.disposition = malformed
	return 1, nil
}

// named says for which row of the log an error is.
func (p *pending) named(err error) error {
	return fmt.Errorf("the row with seq %d (topic %q, id %q): %w", p.event.seq, p.event.Topic, p.event.ID, err)
}

// giveUp makes a malformed row of parked events a dead letter.
func (l *lane) giveUp(ctx context.Context, p *pending) error {
	err := errMalformed(p.event.malformed)
	if e := l.writeOutcomes(ctx, []*pending{p}, []answer{{fault: publish.FaultRecord, err: err}}, []outcome{dead}); e != nil {
		return fmt.Errorf("give up the parked row with place %d of topic %q and key %q (id %q): %w", p.row.place, p.event.Topic, p.event.Key, p.event.ID, e)
	}
	return nil
}
