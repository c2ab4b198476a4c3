package relay

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// database is what a relay uses of a pgxpool.Pool: single statements, and transactions.
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

	// wait returns nil after d, errStopping when stop is closed before that, and the cause when ctx is done before.
	wait func(ctx context.Context, stop <-chan struct{}, d time.Duration) error

	start func(work context.Context, l *lane) // runs a claimed lane until it ends

	// limit bounds the time of a statement. It goes by the machine's clock, whatever now says.
	limit func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

func envOf(r *Relay) env {
	return env{now: time.Now, chance: rand.Float64, wait: waitFor, start: r.start, limit: context.WithTimeout}
}

func waitFor(ctx context.Context, stop <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-stop:
		return errStopping
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
