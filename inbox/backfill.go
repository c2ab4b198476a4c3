package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// This file consumes up to a bound, and returns.

// Until is where ConsumeUntil stops, and whom it tells. The zero value is the ends of all partitions as they are at the start. At and Offsets
// exclude each other.
type Until struct {
	// At stops before the first record of each partition that has this time or a later one, by the broker's clock or the producer's as the
	// topic is configured. Defaults to no time: the end.
	At time.Time

	// Offsets stops before these offsets. Partitions that it does not name are not read; one that does not exist is
	// ErrConfiguration. An offset after the end of a log counts as the end; a negative one is refused. Defaults to all partitions.
	Offsets map[source.TopicPartition]int64

	// ProgressFunc is called with the progress at the start, every ProgressEvery, and at the end, by one goroutine at a time. It must be quick.
	// Defaults to none. Health has the progress too, and the log.
	ProgressFunc func(Progress)

	// ProgressEvery is how often the progress is reported and logged; holdfast status does not depend on it; at least 100 ms. Defaults to 10 s.
	ProgressEvery time.Duration
}

const defaultProgressEvery = 10 * time.Second

func (u Until) validate() error {
	var problems []error
	if u.ProgressEvery != 0 && u.ProgressEvery < 100*time.Millisecond {
		problems = append(problems, fmt.Errorf("progress every is %s: it must be at least 100ms, or 0 for the default of %s", u.ProgressEvery, defaultProgressEvery))
	}
	if !u.At.IsZero() && u.Offsets != nil {
		problems = append(problems, errors.New("at and offsets are both set: it must be one of them"))
	}
	for tp, offset := range u.Offsets {
		if offset < 0 {
			problems = append(problems, fmt.Errorf("offset of %s/%d is %d: it must not be negative", tp.Topic, tp.Partition, offset))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("until: %w", err)
	}
	return nil
}

// stretches says what is to be read. A partition that Offsets names and that is not there is an error: it would never be reached.
func (u Until) stretches(there map[source.TopicPartition]source.Extent) (map[source.TopicPartition]readahead.Stretch, error) {
	all := map[source.TopicPartition]readahead.Stretch{}
	for tp, x := range there {
		until := min(x.At, x.End)
		if u.Offsets != nil {
			given, named := u.Offsets[tp]
			if !named {
				continue
			}
			until = min(given, x.End)
		}
		all[tp] = readahead.Stretch{First: x.First, Until: until}
	}
	for tp := range u.Offsets {
		if _, ok := there[tp]; !ok {
			return nil, fmt.Errorf("%w: until: offsets has %s/%d: there is no such partition in the source's topics", ErrConfiguration, tp.Topic, tp.Partition)
		}
	}
	return all, nil
}

// ErrBoundNotReached is wrapped by the error of a ConsumeUntil that ended before its bound, because its context did or because partitions
// are held. What is done stays done: the next call goes on there.
var ErrBoundNotReached = errors.New("the bound was not reached")

// ConsumeUntil is Consume up to a bound, such as the ends of all partitions as they are now: a new consumer catches up, and the call returns. It
// returns nil when every event below the bound is settled, by this node or others: handled, stored for a retry (which Run goes on with),
// skipped or a dead letter. No event at or after the bound is begun. Consume, or another ConsumeUntil, goes on from there.
//
// Any number of nodes may call it at once, each as a member of the group, and each returns when all partitions are done. A call after a crash goes
// on from the positions in Postgres. The ends are then those of that moment; give Until.At or Until.Offsets for a bound that stays.
//
// Positions decide, so empty partitions, compaction, transactions and deleted records do not keep it waiting. Partitions that are added
// meanwhile are not part of the bound, and are not read. If a log is cut short below its bound, its new end is the bound, which is
// logged. If nothing is left but partitions that are held, it ends with an error that says why, instead of waiting for a person as Consume
// does. While the consumer is paused, it waits. So it does while as many events are stored as Config.MaxStored or Config.MaxStoredKey allow.
// Progress.Waits then says why.
//
// Its progress is also a row of the table consumer_backfill, which holdfast status and the console show.
//
// The error wraps ErrBoundNotReached if ctx ended first, and ErrConfiguration if the source's sessions are not Bounded or a topic does not exist;
// otherwise it is one of Consume's. The Progress is the last one that was read.
func (in *Inbox) ConsumeUntil(ctx context.Context, s Source, u Until) (Progress, error) {
	if s == nil {
		return Progress{}, errors.New("source is nil: it must be one like kafkago.NewGroup's")
	}
	if err := u.validate(); err != nil {
		return Progress{}, err
	}
	src, err := open(ctx, in, s)
	if err != nil {
		return Progress{}, err
	}
	bounded, ok := src.(source.Bounded)
	if !ok {
		src.Close()
		return Progress{}, fmt.Errorf("%w: source is a %T: its sessions must be source.Bounded, which says where topics end", ErrConfiguration, s)
	}
	b := &backfill{
		env:       in.env,
		positions: in.consumer.positions,
		Bounded:   bounded,
		pauses:    in.pauses,
		every:     cmp.Or(u.ProgressEvery, defaultProgressEvery),
		tell:      u.ProgressFunc,
		from:      map[source.TopicPartition]int64{},
	}
	if err := b.begin(ctx, u); err != nil {
		src.Close()
		return Progress{}, err
	}
	if err = in.consume(ctx, b); err == nil && !b.arrived {
		err = fmt.Errorf("consume until: %w: %d offsets are left: %w", ErrBoundNotReached, b.last.Left, context.Cause(ctx))
	}
	if werr := b.writeBackfill(context.WithoutCancel(ctx), b.last, true, err); werr != nil {
		b.transient(werr)
	}
	return b.last, err
}

const (
	// arrivalEvery is how often positions are compared with the bound.
	arrivalEvery = 250 * time.Millisecond

	// refitEvery is how often the logs are looked at again.
	refitEvery = 5 * time.Second

	// stuckFor is how long nothing but held partitions is left before ConsumeUntil gives up: a hold looks again after a second.
	stuckFor = 5 * time.Second
)

// errArrived ends a ConsumeUntil that is done.
var errArrived = errors.New("the bound is reached")

// backfill is one call of ConsumeUntil: a session with a bound.
type backfill struct {
	source.Bounded
	*env
	positions *position.Table
	pauses    *pauses

	bound readahead.Bound
	every time.Duration
	tell  func(Progress)

	began time.Time
	from  map[source.TopicPartition]int64
	speed speed
	last  Progress

	arrived bool
}

func (b *backfill) Limits() *readahead.Bound { return &b.bound }

// begin asks where the logs end, until there is an answer.
func (b *backfill) begin(ctx context.Context, u Until) error {
	b.began = time.Now()
	for wait := 1; ; wait++ {
		there, err := b.Extents(ctx, u.At)
		if err = foreign.Error(err); err == nil {
			b.bound.All, err = u.stretches(there)
			return err
		}
		if errors.Is(err, ErrConfiguration) {
			return fmt.Errorf("consume until: %w", err)
		}
		if ctx.Err() == nil {
			b.brokerTransient("asking where topics end", err)
		}
		if loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait, b.random())) != nil {
			return fmt.Errorf("consume until: %w: %w", ErrBoundNotReached, context.Cause(ctx))
		}
	}
}

// watch compares positions with the bound until it is reached.
func (b *backfill) watch(ctx context.Context) error {
	var told, written, stuckSince time.Time
	refitted := time.Now()
	for {
		if now := time.Now(); now.Sub(refitted) >= refitEvery {
			refitted = now
			b.refit(ctx)
		}
		all := b.bound.Stretches()
		at, err := b.standings(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			b.transient(err)
		} else {
			verdict := judgeArrival(all, at)
			b.note(measure(all, at, b.from))
			if now := time.Now(); told.IsZero() || verdict == arrived || now.Sub(told) >= b.every {
				told = now
				b.report()
			}
			if now := time.Now(); now.Sub(written) >= writeEvery && verdict != arrived {
				written = now
				if err := b.writeBackfill(ctx, b.last, false, nil); err != nil && ctx.Err() == nil {
					b.transient(err)
				}
			}
			switch {
			case verdict == arrived:
				b.arrived = true
				return errArrived
			case verdict == underway:
				stuckSince = time.Time{}
			case stuckSince.IsZero():
				stuckSince = time.Now()
			case time.Since(stuckSince) >= stuckFor:
				return b.stuck()
			}
		}
		if loop.Sleep(ctx, arrivalEvery) != nil {
			return nil
		}
	}
}

// note keeps a progress, for Health and the result.
func (b *backfill) note(p Progress) {
	now := time.Now()
	b.speed.add(now, p.Done)
	p.For, p.Rate = now.Sub(b.began), b.speed.rate()
	p.TimeLeft = timeLeft(p.Left, p.Rate)
	paused := b.pauses.stopped()
	b.vitals.set(func(s *seen) {
		if p.Done > b.last.Done || p.Left == 0 {
			s.full = ""
		}
		if p.Waits = s.full; paused && p.Left > 0 {
			p.Waits = "the consumer is paused"
		}
		s.backfill = &p
	})
	b.last = p
}

func (b *backfill) report() {
	p := b.last
	attrs := []any{"consumer", b.c.Consumer, "done", p.Done, "left", p.Left, "per_second", int64(p.Rate), "time_left", p.TimeLeft.Round(time.Second)}
	if p.Waits != "" {
		attrs = append(attrs, "waits", p.Waits)
	}
	b.c.Logger.Info("backfill progress", attrs...)
	if b.tell != nil {
		b.tell(p)
	}
}

// stuck says which partitions are held.
func (b *backfill) stuck() error {
	var held []error
	for _, p := range b.last.Partitions {
		if p.Held != "" {
			held = append(held, fmt.Errorf("%s/%d is held: %s", p.Topic, p.Partition, p.Held))
		}
	}
	return fmt.Errorf("consume until: %w: %w", ErrBoundNotReached, errors.Join(held...))
}

// refit fits the bound to the logs as they are now.
func (b *backfill) refit(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, loop.Patience) // a broker that does not answer must not keep the backfill from telling of itself
	defer cancel()
	now, err := b.Extents(bounded, time.Time{})
	if err != nil {
		if ctx.Err() == nil {
			b.brokerTransient("asking where topics end", err)
		}
		return
	}
	for tp, was := range b.bound.Refit(now) {
		b.c.Logger.Warn("the log was cut short below the bound: its new end is the bound", "consumer", b.c.Consumer, "topic", tp.Topic,
			"partition", tp.Partition, "was", was.Until, "until", b.bound.Until(tp))
	}
}

// standings are where the consumer stands in the partitions of the bound.
func (b *backfill) standings(ctx context.Context) (map[source.TopicPartition]readahead.Standing, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	return b.positions.Standings(ctx)
}

// writeEvery is how often the progress is written into the table consumer_backfill, for holdfast status and the console. After 30 s without a word (writeBackfillSQL, holdfast status, the console) no node counts as running it.
const writeEvery = 5 * time.Second

// writeBackfill writes a progress; ended says that the call has ended, with end or at its bound. While another node tells its own, nothing
// is written: both count the same partitions.
func (env *env) writeBackfill(ctx context.Context, p Progress, ended bool, end error) error {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	why := ""
	if end != nil {
		why = loggedError(end)
	}
	if _, err := env.pool.Exec(ctx, env.sql.writeBackfill, env.c.Consumer, env.node, p.For.Microseconds(), int32(len(p.Partitions)), int32(p.partitionsLeft()),
		p.Done, p.Left, p.Rate, p.Waits, ended, why); err != nil {
		return fmt.Errorf("write the progress of a backfill: %w", err)
	}
	return nil
}
