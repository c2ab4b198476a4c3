package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/settled"
	"github.com/holdfast-go/holdfast/retry"
)

// This file reports to the log and to the Observer.

// report reports a durable outcome.
func (env *env) report(d *delivery, out Outcome, took time.Duration) {
	if d.after != nil {
		d.after()
	}
	switch out {
	case Stored, Retrying:
		env.wake()
	case Conflict:
		env.c.Logger.WarnContext(d.context(), "event id came again with another payload", append(env.attrs(d.e), "from_state", stateKnown, "to_state", stateKnown, "error_code", string(retry.Conflict))...)
		if env.c.Observer.OnConflict != nil {
			env.c.Observer.OnConflict(d.e)
		}
	case Stale:
		env.c.Logger.WarnContext(d.context(), "event below the position was never handled", append(env.attrs(d.e), "from_state", stateNone, "to_state", stateDead)...)
	}
	env.received(d.context(), d.e, stateNone, out, d.attempt, took)
}

// reportStored reports the durable outcome of a stored event. goesOn: the same worker has claimed the next event of its key.
func (env *env) reportStored(ctx context.Context, e holdfast.Event, attempts int, out Outcome, took time.Duration, goesOn bool) {
	if out != Retrying && !goesOn {
		env.wake() // The next of its key may be due.
	}
	env.received(ctx, e, stateStored, out, attempts, took)
}

// received reports a durable outcome. from is the state in which the event was found.
func (env *env) received(ctx context.Context, e holdfast.Event, from string, out Outcome, attempt int, took time.Duration) {
	if log := env.c.Logger; log.Enabled(ctx, slog.LevelDebug) {
		from, to := out.leaves(from)
		log.DebugContext(ctx, "event received", append(env.attrs(e), "outcome", string(out), "attempt", attempt, "from_state", from, "to_state", to, "took", took)...)
	}
	settled.Tell(env.c.Consumer, e.Source, e.ID)
	if env.c.Observer.OnReceive != nil {
		env.c.Observer.OnReceive(Received{
			Context: ctx,
			Event:   e,
			Outcome: out,
			Attempt: attempt,
			Took:    took,
		})
	}
}

func (env *env) retried(ctx context.Context, e holdfast.Event, from string, attempt int, delay time.Duration, stored bool, err error) {
	ctx, to := orCaller(ctx, context.Background()), from
	if stored {
		to = stateStored
	}
	if log := env.c.Logger; log.Enabled(ctx, slog.LevelInfo) {
		attrs := append(env.attrs(e), "attempt", attempt, "delay", delay, "stored", stored,
			"from_state", from, "to_state", to, "class", failure.ClassOf(err), "error_code", string(retry.Classify(err)))
		log.InfoContext(ctx, "handler failed, will retry", append(attrs, env.reason(err, e)...)...)
	}
	if env.c.Observer.OnRetry != nil {
		env.c.Observer.OnRetry(Retried{
			Context: ctx,
			Event:   e,
			Attempt: attempt,
			Delay:   delay,
			Stored:  stored,
			Err:     err,
		})
	}
}

func (env *env) notifyDead(d DeadLettered, from string) {
	reason, _, _ := strings.Cut(d.Reason, ": ") // what follows may quote the event
	attrs := append(env.attrs(d.Event), "letter", d.Letter, "reason", reason, "attempts", d.Attempts, "attempt", d.Attempts,
		"from_state", from, "to_state", stateDead, "class", failure.ClassOf(d.Err), "error_code", string(retry.Classify(d.Err)))
	env.c.Logger.ErrorContext(d.Context, "event given up", append(attrs, env.reason(d.Err, d.Event)...)...)
	if env.c.Observer.OnDead != nil {
		env.c.Observer.OnDead(d)
	}
}

// orCaller is the context of a handler's run if it ran, else the caller's.
func orCaller(handlers, callers context.Context) context.Context {
	if handlers == nil {
		return callers
	}
	return handlers
}

// notifyFull reports an event that found no room: its partition waits. One line a minute says so of a partition.
func (env *env) notifyFull(d *delivery, err error) {
	env.vitals.full(loggedError(err))
	if suppressed, say := env.limiter.Allow(fmt.Sprintf("full: %s/%d", d.e.Topic, d.from.fence.Partition), time.Minute, time.Now()); say {
		env.c.Logger.Error("partition is held: too many events wait", append(env.attrs(d.e), leftOut(suppressed, "partition", d.from.fence.Partition,
			"from_state", stateNone, "to_state", stateNone, "error_code", string(retry.Classify(err)), "error", loggedError(err))...)...)
	}
	if env.c.Observer.OnFull != nil {
		env.c.Observer.OnFull(d.e, err)
	}
}

// transient reports an error that is waited out.
func (env *env) transient(err error) { env.waitsFor(err, "consumer", env.c.Consumer) }

// transientOf is transient for an error that concerns one event.
func (env *env) transientOf(d *delivery, err error) {
	attrs := env.attrs(d.e)
	if d.from != nil {
		attrs = append(attrs, "partition", d.from.fence.Partition)
	}
	env.waitsFor(err, attrs...)
}

func (env *env) waitsFor(err error, attrs ...any) {
	since := env.vitals.lost(err)
	env.suspect(err)
	env.doubt(err)
	if suppressed, say := env.limiter.AllowSince(kindOf(err), sayEvery, since, time.Now()); say {
		env.c.Logger.Warn("waiting for the database", append(attrs, leftOut(suppressed, "error", loggedError(err))...)...)
	}
	if env.c.Observer.OnError != nil {
		env.c.Observer.OnError(err)
	}
}

func (env *env) brokerTransient(doing string, err error) {
	env.vitals.unheard(fmt.Errorf("%s: %w", doing, err))
	if suppressed, say := env.limiter.Allow("broker: "+doing, sayEvery, time.Now()); say {
		env.c.Logger.Warn("waiting for the broker", leftOut(suppressed, "consumer", env.c.Consumer, "doing", doing, "error", loggedError(err))...)
	}
	if env.c.Observer.OnError != nil {
		env.c.Observer.OnError(fmt.Errorf("%s: %w", doing, err))
	}
}

// leftOut adds to the attributes of a line how many like it were not logged.
func leftOut(suppressed int, attrs ...any) []any {
	if suppressed > 0 {
		return append(attrs, "suppressed", suppressed)
	}
	return attrs
}

// kindOf is the SQLSTATE of a server's error, and "" for all others: those of connections.
func kindOf(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}
