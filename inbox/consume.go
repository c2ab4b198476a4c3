package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
)

const (
	// saveEvery is how often positions are saved and offsets committed, at most: slower where that takes long.
	saveEvery = 100 * time.Millisecond

	// saveAtLeast is how often at least, whatever it took: what is not saved is read again after a crash.
	saveAtLeast = 2 * time.Second
)

// Consume takes in the events of a consumer group's topics, and runs what Run runs. A partition's events are handled in
// parallel as far as their keys differ; those of one key one after the other. A new group starts at the first offset;
// otherwise reading starts at the lower of the consumer's position in Postgres and the group's committed offset. Where the
// group has none it starts at the position, if the log still holds the event that was settled last below it, and else at
// the first offset: Kafka forgets offsets after a while, and with a topic that is deleted. What is read below the position
// is a duplicate, or Stale where no row knows it any more; Observer.OnReread tells how much that may be. To read again on
// purpose, set the group's offsets back. After a crash or a failover of Postgres the group is joined anew, and reading
// starts again so: what was lost with the database's last transactions is handled again.
//
// It returns nil when ctx is done: handlers in hand may finish for Config.StopTimeout and are cancelled then, offsets are
// committed, and the group is left. Brokers and databases that cannot be reached are waited for. It returns an error
// that wraps ErrOffsetOutOfRange when a log does not hold what is to be read next, so that nothing is skipped in silence,
// ErrHungHandlers when too many handlers hang, ErrConfiguration when the brokers refuse a setting, and
// holdfast.ErrSchemaMissing where there is no schema.
func (in *Inbox) Consume(ctx context.Context, s Source) error {
	if s == nil {
		return errors.New("source is nil: pass kafkago.NewGroup's")
	}
	in.start()
	src, err := s.Open(ctx, in.c.StopTimeout+in.c.Grace)
	if err != nil {
		return fmt.Errorf("open source: %w", err)
	}
	return in.consume(ctx, src)
}

func (in *Inbox) consume(ctx context.Context, src Session) error {
	g := newGroup(ctx)
	in.runStored(g)
	workers := newCrew(in)
	workers.start()
	defer workers.end()
	g.run(func(ctx context.Context) error {
		defer src.Close()
		// Before the first event is taken in: a type that this node is the first to know must not be skipped elsewhere.
		for wait := 0; ; wait++ {
			err := in.declare(ctx)
			if err == nil {
				if err = in.renew(ctx); err == nil {
					break
				}
				if mend := miswired(err); mend != nil {
					return mend
				}
			}
			if ctx.Err() != nil {
				return nil
			}
			if miswired(err) != nil {
				return nil // Run's part, which declares the types too, says so and ends it all.
			}
			in.troubled(err)
			if pause(ctx, spread(databaseBase, databaseCap, wait+1, in.random())) != nil {
				return nil
			}
		}
		for wait := 0; ; {
			gen, err := src.Next(ctx)
			if ctx.Err() != nil {
				if gen != nil {
					gen.Leave()
				}
				return nil
			}
			if fatal(err) {
				return err
			}
			if err != nil {
				in.kafkaTroubled("joining the group", err)
				wait++
				if pause(ctx, spread(databaseBase, databaseCap, wait, in.random())) != nil {
					return nil
				}
				continue
			}
			wait = 0
			err = in.generation(ctx, gen, workers)
			gen.Leave()
			switch {
			case fatal(err):
				return err
			case err != nil:
				// Fenced, though the group has not told us, or the database went back: join again, and be given what is ours.
				// Not at once, lest two groups that share a consumer by mistake do nothing else.
				if pause(ctx, spread(time.Second, time.Second, 1, in.random())) != nil {
					return nil
				}
			}
		}
	})
	return g.wait()
}

// generation works the partitions we were given until they are to be given up, and lets go of them in order.
func (in *Inbox) generation(ctx context.Context, gen Generation, workers *crew) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-gen.Over():
			cancel()
		case <-ctx.Done():
		}
	}()
	jobs, forget := linger(ctx, in.c.StopTimeout)
	defer forget()

	var parts []*partition
	g := newGroup(ctx)
	for tp, start := range gen.Assigned() {
		p := newPartition(in, workers, gen, tp, start)
		parts = append(parts, p)
		g.run(func(ctx context.Context) error { return p.run(ctx, jobs) })
	}
	// Nothing to do is no reason to give the generation up: others may have what there is.
	g.run(func(ctx context.Context) error { <-ctx.Done(); return nil })

	saver := make(chan struct{})
	stopSaving, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(saver)
		in.saveLoop(stopSaving, gen, parts)
	}()
	err := g.wait()
	stop()
	<-saver
	in.release(gen, parts)
	return err
}

// saveLoop saves what is settled, all partitions in one statement, and commits the same offsets to Kafka afterwards: the
// position in Postgres is never behind what Kafka has forgotten.
func (in *Inbox) saveLoop(ctx context.Context, gen Generation, parts []*partition) {
	wait := saveEvery
	looked := time.Now()
	for pause(ctx, wait) == nil {
		begun := time.Now()
		err := in.save(ctx, gen, parts)
		if err == nil && begun.Sub(looked) >= lookEvery {
			looked = begun
			err = in.look(ctx, parts)
		}
		if err != nil && ctx.Err() == nil {
			in.troubled(err)
		}
		wait = rest(time.Since(begun), 10, saveEvery, saveAtLeast)
	}
}

func (in *Inbox) save(ctx context.Context, gen Generation, parts []*partition) error {
	ctx, cancel := context.WithTimeout(ctx, patrolTimeout)
	defer cancel()
	var topics, tokens []string
	var numbers []int32
	var epochs, lows, offsets, prints []int64
	var moved []*partition
	for _, p := range parts {
		if low, last, ok := p.unsaved(); ok {
			topics, numbers = append(topics, p.tp.Topic), append(numbers, int32(p.tp.Partition))
			epochs, lows = append(epochs, p.fence.Epoch), append(lows, low)
			offsets, prints = append(offsets, last.offset), append(prints, last.print)
			tokens, moved = append(tokens, p.fence.token), append(moved, p)
		}
	}
	if len(moved) > 0 {
		failpoint.Hit(failpoint.InboxSaving)
		rows, err := in.pool.Query(ctx, in.sql.save, in.c.Consumer, topics, numbers, epochs, lows, offsets, prints, tokens)
		if err != nil {
			return fmt.Errorf("save positions: %w", err)
		}
		mine := map[TopicPartition]bool{}
		for rows.Next() {
			var topic string
			var number int32
			if err := rows.Scan(&topic, &number); err != nil {
				rows.Close()
				return fmt.Errorf("save positions: %w", err)
			}
			mine[TopicPartition{topic, int(number)}] = true
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("save positions: %w", err)
		}
		failpoint.Hit(failpoint.InboxSaved)
		if len(mine) < len(moved) {
			if err := in.look(ctx, parts); err != nil {
				return err // Why they are not ours is not known yet.
			}
		}
		for i, p := range moved {
			if !mine[p.tp] {
				p.fencedOff()
				continue
			}
			p.savedAt(lows[i])
			if in.c.Observer.OnSettled != nil {
				in.c.Observer.OnSettled(p.fence.Assignment, lows[i])
			}
		}
	}
	in.commit(ctx, gen, parts)
	return nil
}

// commit commits the saved positions that the group does not know yet.
func (in *Inbox) commit(ctx context.Context, gen Generation, parts []*partition) {
	offsets := map[TopicPartition]int64{}
	for _, p := range parts {
		if offset, ok := p.uncommitted(); ok {
			offsets[p.tp] = offset
		}
	}
	if len(offsets) == 0 {
		return
	}
	failpoint.Hit(failpoint.InboxOffsets)
	if err := gen.Commit(ctx, offsets); err != nil {
		// What is not committed comes again, and is a duplicate then.
		in.kafkaTroubled("committing offsets", err)
		return
	}
	failpoint.Hit(failpoint.InboxOffset)
	for _, p := range parts {
		if offset, ok := offsets[p.tp]; ok {
			p.committedAt(offset)
		}
	}
}

// release lets go of partitions whose work has ended: the position, and whether the end was clean.
func (in *Inbox) release(gen Generation, parts []*partition) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range parts {
		if p.fence == nil {
			continue // It was never ours.
		}
		wg.Go(func() {
			low, last, clean := p.end()
			// A stretch that is to be gone through carefully is left to the next owner.
			orderly := clean && !(p.careful && low < p.carefulEnd)
			failpoint.Hit(failpoint.InboxReleasing)
			var same bool
			err := in.pool.QueryRow(ctx, in.sql.release, in.c.Consumer, p.tp.Topic, int32(p.tp.Partition), p.fence.Epoch, low, orderly, last.offset, last.print, p.fence.token).Scan(&same)
			switch {
			case errors.Is(err, pgx.ErrNoRows):
				p.fencedOff() // It was lost while nothing was in hand that could have found that out.
			case err != nil:
				in.troubled(fmt.Errorf("release %s/%d: %w", p.tp.Topic, p.tp.Partition, err))
			case !same:
				p.outlived()
			default:
				p.savedAt(low)
			}
			in.c.Logger.Info("partition released", "consumer", in.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition, "position", low, "clean", clean)
			if in.c.Observer.OnRevoked != nil {
				in.c.Observer.OnRevoked(p.fence.Assignment, clean)
			}
		})
	}
	wg.Wait()
	failpoint.Hit(failpoint.InboxReleased)
	in.commit(ctx, gen, parts)
}

// fatal says which errors end Consume rather than be waited out.
func fatal(err error) bool {
	return errors.Is(err, ErrOffsetOutOfRange) || errors.Is(err, ErrHungHandlers) || errors.Is(err, ErrConfiguration)
}

// unknownTypes are the types in a page that this node has no handler for.
func (in *Inbox) unknownTypes(ds []*delivery) []string {
	var types []string
	for _, d := range ds {
		if d.h == nil && !slices.Contains(types, d.e.Type) {
			types = append(types, d.e.Type)
		}
	}
	return types
}
