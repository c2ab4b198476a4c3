package waiting

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/manual"
)

// This file pauses and resumes what relays and consumers do.

// Pausable is what can be paused: a topic (only Topic is set), a consumer (only Consumer), or a key of a consumer (all three).
type Pausable struct {
	Topic    string
	Consumer string
	Key      string
}

// Pause is something that is paused.
type Pause struct {
	Pausable
	By     string // who did it, as that person says
	Login  string // the database user who did it, as the database says
	Reason string
	At     time.Time // since when, by the database's clock
}

// Pause pauses a topic, a consumer or a key, for all processes and until Resume, and says whether it was this call that did: what is
// paused stays as it is. Running relays and consumers see it within about a second. by is required; both by and reason are kept.
//
// Relays do not publish the events of a paused topic: they wait in order, and all others go on. No handler of a paused
// consumer begins. Those that run may finish, within inbox.Config.StopTimeout if their event came from Kafka. Events stay in Kafka,
// and what comes by Receive waits. The later events of a paused key wait; the other keys go on. A replay
// of a dead letter is handled although its key is paused.
//
// Events that wait count towards the caps. Processes of builds that know no pauses, before version 2 of the schema, heed
// only that of a key. Many goroutines may call it at once.
func (r *Room) Pause(ctx context.Context, p Pausable, by, reason string) (bool, error) {
	return r.changePause(ctx, p, by, reason, "pause", pausePause, p.Consumer, p.Topic, p.Key, by, reason)
}

// Resume ends a pause, and says whether there was one. What waited goes on in order, within a few seconds. Otherwise it is as Pause.
func (r *Room) Resume(ctx context.Context, p Pausable, by, reason string) (bool, error) {
	return r.changePause(ctx, p, by, reason, "resume", resumePause, p.Consumer, p.Topic, p.Key)
}

// Paused returns what is paused, in the order of consumer, topic and key. A user who is bound to consumers sees theirs.
func (r *Room) Paused(ctx context.Context) ([]Pause, error) {
	rows, err := r.pool.Query(ctx, r.sql.In(listPaused))
	if err != nil {
		return nil, fmt.Errorf("list what is paused: %w", manual.Explain(err))
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Pause, err error) {
		return p, row.Scan(&p.Consumer, &p.Topic, &p.Key, &p.By, &p.Login, &p.Reason, &p.At)
	})
	if err != nil {
		return nil, fmt.Errorf("list what is paused: %w", manual.Explain(err))
	}
	return all, nil
}

// Consumers returns the names of the consumers that have recorded or stored an event in this database, or declared a type that they
// handle: the first 1,000 in order. A user who is bound to consumers sees theirs. It is how a typing error shows, since a pause of a
// name that nobody has is no error.
func (r *Room) Consumers(ctx context.Context) ([]string, error) {
	rows, err := r.pool.Query(ctx, r.sql.In(listConsumers))
	if err != nil {
		return nil, fmt.Errorf("list consumers: %w", manual.Explain(err))
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list consumers: %w", manual.Explain(err))
	}
	return names, nil
}

// changePause runs one statement on a pause in a transaction, and records the action if it changed something. A key's queue is
// locked meanwhile, so that what is stored in it is before the change or sees it.
func (r *Room) changePause(ctx context.Context, p Pausable, by, reason, action, sql string, args ...any) (changed bool, err error) {
	if err := errors.Join(p.validate(), manual.Signature(by, reason)); err != nil {
		return false, fmt.Errorf("%s: %w", action, err)
	}
	err = manual.Transact(ctx, r.pool, func(tx pgx.Tx) error {
		changed = false
		if err := manual.LockQueue(ctx, tx, r.schema, p.Consumer, p.Topic, p.Key); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, r.sql.In(sql), args...)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		changed = true
		if p.Key != "" && action == "resume" {
			if _, err := tx.Exec(ctx, r.sql.In(wakeKey), p.Consumer, p.Topic, p.Key); err != nil {
				return fmt.Errorf("wake the key's queue: %w", err)
			}
		}
		return r.recordPause(ctx, tx, action, p, by, reason)
	})
	if err != nil {
		return false, fmt.Errorf("%s %s: %w", action, p, manual.Explain(err))
	}
	return changed, nil
}

// recordPause keeps who did what to relays or consumers, and why.
func (r *Room) recordPause(ctx context.Context, tx pgx.Tx, action string, p Pausable, by, reason string) error {
	if _, err := tx.Exec(ctx, r.sql.In(recordPause), action, p.Consumer, p.Topic, p.Key, by, reason); err != nil {
		return fmt.Errorf("record the action: %w", err)
	}
	return nil
}

// String names it in sentences.
func (p Pausable) String() string {
	switch {
	case p.Consumer == "":
		return "topic " + p.Topic
	case p.Key == "":
		return "consumer " + p.Consumer
	default:
		return fmt.Sprintf("key %q of topic %s in consumer %s", p.Key, p.Topic, p.Consumer)
	}
}

// The largest parts of a Pausable: what the log and the primary key of the table take.
const (
	maxConsumer = 255
	maxKey      = 1024
)

func (p Pausable) validate() error {
	switch {
	case p.Consumer == "" && p.Topic == "":
		return errors.New("neither topic nor consumer is set: one of them must say what is meant")
	case p.Consumer == "" && p.Key != "":
		return errors.New("key is set without consumer: it must be a key of a consumer")
	case p.Consumer != "" && (p.Topic == "") != (p.Key == ""):
		return errors.New("of topic and key one is set: with a consumer it must be both, or none for all of the consumer")
	case p.Topic != "" && !topicName.MatchString(p.Topic):
		return fmt.Errorf(`topic is %.60q: it must be a Kafka topic's name, of 1 to 249 letters, digits, ".", "_" and "-"`, p.Topic)
	case len(p.Consumer) > maxConsumer:
		return fmt.Errorf("consumer has %d bytes: at most %d", len(p.Consumer), maxConsumer)
	case len(p.Key) > maxKey:
		return fmt.Errorf("key has %d bytes: at most %d", len(p.Key), maxKey)
	}
	return nil
}
