package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/terminal"
	"github.com/holdfast-go/holdfast/waiting"
)

// Options are the options of Read. The zero Options work.
type Options struct {
	Schema string
	Limits Limits

	// Ends says where partitions end, for the lag of consumers. Defaults to none: then it is not known.
	Ends Ends

	// Before is the After of the last reading: a lane that its owner has claimed again since then was lost meanwhile. Without one, a second
	// look follows after Pause if a relay runs; if Pause is 0 too, there is none.
	Before Owners
	Pause  time.Duration

	// Drift is why holdfast check fails. Then a part that cannot be read does not keep the others from being read.
	Drift error
}

// Pool is a pool.
type Pool interface {
	Queries
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// endsWithin is for how long Kafka may take to say where partitions end.
const endsWithin = 5 * time.Second

// Read reads everything in one transaction, and then asks Kafka, and looks at the owners of lanes a second time.
func Read(ctx context.Context, db Pool, o Options) (State, error) {
	s := State{Schema: o.Schema, Drift: o.Drift}
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := Settings(ctx, tx); err != nil {
			return err
		}
		return readParts(ctx, tx, &s, o)
	})
	if err != nil {
		return s, err
	}
	if o.Ends != nil {
		s.readLag(ctx, o.Ends)
	}
	if err := s.lookAgain(ctx, Reader{db, o.Schema}, o); err != nil {
		if o.Drift == nil {
			return s, err
		}
		s.Unread = append(s.Unread, Unread{"the lanes again", err})
	}
	return s, nil
}

// part is what is read together.
type part struct {
	name string // in "cannot read"
	read func(context.Context, Reader, *State, Options) error
}

// parts are in the order in which they need each other.
var parts = []part{
	{"the history", readInto(func(s *State) *[]History { return &s.History }, readHistory)},
	{"pauses", readInto(func(s *State) *[]Pause { return &s.Paused }, readPauses)},
	{"dead letters", func(ctx context.Context, r Reader, s *State, _ Options) (err error) {
		s.Letters, s.Looked, err = r.Letters(ctx, MostEvents)
		return err
	}},
	{"held topics", func(ctx context.Context, r Reader, s *State, _ Options) (err error) {
		if s.HeldPlaces, err = r.HeldPlaces(ctx); err == nil {
			s.Held, err = r.Held(ctx)
		}
		return err
	}},
	{"the backlog", func(ctx context.Context, r Reader, s *State, _ Options) (err error) {
		s.Backlog, err = r.Backlog(ctx)
		return err
	}},
	{"lanes", readAllLanes},
	{"relays", readInto(func(s *State) *[]Relay { return &s.Relays }, readRelays)},
	{"who holds lanes", readHoldersOfLanes},
	{"waiting events", readLong},
	{"segments", readLog},
	{"consumers", readConsumers},
	{"blocked keys", readInto(func(s *State) *[]Blocked { return &s.Blocked }, readBlocked, MostRows, mostOldest)},
	{"skipped types", readInto(func(s *State) *[]Skipped { return &s.Skipped }, readSkipped)},
	{"backfills", func(ctx context.Context, r Reader, s *State, _ Options) (err error) {
		s.Backfills, err = r.Backfills(ctx)
		return err
	}},
	{"dependencies", func(ctx context.Context, r Reader, s *State, _ Options) (err error) {
		s.Needed, err = r.Dependencies(ctx, MostRows)
		return err
	}},
	{"positions", func(ctx context.Context, r Reader, s *State, _ Options) (err error) {
		s.Positions, err = r.Positions(ctx, math.MaxInt64)
		for i := range s.Positions {
			s.Positions[i].Lag = -1
		}
		return err
	}},
	{"sizes", readInto(func(s *State) *[]Size { return &s.Sizes }, readSizes)},
}

// readParts reads each part, in a savepoint of its own if some may fail. It fails if none can be read.
func readParts(ctx context.Context, tx pgx.Tx, s *State, o Options) error {
	var failed []error
	for _, p := range parts {
		if o.Drift == nil {
			if err := p.read(ctx, Reader{tx, o.Schema}, s, o); err != nil {
				return err
			}
			continue
		}
		err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error { return p.read(ctx, Reader{savepoint, o.Schema}, s, o) })
		if err != nil {
			failed = append(failed, err)
			s.Unread = append(s.Unread, Unread{p.name, err})
		}
	}
	if len(failed) == len(parts) {
		return errors.Join(failed...)
	}
	return nil
}

// readInto reads one list of a State.
func readInto[T any](into func(*State) *[]T, sql string, args ...any) func(context.Context, Reader, *State, Options) error {
	return func(ctx context.Context, r Reader, s *State, _ Options) (err error) {
		*into(s), err = list[T](ctx, r, sql, args...)
		return err
	}
}

func readAllLanes(ctx context.Context, r Reader, s *State, _ Options) (err error) {
	s.lookedAt = time.Now()
	s.Lanes, err = r.Lanes(ctx)
	for i := range s.Lanes {
		l := &s.Lanes[i]
		for _, letters := range s.Letters {
			if letters.Consumer == "" && letters.Lane == l.Lane {
				l.Letters += letters.Open
			}
		}
		l.HeldBy = s.heldBy(*l)
	}
	return err
}

// heldBy says in a few words what a lane waits for.
func (s *State) heldBy(l Lane) string {
	const most = 3
	var holds []string
	for _, h := range s.Held {
		switch {
		case h.Lane != l.Lane:
		case h.Partition >= 0:
			holds = append(holds, fmt.Sprintf("partition %d of %s", h.Partition, terminal.Clean(h.Topic)))
		case s.isPaused(waiting.Pausable{Topic: h.Topic}):
			holds = append(holds, "topic "+terminal.Clean(h.Topic)+", which is paused")
		default:
			holds = append(holds, "topic "+terminal.Clean(h.Topic))
		}
	}
	if len(holds) > most {
		holds = append(holds[:most:most], fmt.Sprintf("%d more", len(holds)-most))
	}
	if l.Trouble != "" {
		holds = append([]string{"broker: " + terminal.Clean(l.Trouble)}, holds...)
	}
	return strings.Join(holds, ", ")
}

// isPaused says whether a person has paused exactly this.
func (s *State) isPaused(p waiting.Pausable) bool {
	return slices.ContainsFunc(s.Paused, func(is Pause) bool { return is.Of() == p })
}

// unowned are the lanes that have events and no owner.
func (s *State) unowned() (lanes []int) {
	for _, l := range s.Lanes {
		if l.NeedsOwner() {
			lanes = append(lanes, int(l.Lane))
		}
	}
	return lanes
}

func readHoldersOfLanes(ctx context.Context, r Reader, s *State, _ Options) (err error) {
	if len(s.unowned()) > 0 && len(s.Relays) > 0 {
		s.LaneHolders, err = list[Holder](ctx, r, readLaneHolders)
	}
	return err
}

func readLong(ctx context.Context, r Reader, s *State, o Options) (err error) {
	if limit := o.Limits.Waiting; limit > 0 {
		s.Long, err = list[LongWaiting](ctx, r, readLongWaiting, int64(limit/time.Second), MostRows)
	}
	return err
}

// readLog keeps the segments only if it has read what may hold a full log too.
func readLog(ctx context.Context, r Reader, s *State, _ Options) (err error) {
	var log State
	if log.Segments, err = r.Segments(ctx); err != nil {
		return err
	}
	if log.Full() {
		if log.LogHolders, err = r.LogHolders(ctx); err != nil {
			return err
		}
		if log.Behind, err = list[Behind](ctx, r, readBehind); err != nil {
			return err
		}
	}
	s.Segments, s.LogHolders, s.Behind = log.Segments, log.LogHolders, log.Behind
	return nil
}

// Full says that no segment of the log is empty: it grows.
func (s *State) Full() bool {
	return len(s.Segments) > 0 && !slices.ContainsFunc(s.Segments, func(of Segment) bool { return of.Bytes == 0 })
}

// readConsumers puts what is known of each consumer into its row.
func readConsumers(ctx context.Context, r Reader, s *State, _ Options) error {
	stored, err := r.Stored(ctx, MostEvents)
	if err != nil {
		return err
	}
	type overdue struct {
		Consumer string
		Seconds  int64
	}
	late, err := list[overdue](ctx, r, readOverdue, mostTypes, mostHeads)
	if err != nil {
		return err
	}
	living, err := r.Nodes(ctx)
	if err != nil {
		return err
	}
	progress, err := r.Progress(ctx)
	if err != nil {
		return err
	}
	all := []Consumer{}
	of := func(consumer string) *Consumer {
		i, found := slices.BinarySearchFunc(all, consumer, func(c Consumer, name string) int { return strings.Compare(c.Consumer, name) })
		if !found {
			all = slices.Insert(all, i, Consumer{Consumer: consumer, Heard: -1})
		}
		return &all[i]
	}
	for _, p := range progress {
		of(p.Consumer)
	}
	for _, c := range stored {
		row := of(c.Consumer)
		row.Waiting, row.Keys, row.Oldest, row.NoHandler = int64(c.Events), int64(c.Keys), int64(math.Round(c.Oldest)), int64(c.NoHandler)
	}
	for _, l := range late {
		of(l.Consumer).Overdue = l.Seconds
	}
	for _, n := range living {
		row := of(n.Consumer)
		row.Nodes, row.Heard, row.Node = n.Living, n.Silent, n
	}
	for _, l := range s.Letters {
		if l.Consumer != "" {
			of(l.Consumer).Letters += l.Open
		}
	}
	s.Consumers = all
	return nil
}

// readLag asks Kafka where the partitions end.
func (s *State) readLag(ctx context.Context, ends Ends) {
	var wanted []source.TopicPartition
	for _, p := range s.Positions {
		wanted = append(wanted, source.TopicPartition{Topic: p.Topic, Partition: p.Partition})
	}
	if len(wanted) == 0 {
		return
	}
	slices.SortFunc(wanted, func(a, b source.TopicPartition) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), a.Partition-b.Partition)
	})
	ctx, cancel := context.WithTimeout(ctx, endsWithin)
	defer cancel()
	where, err := ends(ctx, slices.Compact(wanted))
	s.NoEnds = err
	for i := range s.Positions {
		p := &s.Positions[i]
		if end, known := where[source.TopicPartition{Topic: p.Topic, Partition: p.Partition}]; known {
			p.Lag, p.Known = end-p.Position, true
		}
	}
}

// lookAgain looks at the owners of lanes, and compares them with another look. Without a running relay there is nothing to see.
func (s *State) lookAgain(ctx context.Context, r Reader, o Options) (err error) {
	s.Before, s.After = o.Before, Owners{}
	for _, l := range s.Lanes {
		s.After[int(l.Lane)] = Owner{l.Owner, l.Epoch}
	}
	if s.Before != nil || len(s.Relays) == 0 || o.Pause <= 0 || len(s.Lanes) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(o.Pause - time.Since(s.lookedAt)):
	}
	s.Before = s.After
	s.After, err = r.Owners(ctx)
	return err
}
