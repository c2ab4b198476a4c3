package waiting

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/manual"
)

// This file changes what waits in relays, lane by lane (lanes.go).

// giveUpRelay makes events dead letters in a state.
func (r *Room) giveUpRelay(ctx context.Context, f Filter, o Options, state string) (int, error) {
	reason := fmt.Sprintf("%s gave up what waits for its topic: %s", o.By, o.Reason)
	action := actGiveUp
	if state == dlq.StateDiscarded {
		action = actDiscard
	}
	p, err := r.changeLanes(ctx, f, o, f.signed(action, o, o.Reason), func(ctx context.Context, tx pgx.Tx, args []any) pgx.Row {
		return tx.QueryRow(ctx, r.sql.In(giveUpRelay), append(args, state, reason, o.By, o.Reason)...)
	})
	return p.Changed, err
}

func (r *Room) redirectRelay(ctx context.Context, f Filter, to string, o Options) (int, error) {
	note := fmt.Sprintf("%s redirected it from the topic %s: %s", o.By, f.Topic, o.Reason)
	p, err := r.changeLanes(ctx, f, o, f.signed("redirect", o, "to "+to+": "+o.Reason), func(ctx context.Context, tx pgx.Tx, args []any) pgx.Row {
		return tx.QueryRow(ctx, r.sql.In(redirectRelay), append(args, to, note)...)
	})
	if (err == nil || errors.Is(err, ErrBeingSent)) && p.Left > 0 {
		err = errors.Join(fmt.Errorf("%d events of the topic %s were left: %w: replay or discard those first", p.Left, f.Topic, ErrBehindLetter), err)
	}
	return p.Changed, err
}

var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// redirectable says what is wrong with the topics of a redirect.
func redirectable(topic, to string) error {
	switch {
	case !topicName.MatchString(to) || to == "." || to == "..":
		return fmt.Errorf(`to is %.60q: it must be a Kafka topic's name, of 1 to 249 letters, digits, ".", "_" and "-"`, to)
	case to == topic:
		return fmt.Errorf("to is %q: it must be another topic than the one whose events are redirected", to)
	}
	return nil
}

// retryRelay has lanes try what they keep of a topic.
func (r *Room) retryRelay(ctx context.Context, f Filter, o Options) (n int, err error) {
	var paused bool
	if err := r.pool.QueryRow(ctx, r.sql.In(topicIsPaused), f.Topic).Scan(&paused); err != nil {
		return 0, fmt.Errorf("look whether the topic is paused: %w", manual.Explain(err))
	}
	if paused {
		return 0, fmt.Errorf("%w: %s", ErrPaused, f.Topic)
	}
	lanes, _, err := r.lanesOf(ctx, f)
	if err != nil {
		return 0, err
	}
	s := f.signed(actRetry, o, o.Reason)
	for _, w := range lanes {
		due, err := r.retryLane(ctx, w.lane, f, o.DryRun, &s)
		if err != nil {
			return n, fmt.Errorf("lane %d: %w", w.lane, manual.Explain(err))
		}
		n += due
		o.report(Progress{Changed: n})
	}
	return n, nil
}

// signed is what is kept of a change of a filter's events in relays.
func (f Filter) signed(action string, o Options, reason string) signature {
	return signature{action: action, topic: f.Topic, key: f.Key, by: o.By, reason: reason}
}

// retryLane makes due what a filter selects in a lane, and returns how many.
func (r *Room) retryLane(ctx context.Context, lane int16, f Filter, dryRun bool, s *signature) (n int, err error) {
	args := []any{lane, f.Topic, f.Key}
	if dryRun {
		err := r.pool.QueryRow(ctx, r.sql.In(countRetry), args...).Scan(&n)
		return n, err
	}
	err = manual.Transact(ctx, r.pool, func(tx pgx.Tx) error {
		if err := r.lockLane(ctx, tx, lane); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, r.sql.In(retryRelay), args...)
		if err != nil {
			return err
		}
		n = int(tag.RowsAffected())
		return r.sign(ctx, tx, s)
	})
	s.kept = s.kept || err == nil
	return n, err
}
