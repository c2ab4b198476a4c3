package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
)

// This file says to the log and to the Observer what happens.

// report tells of a durable outcome.
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

// reportStored tells of a durable outcome of a stored event. goesOn: the same worker has claimed the next of its key.
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

// notifyFull tells of an event that there is no room for: its partition is held.
func (env *env) notifyFull(d *delivery, err error) {
	env.c.Logger.Error("partition is held: too many events are stored", append(env.attrs(d.e), "partition", d.from.fence.Partition, "error", err)...)
	if env.c.Observer.OnFull != nil {
		env.c.Observer.OnFull(d.e, err)
	}
}

// attrs are what a log line says of an event: never its payload, its headers or its key.
func (env *env) attrs(e holdfast.Event) []any {
	return []any{"consumer", env.c.Consumer, "topic", e.Topic, "type", e.Type, "source", e.Source, "id", e.ID}
}

// transient tells of an error that is waited out.
func (env *env) transient(err error) { env.waitsFor(err, "consumer", env.c.Consumer) }

// transientOf is transient with its event.
func (env *env) transientOf(d *delivery, err error) {
	attrs := env.attrs(d.e)
	if d.from != nil {
		attrs = append(attrs, "partition", d.from.fence.Partition)
	}
	env.waitsFor(err, attrs...)
}

func (env *env) waitsFor(err error, attrs ...any) {
	if suppressed, say := env.limiter.allow(kindOf(err), time.Now()); say {
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

// kindOf is a server's error by its SQLSTATE, and all others alike: those of connections.
func kindOf(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}
