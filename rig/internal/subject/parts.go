package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
)

// produce writes the events of every key that are not there yet. The number of an event is drawn under its key's row
// lock, and written beside the event: that is the truth of what was committed.
func produce(ctx context.Context, pool *pgxpool.Pool, o Order) error {
	begin := fmt.Sprintf("begin; set local idle_in_transaction_session_timeout = %d", o.Idle.Milliseconds())
	for more := true; more && ctx.Err() == nil; {
		more = false
		for k := range o.Keys {
			key := fmt.Sprint(o.Prefix, k)
			err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
				var number int
				err := tx.QueryRow(ctx, `insert into aggregate values ($1, 1) on conflict (key) do update set n = aggregate.n + 1 returning n`, key).Scan(&number)
				if err != nil {
					return err
				}
				if number > o.Each {
					return errEnough
				}
				id := fmt.Sprintf("%s/%d/%d", key, number, time.Now().UnixNano()) // a try that is rolled back has an id of its own
				if _, err := tx.Exec(ctx, "insert into written values ($1, $2, $3, $4)", id, o.Topics[0], key, number); err != nil {
					return err
				}
				return outbox.Write(ctx, tx, holdfast.Event{
					ID:     id,
					Source: "shop",
					Type:   "changed",
					Topic:  o.Topics[0],
					Key:    key,
				})
			})
			if err == nil {
				failpoint.Hit(failpoint.OutboxCommitted)
				more = true
			} else if !errors.Is(err, errEnough) {
				return err
			}
		}
	}
	return nil
}

var errEnough = errors.New("the key has its events")

// publish is a relay. It reports what the test needs to know for the bound on duplicates.
func publish(ctx context.Context, pool *pgxpool.Pool, o Order, name string, logger *slog.Logger) error {
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: o.Brokers}, kafkago.PublisherConfig{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	r, err := relay.New(pool, publisher, relay.Config{
		Name:         name,
		Lease:        3 * time.Second,
		BatchSize:    o.BatchSize,
		HoldKey:      o.HoldKey,
		SegmentBytes: 1 << 20,
		Logger:       logger,
		Retry: retry.Policy{
			Attempts: o.Attempts,
			Base:     50 * time.Millisecond,
			Cap:      100 * time.Millisecond,
		},
		Observer: relay.Observer{
			OnPublished: func(lane int, events []holdfast.Event) { report("published", len(events), lane) },
			OnSaved:     func(lanes int, _ time.Duration) { report("saved", lanes) },
			OnLost:      func(lane int, _ bool, _ error) { report("lost", lane) },
		},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func report(what string, n ...int) {
	fmt.Fprintf(os.Stderr, "\nreport %s %s\n", what, strings.Trim(fmt.Sprint(n), "[]"))
}

// retention is longer than any test with one env lasts. What is read again has its row then, also if no consumer lived long enough
// to commit offsets. Retention looks four times a minute whether it has its turn.
const retention = 15 * time.Minute

// consume is a consumer whose handler leaves an effect, calls a provider if the event's header "steps" says so, and fails as its header "fail" says.
func consume(ctx context.Context, pool *pgxpool.Pool, o Order, logger *slog.Logger) error {
	in, err := inbox.New(pool, inbox.Config{
		Consumer:         "billing",
		Logger:           logger,
		BatchSize:        o.Batch,
		Workers:          4,
		ImmediateRetries: -1,
		Retention:        retention,
		Timeout:          3 * time.Second,
		StopTimeout:      200 * time.Millisecond,
		Grace:            200 * time.Millisecond,
		Retry: retry.Policy{
			Attempts: o.Tries,
			Base:     20 * time.Millisecond,
			Cap:      50 * time.Millisecond,
		},
	})
	if err != nil {
		return err
	}
	if o.Batch > 1 {
		in.HandleBatch("changed", func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
			for _, e := range events {
				if err := effect(ctx, pool, tx, e); err != nil {
					return err
				}
			}
			return nil
		})
	} else {
		in.Handle("changed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			if e.Headers["steps"] == "" {
				return effect(ctx, pool, tx, e)
			}
			for _, name := range []string{"reserve", "charge"} {
				if err := step(ctx, pool, tx, e, name); err != nil {
					return err
				}
			}
			return effect(ctx, pool, tx, e)
		})
	}
	group, err := kafkago.NewGroup(kafkago.Connection{Brokers: o.Brokers}, kafkago.GroupConfig{
		GroupID:           "billing of " + o.Topics[0],
		Topics:            o.Topics,
		SessionTimeout:    time.Second,
		HeartbeatInterval: 200 * time.Millisecond,
		WatchInterval:     time.Second,
	})
	if err != nil {
		return err
	}
	return in.Consume(ctx, group)
}

func effect(ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx, e holdfast.Event) error {
	b := &pgx.Batch{}
	if e.Key != "" { // The row lock makes the numbers of a key's effects tell the order of their commits.
		b.Queue("insert into state (consumer, key, id) values ('billing', $1, $2) on conflict (consumer, key) do update set id = excluded.id", e.Key, e.ID)
	}
	b.Queue("insert into effect (consumer, id, key) values ('billing', $1, $2)", e.ID, e.Key)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	how := e.Headers["fail"]
	if how == "" {
		return nil
	}
	// Which attempt it is, and not how often the handler has run: a run in a group that is rolled back is no attempt.
	var attempt int
	var fixed bool
	if err := pool.QueryRow(ctx, "select coalesce((select attempts from holdfast.stored where event_id = $1), 1), exists (select from fixed)", e.ID).Scan(&attempt, &fixed); err != nil {
		return err
	}
	switch {
	case fixed:
		return nil
	case how == "twice" && attempt > 2:
		return nil
	case how == "at once":
		return retry.Permanent(errors.New("the handler will never take this"))
	}
	return errors.New("the handler fails")
}

// step is a call to the provider, which is the table called, and writes the number of the call that the handler goes by into the table went_by. Recorded says
// what nothing should have called again. The call is carried out whatever becomes of the handler meanwhile, as at another system.
func step(ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx, e holdfast.Event, name string) error {
	call, err := inbox.Step(ctx, name, func(ctx context.Context, key string) (call int64, err error) {
		err = pool.QueryRow(context.WithoutCancel(ctx), `insert into called (key, id, step, recorded)
			values ($1, $2, $3, exists (select from holdfast.inbox_step where event_id = $2 and name = $3)) returning n`, key, e.ID, name).Scan(&call)
		return call, err
	})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "insert into went_by (id, step, call) values ($1, $2, $3)", e.ID, name, call)
	return err
}

// replay replays all letters, under a name: so that it goes on where it was interrupted.
func replay(ctx context.Context, pool *pgxpool.Pool) error {
	d, err := dlq.New(pool, dlq.Config{})
	if err != nil {
		return err
	}
	_, err = d.Replay(ctx, dlq.Filter{}, dlq.ReplayOptions{
		By:     "subject",
		Reason: "the cause is fixed",
		Name:   "all",
	})
	return err
}
