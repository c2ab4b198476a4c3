package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/lane"
)

// ReplayOptions say how Replay goes about it.
type ReplayOptions struct {
	// DryRun counts the letters that would be replayed and changes nothing.
	DryRun bool

	// Rate is how many letters a second are replayed at most. Defaults to 0: no limit.
	Rate float64

	// By is who replays, Reason why; both are kept. By is required, except for a dry run.
	By, Reason string
}

// replayPage is how many letters Replay looks at in one statement.
const replayPage = 500

// Replay sends open letters through the door they came by again, and returns how many. Letters that are not open are
// left alone, so two people who replay at once replay a letter once.
//
// A letter of the inbox goes to the head of its key's stored queue, for inbox.Run to handle; a letter of the relay goes
// through the log with its old id, and the relay puts it before what is parked of its key. The letters of one key keep
// their order. Replay only hands over: a letter is StateReplaying until its event was handled.
//
// Each letter, or the letters of one key, is a transaction of its own: when ctx ends, or an error comes, those counted
// are replayed, and calling again goes on with the rest.
func (d *DLQ) Replay(ctx context.Context, f Filter, o ReplayOptions) (int, error) {
	if o.By == "" && !o.DryRun {
		return 0, errors.New("replay letters: by is empty: say who replays them")
	}
	if o.Rate < 0 {
		return 0, fmt.Errorf("replay letters: rate is %v: it must be positive, or 0 for no limit", o.Rate)
	}
	if f.State != "" && f.State != StateOpen {
		return 0, fmt.Errorf("replay letters: state is %q: only open letters can be replayed", f.State)
	}
	pace := newPace(o.Rate)
	total := 0
	for {
		letters, err := d.list(ctx, f, replayPage)
		if err != nil {
			return total, fmt.Errorf("replay letters: %w", explain(err))
		}
		if len(letters) == 0 {
			return total, nil
		}
		f.After = letters[len(letters)-1].ID
		if o.DryRun {
			total += len(letters)
			continue
		}
		for _, group := range byKey(letters) {
			for _, ids := range pace.split(group) {
				if err := pace.wait(ctx); err != nil {
					return total, fmt.Errorf("replay letters: stopped after %d: %w", total, err)
				}
				n, err := d.replayKey(ctx, ids, o)
				total += n
				if err != nil {
					return total, fmt.Errorf("replay letters: stopped after %d: %w", total, explain(err))
				}
				pace.spend(len(ids))
			}
		}
	}
}

// byKey puts the letters that must keep an order together. They go to the head of one queue: the last of them first.
func byKey(letters []Letter) [][]int64 {
	type scope struct{ origin, consumer, topic, key string }
	groups := map[scope][]int64{}
	var order []scope
	var loose [][]int64
	for _, l := range letters {
		if l.Event.Key == "" {
			loose = append(loose, []int64{l.ID})
			continue
		}
		s := scope{l.Origin, l.Consumer, l.Event.Topic, l.Event.Key}
		if groups[s] == nil {
			order = append(order, s)
		}
		groups[s] = append(groups[s], l.ID)
	}
	for _, s := range order {
		loose = append(loose, groups[s])
	}
	return loose
}

// replayKey replays letters of one key in one transaction, and returns how many were still open.
func (d *DLQ) replayKey(ctx context.Context, ids []int64, o ReplayOptions) (replayed int, err error) {
	sort.Slice(ids, func(i, j int) bool { return ids[i] > ids[j] }) // each goes before the one put there last
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		replayed = 0
		for _, id := range ids {
			l, err := d.lockOpen(ctx, tx, id)
			if errors.Is(err, ErrNotOpen) || errors.Is(err, ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			if err := d.handOver(ctx, tx, l); err != nil {
				return fmt.Errorf("letter %d: %w", id, err)
			}
			if err := d.exec(ctx, tx, step{d.sql.setState, []any{id, StateReplaying}}, step{d.sql.act, []any{id, "replay", o.By, o.Reason, nil, nil}}); err != nil {
				return err
			}
			replayed++
		}
		return nil
	})
	if err != nil {
		replayed = 0
	}
	return replayed, err
}

// handOver puts a letter's event where it is handled again.
func (d *DLQ) handOver(ctx context.Context, tx pgx.Tx, l Letter) error {
	e := l.Event
	var headers *string
	if e.Headers != nil {
		text, err := json.Marshal(e.Headers)
		if err != nil {
			return fmt.Errorf("encode headers: %w", err)
		}
		s := string(text)
		headers = &s
	}
	if l.Origin == OriginRelay {
		return d.exec(ctx, tx, step{d.sql.append, []any{[]string{e.ID}, []string{e.Source}, []string{e.Type}, []string{e.Topic}, []string{e.Key},
			[]time.Time{e.Time}, []*string{headers}, [][]byte{e.Payload}, []int64{l.ID}}})
	}
	// The same lock under which the inbox changes the queue of a key.
	number := lane.Number(d.schema, l.Consumer, e.Topic, e.Key)
	return d.exec(ctx, tx, step{d.sql.lockKey, []any{int32(lane.KeyClass), number}}, step{d.sql.store, []any{l.ID}})
}

// pace spreads work over time.
type pace struct {
	rate  float64
	begun time.Time
	done  int
}

func newPace(rate float64) *pace { return &pace{rate: rate, begun: time.Now()} }

// split cuts a key's letters so that no step is larger than a second's worth. The later letters of a key come first:
// each step goes to the head of the queue, before those.
func (p *pace) split(ids []int64) [][]int64 {
	size := 100
	if p.rate > 0 {
		size = min(size, max(1, int(p.rate)))
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] > ids[j] })
	var steps [][]int64
	for len(ids) > size {
		steps = append(steps, ids[:size:size])
		ids = ids[size:]
	}
	return append(steps, ids)
}

func (p *pace) spend(n int) { p.done += n }

func (p *pace) wait(ctx context.Context) error {
	if p.rate <= 0 {
		return ctx.Err()
	}
	due := p.begun.Add(time.Duration(float64(p.done) / p.rate * float64(time.Second)))
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
