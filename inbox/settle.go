package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/lane"
)

// This file writes what became of a stored event: its row goes, or waits for the next attempt.

// settle removes the event's row in the transaction of its handler, and claims or resumes the next event of its key. A worker that has
// lost its lease finds no row, and writes nothing.
func (bl *backlog) settle(ctx context.Context, tx pgx.Tx, s *claimed, goOn bool) (next *claimed, err error) {
	return bl.remove(ctx, tx, s, bl.sql.take, "handled", goOn, func(b *pgx.Batch) {
		if s.letter != nil {
			b.Queue(bl.sql.letterReplayed, *s.letter)
		}
	})
}

// giveUp removes the event's row and writes a dead letter: a new one, or the one that the event is a replay of. The id is right even
// if the lease turns out to be lost, perhaps by a COMMIT of this worker that got no answer but was carried out.
func (bl *backlog) giveUp(ctx context.Context, tx pgx.Tx, s *claimed, l letter) (id int64, err error) {
	var reopen func(b *pgx.Batch)
	if s.letter != nil {
		id = *s.letter
		l = bl.ledger.letters.withheld(l)
		reopen = func(b *pgx.Batch) {
			b.Queue(bl.sql.letterReopen, *s.letter, int32(l.attempts), l.reason, bl.fingerprint(s.e, l), nonNil(l.errors))
			bl.ledger.letters.queue(b, s.e, *s.letter)
		}
	} else {
		// The letter comes first. Whether the next event is resumed depends on it.
		l.reopen, l.place = true, &s.place
		if id, err = bl.ledger.letters.insert(ctx, tx, s.e, s.hash, s.partition, s.offset, l); err != nil {
			return 0, err
		}
	}
	if _, err := bl.remove(ctx, tx, s, bl.sql.drop, "dead", false, reopen); err != nil {
		return id, err
	}
	failpoint.Hit(failpoint.InboxDeadLetteringStored)
	return id, nil
}

// remove removes a head under the lock of its key's queue, so that it sees a follower that is being stored. goOn claims the next event
// of the key, if that may be handled now.
func (bl *backlog) remove(ctx context.Context, tx pgx.Tx, s *claimed, statement, result string, goOn bool, also func(*pgx.Batch)) (next *claimed, err error) {
	keyed := s.e.Key != ""
	b := &pgx.Batch{}
	if keyed {
		b.Queue(bl.sql.lock, int32(lane.KeyClass), bl.keyNumber(s.e.Topic, s.e.Key))
	}
	b.Queue(statement, bl.c.Consumer, s.e.Topic, s.e.Key, s.place, s.token)
	removing := b.Len()
	b.Queue(bl.sql.settle, bl.c.Consumer, s.e.Source, s.e.ID, s.e.Topic, s.partition, s.offset, s.hash, result, int32(s.attempts))
	if also != nil {
		also(b)
	}
	settling := b.Len() - removing
	var until time.Time
	if goOn && keyed {
		until = bl.claims.queueNext(b, s)
	}
	if keyed {
		b.Queue(bl.sql.resume, bl.c.Consumer, s.e.Topic, s.e.Key)
		b.Queue(bl.sql.deferFollowers, bl.c.Consumer, s.e.Topic, s.e.Key)
	}
	br := tx.SendBatch(ctx, b)
	defer func() { _ = br.Close() }()
	if keyed {
		if _, err := br.Exec(); err != nil {
			return nil, fmt.Errorf("lock the key's queue: %w", err)
		}
	}
	tag, err := br.Exec()
	if err != nil {
		return nil, fmt.Errorf("remove stored event: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return nil, errLeaseLost
	}
	if goOn && keyed {
		for range settling {
			if _, err := br.Exec(); err != nil {
				return nil, fmt.Errorf("settle stored event: %w", err)
			}
		}
		if next, err = readNext(br, s, until); err != nil {
			return nil, err
		}
		resumed, err := br.Exec()
		if err != nil {
			return nil, fmt.Errorf("resume the key's queue: %w", err)
		}
		s.left = resumed.RowsAffected() > 0
	}
	if err := br.Close(); err != nil { // It reads the remaining answers, and calls the functions that wait for one.
		return nil, fmt.Errorf("settle stored event: %w", err)
	}
	return next, nil
}

// postpone returns the row to its queue: with the error of the attempt, or with the attempt given back if there is none. A replay may
// have entered before it meanwhile. No claim took that beside our lease, so it is woken, under the lock of the key's queue.
func (bl *backlog) postpone(ctx context.Context, tx pgx.Tx, s *claimed, delay time.Duration, failures []string) error {
	unspent, losses := int32(0), int32(0)
	if len(failures) == 0 {
		unspent, losses = 1, int32(s.losses)
	}
	b := &pgx.Batch{}
	if s.e.Key != "" {
		b.Queue(bl.sql.lock, int32(lane.KeyClass), bl.keyNumber(s.e.Topic, s.e.Key))
	}
	found := false
	b.Queue(bl.sql.retry, bl.c.Consumer, s.e.Topic, s.e.Key, s.place, s.token, delay.Microseconds(), unspent, nonNil(failures), losses).Exec(func(tag pgconn.CommandTag) error {
		found = tag.RowsAffected() == 1
		return nil
	})
	if s.e.Key != "" {
		b.Queue(bl.sql.resume, bl.c.Consumer, s.e.Topic, s.e.Key).Exec(func(tag pgconn.CommandTag) error {
			s.left = tag.RowsAffected() > 0
			return nil
		})
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("postpone stored event: %w", err)
	}
	if !found {
		return errLeaseLost
	}
	failpoint.Hit(failpoint.InboxPostponing)
	return nil
}
