//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Injected bugs, one for everything that an oracle must find. They are in the parts, where a user's code or ours could have
// them, not in the library.
const (
	bugLose      = "lose"       // the publisher says that an event was acknowledged which it never sent
	bugDualWrite = "dual-write" // the producer publishes past the outbox, and rolls back
	bugOutside   = "outside"    // the handler writes past its transaction, and fails
	bugReverse   = "reverse"    // the publisher turns the order of a call around
	bugRepeat    = "repeat"     // the publisher sends everything twice
	bugTakeBack  = "take-back"  // somebody sets a lane's epoch back
	bugMeddle    = "meddle"     // somebody saves positions of partitions that another has
	bugIntrude   = "intrude"    // somebody takes in events of partitions that another has
	bugAhead     = "ahead"      // somebody sets a lane's cursor to the end of the log
	bugRemember  = "remember"   // a relay goes on from what it remembers when the database has gone back in time
	bugForget    = "forget"     // somebody undoes what relays save of their cursors
	bugStuck     = "stuck"      // the publisher never has an answer for one key
	bugBarrier   = "barrier"    // the publisher sends nothing while a call is unanswered
	bugBlame     = "blame"      // handlers return the errors of the provider as they are
	bugPastStep  = "past-step"  // handlers call the provider past inbox.Step
	bugHasty     = "hasty"      // a consumer gives up an event at its first failure
	bugHurry     = "hurry"      // the producer writes events for now which it was told to write for later
	bugFalseOK   = "false-ok"   // the producer calls a transaction committed that it has rolled back
	bugEarly     = "early"      // a consumer calls an event handled before it is
	bugLinger    = "linger"     // a part leaves a goroutine behind
	bugUndead    = "undead"     // a person calls an event discarded, and writes it again
	bugDisown    = "disown"     // a person takes lanes from relays whose leases have not run out
	bugUnlease   = "unlease"    // a person decides about events that relays have leased
	bugLeak      = "leak"       // a part leaves a prepared transaction behind
	bugMute      = "mute-"      // parts of the role that follows log nothing
)

// stuckKey is the key for which bugStuck never has an answer.
const stuckKey = "k3"

// notWaitedFor are the keys whose events a run does not wait for. The events that bugStuck keeps would never arrive. Others
// in progress at the end of the run would wait as well, and nobody could tell them apart.
func (o Options) notWaitedFor() []string {
	if o.bug == bugStuck {
		return []string{stuckKey}
	}
	return []string{}
}

// withBug runs f if the part has the bug.
func (p part) withBug(bug string, f func() error) error {
	if p.Bug != bug {
		return nil
	}
	return f()
}

// publishPast sends events of a transaction that is about to be rolled back, as code without an outbox does.
func (p *producer) publishPast(ids []string) error {
	client := &kafka.Client{Addr: kafka.TCP(p.Brokers...), Timeout: 5 * time.Second}
	var records []kafka.Record
	for _, id := range ids {
		records = append(records, kafka.Record{Key: kafka.NewBytes([]byte("k0")), Headers: wire.Headers[kafka.Header](nil, holdfast.Event{
			ID:     id,
			Type:   typeChanged,
			Source: "torture",
			Topic:  p.Topics[0],
			Time:   time.Now(),
		})})
	}
	res, err := client.Produce(context.Background(), &kafka.ProduceRequest{
		Topic:        p.Topics[0],
		RequiredAcks: kafka.RequireAll,
		Records:      kafka.NewRecordReader(records...),
	})
	if err != nil {
		return err
	}
	return res.Error
}

// buggyPublisher is pub, or pub with a bug.
func (p part) buggyPublisher(pub relay.Publisher, pool *pgxpool.Pool) (relay.Publisher, error) {
	var count atomic.Int64
	switch p.Bug {
	case bugLose:
		return publisherFunc(func(ctx context.Context, events []holdfast.Event) []error {
			if count.Add(int64(len(events))) < 50 || len(events) > 1 {
				return pub.Publish(ctx, events)
			}
			return []error{nil}
		}), nil
	case bugStuck:
		return publisherFunc(func(ctx context.Context, events []holdfast.Event) []error {
			errs := make([]error, len(events))
			var others []holdfast.Event
			var places []int
			for i, e := range events {
				if e.Key != stuckKey {
					others, places = append(others, e), append(places, i)
					continue
				}
				errs[i] = &publish.Error{
					Topic:     e.Topic,
					Partition: -1,
					Fault:     publish.FaultPartition,
					Err:       errors.New("injected"),
				}
			}
			if len(others) > 0 {
				for i, err := range pub.Publish(ctx, others) {
					errs[places[i]] = err
				}
			}
			return errs
		}), nil
	case bugBarrier:
		var one sync.Mutex
		return publisherFunc(func(ctx context.Context, events []holdfast.Event) []error {
			one.Lock()
			defer one.Unlock()
			return pub.Publish(ctx, events)
		}), nil
	case bugReverse:
		return publisherFunc(func(ctx context.Context, events []holdfast.Event) []error {
			turned := slices.Clone(events)
			slices.Reverse(turned)
			errs := pub.Publish(ctx, turned)
			slices.Reverse(errs)
			return errs
		}), nil
	case bugRepeat:
		return publisherFunc(func(ctx context.Context, events []holdfast.Event) []error {
			return errorsOf(pub.Publish(ctx, events), pub.Publish(ctx, events))
		}), nil
	case bugTakeBack:
		return meddling(pub, pool, "update holdfast.lane set epoch = epoch - 1 where epoch > 1"), nil
	case bugMeddle:
		return meddling(pub, pool, "update holdfast.consumer_position set updated_at = now()"), nil
	case bugIntrude:
		return meddling(pub, pool, `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result, attempts)
			select consumer, 'nobody', gen_random_uuid()::text, topic, partition, 0, '', now(), 'handled', 1 from holdfast.consumer_position`), nil
	case bugAhead:
		var unsent sync.Map // ids of events that are never sent: the next owner of the lanes begins after them
		return publisherFunc(func(ctx context.Context, events []holdfast.Event) []error {
			if count.Add(1) == 20 {
				for _, e := range events {
					unsent.Store(e.ID, true)
				}
				// What is lost stays in the log, so that it can still be found missing by a look that comes late.
				_, err := pool.Exec(ctx, `create or replace function holdfast.reclaim(segment integer, expected_token uuid, lock_wait_ms integer)
						returns text language sql as $$ select 'busy' $$;
					update holdfast.lane set epoch = epoch + 1, owner = null, lease_until = '-infinity',
						done = pg_current_snapshot(), upto = null, pos = 0`, pgx.QueryExecModeSimpleProtocol)
				if err != nil {
					return slices.Repeat([]error{err}, len(events))
				}
			}
			if slices.ContainsFunc(events, func(e holdfast.Event) bool { _, ok := unsent.Load(e.ID); return ok }) {
				return slices.Repeat([]error{&publish.Error{
					Topic:     events[0].Topic,
					Partition: -1,
					Fault:     publish.FaultBroker,
					Err:       errors.New("injected"),
				}}, len(events))
			}
			return pub.Publish(ctx, events)
		}), nil
	case bugRemember:
		return p.remembering(pub, pool), nil
	case bugForget:
		// A claim changes the epoch, and may open a window. What a relay saves under its own epoch is lost.
		_, err := pool.Exec(context.Background(), `select pg_advisory_xact_lock(1);
			create or replace function public.forget() returns trigger language plpgsql as
			$$ begin new.done := old.done; new.upto := old.upto; new.pos := old.pos; return new; end $$;
			create or replace trigger forget before update on holdfast.lane for each row when (new.epoch = old.epoch) execute function public.forget()`, pgx.QueryExecModeSimpleProtocol)
		return pub, err
	case bugLinger:
		go func() { select {} }()
		return pub, nil
	case bugLeak:
		_, err := pool.Exec(context.Background(), fmt.Sprintf("begin; insert into other values (2); prepare transaction 'leaked by %s'", p.name()))
		return pub, err
	}
	return pub, nil
}

// remembering is pub, as it is called by a relay that keeps its cursors when the database goes back: events of transactions
// whose ids it calls ended are invisible to it, and when the server has given these ids out again, it saves its cursors.
func (p part) remembering(pub relay.Publisher, pool *pgxpool.Pool) relay.Publisher {
	var mu sync.Mutex
	var highest int64
	invisible := map[string]bool{}
	return publisherFunc(func(ctx context.Context, events []holdfast.Event) []error {
		mu.Lock()
		defer mu.Unlock()
		refused := slices.Repeat([]error{&publish.Error{
			Topic:     events[0].Topic,
			Partition: -1,
			Fault:     publish.FaultBroker,
			Err:       errors.New("injected"),
		}}, len(events))
		var now int64
		if err := pool.QueryRow(ctx, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&now); err != nil {
			return refused
		}
		switch {
		case now < highest:
			for _, e := range events {
				invisible[e.ID] = true
			}
			return refused
		case len(invisible) > 0 && slices.ContainsFunc(events, func(e holdfast.Event) bool { return invisible[e.ID] }):
			_, _ = pool.Exec(ctx, `update holdfast.lane set epoch = epoch + 1, owner = null, lease_until = '-infinity',
				done = format('%s:%s:', $1::bigint, $1::bigint)::pg_snapshot, upto = null, pos = 0`, highest)
			return refused
		}
		highest = now
		return pub.Publish(ctx, events)
	})
}

// meddling is pub, which runs a statement after the twentieth of every fifty calls.
func meddling(pub relay.Publisher, pool *pgxpool.Pool, statement string) relay.Publisher {
	var count atomic.Int64
	return publisherFunc(func(ctx context.Context, events []holdfast.Event) []error {
		errs := pub.Publish(ctx, events)
		if count.Add(1)%50 == 20 {
			if _, err := pool.Exec(ctx, statement); err != nil {
				return slices.Repeat([]error{err}, len(events))
			}
		}
		return errs
	})
}

type publisherFunc func(ctx context.Context, events []holdfast.Event) []error

func (f publisherFunc) Publish(ctx context.Context, events []holdfast.Event) []error {
	return f(ctx, events)
}

func errorsOf(first, second []error) []error {
	for i := range first {
		first[i] = errors.Join(first[i], second[i])
	}
	return first
}

// buggyHandler is what a handler with a bug does before its work.
func (n *node) buggyHandler(ctx context.Context, e holdfast.Event) error {
	if n.Bug == bugOutside && hash(e.ID)%20 == 0 {
		if _, err := n.pool.Exec(ctx, "insert into effect (consumer, id, key, content) values ($1, $2, $3, $4)", consumerName, e.ID, e.Key, content(e)); err != nil {
			return err
		}
		if n.failedBefore(e.ID) == 0 {
			return errShaky
		}
	}
	if n.Bug == bugEarly && hash(e.ID)%20 == 0 && n.failedBefore(e.ID) == 0 {
		n.rec.Add(history.Entry{
			Op:   history.Receive,
			IDs:  []string{e.ID},
			Text: string(inbox.Handled),
		})
		return errShaky
	}
	return nil
}
