package idempotency

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/idempotency/internal/kept"
	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/handlertx"
	"github.com/holdfast-go/holdfast/internal/plain"
)

// errPoolExhausted says that no connection became free in time.
var errPoolExhausted = errors.New("no connection of the pool became free")

// errNotBegun says that a request's transaction did not begin, whatever the server answered. Its handler did not run.
var errNotBegun = errors.New("the request was not begun")

// keyTx is a transaction that has a key: it holds the lock, and it read the key's row under the lock.
type keyTx struct {
	conn *pgxpool.Conn // nil before the transaction begins and after it ended
	tx   pgx.Tx
	row  *stored
	ran  bool // a function of a user's has run in the transaction
}

func (kt *keyTx) release() {
	kt.conn.Release()
	kt.conn = nil
}

// errBusy says that another request has the key.
var errBusy = errors.New("the key is in use")

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// lookup reads a key's row. It returns nil if there is none.
func (g *Guard) lookup(ctx context.Context, db querier, k store.Key) (*stored, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, g.c.AcquireTimeout, errPoolExhausted)
	defer cancel()
	rows, err := db.Query(ctx, g.sql.lookup, k.Scope, k.Operation, k.Key)
	if err != nil {
		return nil, fmt.Errorf("look up key: %w", caused(ctx, err))
	}
	return readRow(rows)
}

func caused(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errPoolExhausted) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

func readRow(rows pgx.Rows) (*stored, error) {
	s, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*stored, error) {
		s := &stored{}
		var status int16
		var headers string
		var owner pgtype.UUID
		if err := row.Scan((*plain.Bytes)(&s.Fingerprint), &s.Version, &s.State, &status, &headers, (*plain.Bytes)(&s.Answer.Body), (*plain.Bytes)(&s.Answer.BodyHash), &s.Answer.ResultRef, &owner,
			&s.Fence, &s.Attempt, &s.Live, (*plain.Micros)(&s.CreatedAt), (*plain.Micros)(&s.ExpiresAt), &s.Expired); err != nil {
			return nil, err
		}
		s.Owner, s.Answer.Status = owner.Bytes, int(status)
		var err error
		if s.Answer.Header, err = kept.HeadersOf(headers); err != nil {
			s.State = "unreadable" // foundOf refuses it
		}
		return s, nil
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up key: %w", err)
	}
	return s, nil
}

// claim begins a request's transaction, takes its key without waiting, and reads the key's row, all in one round trip.
// It returns errBusy if another request has the key. Any other error wraps errNotBegun.
func (rt *route) claim(kt *keyTx, req *request) error {
	g := rt.g
	waiting, cancel := context.WithTimeoutCause(req.Context(), g.c.AcquireTimeout, errPoolExhausted)
	conn, err := g.pool.Acquire(waiting)
	err = caused(waiting, err)
	cancel()
	if err != nil {
		return fmt.Errorf("%w: acquire connection: %w", errNotBegun, err)
	}
	kt.conn = conn
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: rt.o.Isolation})
	idle, lock := millis(rt.o.Timeout+idleMargin), millis(rt.o.Timeout)
	if req.info.Key == "" {
		b.Queue(g.sql.openKeyless, idle, lock)
	} else {
		b.Queue(g.sql.open, idle, lock, req.lock)
		b.Queue(g.sql.lookup, req.scope, req.operation, req.info.Key)
	}
	b.Queue(savepointSQL)
	sending, cancel := context.WithTimeout(req.Context(), databaseTimeout)
	defer cancel()
	br := conn.SendBatch(sending, b)
	kt.tx = br.Tx()
	mine, err := false, error(nil)
	if _, err = br.Exec(); err == nil {
		err = br.QueryRow().Scan(nil, nil, &mine)
	}
	if err == nil && req.info.Key != "" {
		var rows pgx.Rows
		if rows, err = br.Query(); err == nil {
			kt.row, err = readRow(rows)
		}
	}
	if closing := br.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("%w: begin: %w", errNotBegun, err)
	}
	if !mine {
		g.rollback(kt)
		return errBusy
	}
	return nil
}

const (
	// databaseTimeout bounds the statements of the guard itself: begin, store, commit, roll back.
	databaseTimeout = 5 * time.Second

	// idleMargin is added to the handler's timeout before Postgres treats the client as dead.
	idleMargin = 10 * time.Second
)

func millis(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// rollback ends a transaction that has not ended yet, and releases its connection.
func (g *Guard) rollback(kt *keyTx) {
	if kt.conn == nil {
		return
	}
	if kt.tx != nil {
		ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
		if kt.ran {
			handlertx.Undo(ctx, kt.tx)
		} else {
			_ = kt.tx.Rollback(ctx) // If this fails, the connection is closed and Postgres rolls back.
		}
		cancel()
	}
	kt.release()
}
