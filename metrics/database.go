package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/state"
)

// DatabaseConfig configures ObserveDatabase. The zero DatabaseConfig works.
type DatabaseConfig struct {
	// Schema is the Postgres schema that holdfast.Migrate created. Defaults to "holdfast".
	Schema string

	// Interval is how long a sample is kept: however often the Meter asks, the database is queried once in that time. At least
	// 1 s. Defaults to 15 s.
	Interval time.Duration

	// Timeout bounds the queries of a sample, together, and those of the lag with EndsFunc. Defaults to 5 s.
	Timeout time.Duration

	// EndsFunc says where partitions end: the offset that the next event gets. It leaves out what the broker does not know, and returns
	// soon after its context is done. It is called once in Interval, and never twice at once. kafkago.Offsets has one: Ends. Defaults to
	// none: then there are no gauges of the lag of consumers.
	EndsFunc func(ctx context.Context, of []source.TopicPartition) (map[source.TopicPartition]int64, error)
}

// Bounds of a sample.
const (
	maxSampled   = 100_000 // rows that are counted of a table, of stored for each consumer
	maxConsumers = 50      // that have figures of their own
	maxNeeded    = 50      // dependencies that have figures of their own
	maxPositions = 20_000  // partitions of consumers whose lag is asked for
)

// database samples what only the database knows. Many goroutines may ask it at once.
type database struct {
	pool *pgxpool.Pool
	c    DatabaseConfig

	mu       sync.Mutex
	last     sample
	err      error
	failures int
	until    time.Time // last and err count until then
}

// newDatabase checks the configuration. The error lists every problem of it.
func newDatabase(pool *pgxpool.Pool, c DatabaseConfig) (*database, error) {
	var problems []error
	if pool == nil {
		problems = append(problems, errors.New("pool is nil: it must be connected to the primary"))
	}
	if c.Schema == "" {
		c.Schema = sqlschema.Default
	}
	if err := sqlschema.Validate(c.Schema); err != nil {
		problems = append(problems, err)
	}
	if c.Interval == 0 {
		c.Interval = 15 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Interval < time.Second {
		problems = append(problems, fmt.Errorf("interval is %v: it must be at least 1s, because each sample queries the database", c.Interval))
	}
	if c.Timeout < 0 {
		problems = append(problems, fmt.Errorf("timeout is %v: it must be positive, or 0 for the default", c.Timeout))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("database metrics config: %w", err)
	}
	return &database{pool: pool, c: c}, nil
}

// sample is what the database holds at a moment.
type sample struct {
	At   time.Time     // by this process's clock
	Took time.Duration // what the queries took

	Lanes         int           // lanes with events that no relay has published
	Oldest        time.Duration // since the time of the oldest of them; 0 if there is none
	Waiting       int           // events that wait in relays
	OldestWaiting time.Duration
	Scheduled     int // lanes with scheduled events that are due and not in the log

	Unowned        int // lanes that no relay owns
	Relays         int // that run
	Troubled       int // running relays that get no answer from the broker
	Empty          int // segments of the log; without one the log grows
	HeldTopics     int // topics for which events wait, because they are missing or not permitted
	HeldPartitions int // partitions for which events wait

	Stored    []state.Stored // of the consumers with stored events
	Letters   []openLetters  // open dead letters
	Positions []state.Progress
	Backfills []backfillOf
	Needed    []state.Dependency
	Sizes     []state.Size
}

// openLetters are the open dead letters of a relay (Consumer is "") or of a consumer.
type openLetters struct {
	Origin, Consumer string
	Open             int
}

// backfillOf is the last backfill (inbox.Inbox.ConsumeUntil) of a consumer, for a week after a node has told of it.
type backfillOf struct {
	Consumer  string
	Remaining int64         // offsets
	Done      bool          // it ended at its bound
	Waiting   bool          // a node runs it, and it waits: the consumer is paused, or too many of its events are stored
	Told      time.Duration // since a node told of it; one that runs it does so every 5 s
}

// sample returns the last sample if that is younger than Interval, and else queries the database. Callers that come together wait for
// one sample. An error is kept as long as a sample, so that a database in trouble is not asked more often.
func (d *database) sample(ctx context.Context) (sample, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(d.until) {
		return d.last, d.err
	}
	begun := time.Now()
	d.last, d.err = d.read(ctx)
	if d.err != nil {
		d.failures++
	}
	d.last.At, d.last.Took = begun, time.Since(begun)
	d.until = begun.Add(d.c.Interval)
	return d.last, d.err
}

// failed is how many samples have failed.
func (d *database) failed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failures
}

// read queries the database.
func (d *database) read(ctx context.Context) (s sample, err error) {
	// The caller's deadline does not end it: others may wait for the same sample.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.c.Timeout)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := state.Settings(ctx, tx); err != nil {
			return err
		}
		s, err = d.readIn(ctx, tx)
		return err
	})
	if err != nil {
		return sample{}, fmt.Errorf("sample the database: %w", explain(err))
	}
	return s, nil
}

func (d *database) readIn(ctx context.Context, tx pgx.Tx) (s sample, err error) {
	r := state.Reader{DB: tx, Schema: d.c.Schema}
	in := func(part string, err error) error { return fmt.Errorf("sample %s: %w", part, err) }
	log, err := r.Backlog(ctx)
	if err != nil {
		return sample{}, in("the log", err)
	}
	s.Lanes, s.Oldest, s.Waiting, s.OldestWaiting, s.Scheduled = log.Lanes, seconds(log.Oldest), log.Waiting, seconds(log.OldestWaiting), log.Scheduled
	owners, err := r.Owners(ctx)
	if err != nil {
		return sample{}, in("lanes", err)
	}
	for _, owner := range owners {
		if owner.Name == "" {
			s.Unowned++
		}
	}
	relays, err := r.Relays(ctx)
	if err != nil {
		return sample{}, in("relays", err)
	}
	for _, of := range relays {
		s.Relays++
		if of.Trouble != "" {
			s.Troubled++
		}
	}
	segments, err := r.Segments(ctx)
	if err != nil {
		return sample{}, in("segments", err)
	}
	for _, of := range segments {
		if of.Bytes == 0 {
			s.Empty++
		}
	}
	held, err := r.HeldPlaces(ctx)
	if err != nil {
		return sample{}, in("held topics", err)
	}
	s.HeldTopics, s.HeldPartitions = held.Topics, held.Partitions
	stored, err := r.Stored(ctx, maxSampled)
	if err != nil {
		return sample{}, in("waiting events", err)
	}
	s.Stored = most(stored, func(of state.Stored) int { return of.Events })
	letters, _, err := r.Letters(ctx, maxSampled)
	if err != nil {
		return sample{}, in("dead letters", err)
	}
	s.Letters = most(lettersOf(letters), func(of openLetters) int { return of.Open })
	progress, err := r.Progress(ctx)
	if err != nil {
		return sample{}, in("positions", err)
	}
	s.Positions = most(progress, func(of state.Progress) int { return of.Held })
	told, err := r.Backfills(ctx)
	if err != nil {
		return sample{}, in("backfills", err)
	}
	s.Backfills = backfillsOf(told)
	needed, err := r.Dependencies(ctx, 0) // What waits for them is counted elsewhere.
	if err != nil {
		return sample{}, in("dependencies", err)
	}
	s.Needed = neededOf(needed)
	if s.Sizes, err = r.Sizes(ctx); err != nil {
		return sample{}, in("sizes", err)
	}
	return s, nil
}

// most are those consumers, of as many as have figures of their own, that have the most; of equal ones the first by name.
func most[T any](all []T, of func(T) int) []T {
	slices.SortStableFunc(all, func(a, b T) int { return of(b) - of(a) })
	return all[:min(len(all), maxConsumers)]
}

// lettersOf adds up the letters of lanes, in the order of origins and consumers.
func lettersOf(rows []state.Letters) (all []openLetters) {
	for _, row := range rows {
		i := slices.IndexFunc(all, func(of openLetters) bool { return of.Origin == row.Origin && of.Consumer == row.Consumer })
		if i < 0 {
			i, all = len(all), append(all, openLetters{Origin: row.Origin, Consumer: row.Consumer})
		}
		all[i].Open += int(row.Open)
	}
	slices.SortFunc(all, func(a, b openLetters) int {
		return cmp.Or(strings.Compare(a.Origin, b.Origin), strings.Compare(a.Consumer, b.Consumer))
	})
	return all
}

// backfillsOf are those of as many consumers as have figures of their own. Those that are done are left out first.
func backfillsOf(rows []state.Backfill) (all []backfillOf) {
	for _, done := range []bool{false, true} {
		for _, row := range rows {
			if row.Reached() == done {
				all = append(all, backfillOf{row.Consumer, row.Remaining, done, row.Waiting(), time.Duration(row.Told) * time.Second})
			}
		}
	}
	return all[:min(len(all), maxConsumers)]
}

// neededOf are as many dependencies as have figures of their own, those first that are away.
func neededOf(all []state.Dependency) []state.Dependency {
	slices.SortStableFunc(all, func(a, b state.Dependency) int {
		switch {
		case a.Gone() == b.Gone():
			return 0
		case a.Gone():
			return -1
		}
		return 1
	})
	return all[:min(len(all), maxNeeded)]
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// explain adds a remedy to errors that an operator can fix.
func explain(err error) error {
	return sqlschema.Explain(err, "grant the role holdfast_reader of holdfast.RolesSQL to this role (docs/operations.md)")
}
