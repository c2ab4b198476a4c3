package relay

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/rights"
)

// database is what a relay uses of a plain.Pool: single statements, and transactions.
type database interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// env is what a relay needs besides its database and its publisher: time, chance, and goroutines for its lanes. The
// simulation (sim_test.go) replaces them, and so runs all code of the relay in an order that a seed decides.
type env struct {
	now    func() time.Time // its differences must not follow steps of the wall clock
	chance func() float64   // in [0, 1)

	start func(work context.Context, l *lane) // runs a claimed lane until it ends
	call  func(l *lane, publish func())       // runs a call of the publisher for a lane

	// after calls do when so much time has passed.
	after func(d time.Duration, do func())

	// await returns nil when a call has returned, and the cause when ctx is done before.
	await func(ctx context.Context, l *lane) error

	// limit bounds the time of a statement. It goes by the machine's clock, whatever now says.
	limit func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)

	// lacking returns the rights that our role lacks.
	lacking func(ctx context.Context) ([]string, error)
}

func envOf(r *Relay) env {
	e := env{
		now:    time.Now,
		chance: rand.Float64,
		start:  r.start,
		call:   func(_ *lane, publish func()) { r.working.Go(publish) },
		after:  func(d time.Duration, do func()) { time.AfterFunc(d, do) },
		await:  awaitAnswer,
		limit:  context.WithTimeout,
	}
	if pool, ok := r.pool.(plain.Pool); ok {
		e.lacking = (&rights.Checks{
			Pool:   pool.Pool,
			Schema: r.c.Schema,
			Rights: rights.Of["relay"],
			Logger: r.c.Logger,
		}).Lacking
	}
	return e
}

func awaitAnswer(ctx context.Context, l *lane) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.answered.some:
		return nil
	}
}
