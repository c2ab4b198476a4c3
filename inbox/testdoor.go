package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/testdoor"
)

func init() {
	testdoor.Handle = func(ctx context.Context, in any, tx pgx.Tx, e holdfast.Event) (string, error, error) {
		out, failure, err := in.(*Inbox).tryTx(ctx, tx, e)
		return string(out), failure, err
	}
}

// tryTx is ReceiveTx for package holdfasttest: what the handler returned is handed out instead of being written down.
func (in *Inbox) tryTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (out Outcome, failure, err error) {
	in.start()
	if err := checkEvent(e); err != nil {
		return "", nil, err
	}
	d := in.newDelivery(e)
	d.callers = true
	if d.h == nil {
		return "", nil, fmt.Errorf("the type %q has no handler: those of consumer %s are %q", e.Type, in.c.Consumer, in.types)
	}
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("begin savepoint: %w", err)
	}
	out, err = in.take(ctx, savepoint, d)
	if err == nil {
		return out, nil, savepoint.Commit(ctx)
	}
	var h *handlerError
	if !errors.As(err, &h) {
		rollback(ctx, savepoint)
		return "", nil, err
	}
	if h.hung != nil { // It may still write: the transaction is no good any more.
		_ = tx.Conn().PgConn().Conn().Close()
		go func() { <-h.hung; in.hung.Add(-1) }()
		return Retrying, h.err, nil
	}
	f := judge(err, circumstances{inHandler: true, timedOut: h.timedOut, stopped: h.stopped, connLost: tx.Conn().IsClosed()})
	rollback(ctx, savepoint)
	out = Retrying
	if f == faultEvent && decide(in.c.Retry, history{attempts: 1}, f, err, in.random()).do == actDead {
		out = Dead
	}
	return out, h.err, nil
}
