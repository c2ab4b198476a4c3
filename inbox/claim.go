package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/inbox/internal/turns"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/plain"
)

// This file claims stored events: heads that are due, and the next event of a key together with the end of the one before.

// claims leases stored events to this node.
type claims struct {
	*env
	registry     *registry
	memory       *storedMemory
	dependencies *dependencies
	suspects     *turns.Turns // one suspect of the node is in a call at a time, also of those that come from Kafka (serial.go)
	unanswered   unanswered

	mu    sync.Mutex // Run and Consume may claim at once
	mark  claimMark  // of the types without a limit; limited.go has one for each of the others
	looks int        // counts the calls of passed
}

// claim takes up to n heads that are due, as many as there is memory for. It counts them there. Types with a limit of their own are
// claimed one by one (limited.go), and those of handlers that need something that is away are not (trial.go).
func (cl *claims) claim(ctx context.Context, n int) ([]*claimed, error) {
	types := cl.dependencies.begin(cl.registry.unlimited)
	cl.mu.Lock()
	mark, looks := cl.mark, cl.looks
	cl.mu.Unlock()
	got, whole, begun, err := cl.claimOf(ctx, n, types, mark)
	if err == nil {
		cl.move(got, whole, begun, looks)
		if len(types) > 0 { // else nothing was asked
			cl.vitals.reached()
		}
	}
	return got, err
}

// claimOf is claim for some types, from a mark on. whole says that it looked at everything, and begun when: what it waited for a
// connection is no part of that.
func (cl *claims) claimOf(ctx context.Context, n int, types []string, mark claimMark) (got []*claimed, whole bool, begun time.Time, err error) {
	bytes, only := cl.memory.room()
	if bytes == 0 || len(types) == 0 {
		return nil, false, begun, nil
	}
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, connectionTimeout(cl.c))
	defer cancel()
	conn, err := cl.pool.Acquire(ctx)
	if err != nil {
		return nil, false, begun, fmt.Errorf("claim stored events: %w", err)
	}
	defer conn.Release()
	alone := cl.suspects.Try()
	defer func() {
		if alone {
			cl.suspects.Leave()
		}
	}()
	failpoint.Hit(failpoint.InboxClaiming)
	token, begun := uuid.NewString(), time.Now()
	lost := cl.unanswered.tokens(begun)
	whole = len(lost) > 0 || mark.whole(begun)
	var from *time.Time
	if !whole {
		from = &mark.at
	}
	b := &pgx.Batch{}
	b.Queue(cl.sql.interpret)
	b.Queue(cl.sql.claim, cl.c.Consumer, types, int32(n), token, cl.lease().Microseconds(), lost, bytes, only, from, mark.place, alone)
	got, err = readClaimed(conn.SendBatch(ctx, b), token, begun.Add(cl.lease()))
	if err != nil {
		cl.unanswered.add(token, begun.Add(2*cl.lease()), err)
		return nil, whole, begun, fmt.Errorf("claim stored events: %w", err)
	}
	if cl.c.Observer.OnPolled != nil {
		cl.c.Observer.OnPolled(len(got), time.Since(asked))
	}
	for _, s := range got {
		cl.memory.reserve(s)
		if alone && s.suspect() { // It has the turn now.
			s.alone, alone = true, false
		}
	}
	if len(got) > 0 {
		failpoint.Hit(failpoint.InboxClaimed)
	}
	return got, whole, begun, nil
}

// readClaimed reads the answer to a claim. Its transaction ends with the batch, so it is there when that is closed.
func readClaimed(br pgx.BatchResults, token string, until time.Time) (got []*claimed, err error) {
	defer func() {
		if closing := br.Close(); err == nil {
			err = closing
		}
	}()
	if _, err := br.Exec(); err != nil {
		return nil, err
	}
	rows, _ := br.Query() // CollectRows returns its error.
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*claimed, error) { return scanClaimed(row, token, until) })
}

// leave ends the turn of a suspect. Claims have passed the others: the next one looks at everything.
func (cl *claims) leave(s *claimed) {
	if !s.alone {
		return
	}
	s.alone = false
	cl.suspects.Leave()
	cl.passed()
}

// passed says that events may be claimed which claims have passed: the next one looks at everything, at once.
func (cl *claims) passed() {
	cl.mu.Lock()
	cl.mark = claimMark{}
	cl.looks++
	cl.mu.Unlock()
	cl.wake()
}

// ended ends the work on a claimed event, whether it was begun or handed back.
func (cl *claims) ended(s *claimed) {
	cl.leave(s)
	if again := cl.memory.give(s); again || s.left {
		cl.wake()
	}
}

// move moves the mark after a claim that began at begun; whole says that it looked at everything. A claim that was under way in passed says
// nothing of what comes after.
func (cl *claims) move(got []*claimed, whole bool, begun time.Time, looks int) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if looks != cl.looks {
		return
	}
	cl.mark = cl.mark.after(got, whole, begun, time.Now())
}

// scanClaimed reads claimedColumns, which the statements claim and next return.
func scanClaimed(row pgx.CollectableRow, token string, until time.Time) (*claimed, error) {
	s := &claimed{token: token, until: until}
	var headers *string
	var age, overdue int64
	var attempts, losses int32
	err := row.Scan(&s.e.Topic, &s.e.Key, &s.place, &s.e.Source, &s.e.ID, &s.e.Type, (*plain.Micros)(&s.e.Time), &headers, (*plain.Bytes)(&s.e.Payload), (*plain.Bytes)(&s.hash),
		&s.partition, &s.offset, &attempts, &losses, &s.errors, &s.letter, &age, (*plain.Micros)(&s.nextAt), &overdue)
	if err != nil {
		return nil, err
	}
	s.attempts, s.losses, s.age, s.overdue = int(attempts), int(losses), time.Duration(age)*time.Microsecond, time.Duration(overdue)*time.Microsecond
	s.e.Headers, err = headersOf(headers)
	return s, err
}

// queueNext claims the next event of a key in the transaction that removes the one before. Both have the same lease token.
func (cl *claims) queueNext(b *pgx.Batch, s *claimed) (until time.Time) {
	b.Queue(cl.sql.next, cl.c.Consumer, s.e.Topic, s.e.Key, cl.dependencies.begin(cl.registry.after(s.e.Type)), s.token, cl.lease().Microseconds(), s.next())
	return time.Now().Add(cl.lease())
}

// readNext reads the answer to queueNext. It is nil when there is no next event, or when it is not due, held, much larger, or of a
// type that this node does not handle, or that waits for other turns (WithConcurrency).
func readNext(br pgx.BatchResults, s *claimed, until time.Time) (*claimed, error) {
	rows, err := br.Query()
	if err != nil {
		return nil, fmt.Errorf("claim the next of the key: %w", err)
	}
	next, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*claimed, error) { return scanClaimed(row, s.token, until) })
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim the next of the key: %w", err)
	}
	next.reserved = s.reserved
	return next, nil
}

// unanswered holds the lease tokens of claims that got no answer. Postgres may still have carried them out, then or later.
// Nobody works what they leased, and its keys would wait until the lease ends. So the next claim takes it over. Safe for use
// by many goroutines.
type unanswered struct {
	mu     sync.Mutex
	claims []unansweredClaim // the oldest first
}

type unansweredClaim struct {
	token string
	until time.Time // when its lease has ended, however late Postgres carried it out
}

// maxUnanswered is how many are kept. Any others wait for their lease to end.
const maxUnanswered = 100

// add remembers a claim that ended with err, unless err shows that the claim was never sent.
func (u *unanswered) add(token string, until time.Time, err error) {
	var unsent *pgconn.ConnectError
	if errors.As(err, &unsent) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.claims) < maxUnanswered {
		u.claims = append(u.claims, unansweredClaim{token, until})
	}
}

// tokens are those of claims whose lease may still be in force.
func (u *unanswered) tokens(now time.Time) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.claims = slices.DeleteFunc(u.claims, func(c unansweredClaim) bool { return now.After(c.until) })
	tokens := make([]string, len(u.claims))
	for i, c := range u.claims {
		tokens[i] = c.token
	}
	return tokens
}
