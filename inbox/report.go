package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
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
		env.c.Logger.Warn("event id came again with another payload", env.attrs(d.e)...)
		if env.c.Observer.OnConflict != nil {
			env.c.Observer.OnConflict(d.e)
		}
	case Stale:
		env.c.Logger.Warn("event below the position was never handled", env.attrs(d.e)...)
	}
	if env.c.Observer.OnReceive != nil {
		env.c.Observer.OnReceive(Received{Event: d.e, Outcome: out, Took: took})
	}
}

// reportStored reports the durable outcome of a stored event. goesOn: the same worker has claimed the next event of its key.
func (env *env) reportStored(e holdfast.Event, out Outcome, took time.Duration, goesOn bool) {
	if out != Retrying && !goesOn {
		env.wake() // The next of its key may be due.
	}
	if env.c.Observer.OnReceive != nil {
		env.c.Observer.OnReceive(Received{Event: e, Outcome: out, Took: took})
	}
}

func (env *env) retried(e holdfast.Event, attempt int, delay time.Duration, stored bool, err error) {
	env.c.Logger.Info("handler failed, will retry", append(env.attrs(e), "attempt", attempt, "delay", delay, "stored", stored, "class", classOf(err))...)
	if env.c.Observer.OnRetry != nil {
		env.c.Observer.OnRetry(Retried{Event: e, Attempt: attempt, Delay: delay, Stored: stored, Err: err})
	}
}

func (env *env) notifyDead(d DeadLettered) {
	env.c.Logger.Error("event given up", append(env.attrs(d.Event), "letter", d.Letter, "attempts", d.Attempts, "class", classOf(d.Err))...)
	if env.c.Observer.OnDead != nil {
		env.c.Observer.OnDead(d)
	}
}

// notifyFull reports an event that found no room: its partition waits.
func (env *env) notifyFull(d *delivery, err error) {
	env.c.Logger.Error("partition is held: too many events are stored", append(env.attrs(d.e), "partition", d.from.fence.Partition, "error", err)...)
	if env.c.Observer.OnFull != nil {
		env.c.Observer.OnFull(d.e, err)
	}
}

// attrs are the attributes of an event in a log line: never its payload, its headers or its key.
func (env *env) attrs(e holdfast.Event) []any {
	return []any{"consumer", env.c.Consumer, "topic", e.Topic, "type", e.Type, "source", e.Source, "id", e.ID}
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
	env.suspect(err)
	if suppressed, say := env.limiter.allow(kindOf(err), sayEvery, time.Now()); say {
		if suppressed > 0 {
			attrs = append(attrs, "suppressed", suppressed)
		}
		env.c.Logger.Warn("waiting for the database", append(attrs, "error", boundedError(err))...)
	}
	if env.c.Observer.OnError != nil {
		env.c.Observer.OnError(err)
	}
}

func (env *env) kafkaTransient(doing string, err error) {
	env.c.Logger.Warn("waiting for Kafka", "consumer", env.c.Consumer, "doing", doing, "error", boundedError(err))
	if env.c.Observer.OnError != nil {
		env.c.Observer.OnError(fmt.Errorf("%s: %w", doing, err))
	}
}

// kindOf is the SQLSTATE of a server's error, and "" for all others: those of connections.
func kindOf(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}
