package metrics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// ofDatabase are the instruments of ObserveDatabase.
var ofDatabase = []Instrument{
	gauge("holdfast.backlog.lanes", "{lane}", "Lanes with events that no relay has published"),
	gauge("holdfast.backlog.age", "s", "Age of the oldest event that no relay has published"),
	gauge("holdfast.backlog.waiting", "{event}", "Events that wait in relays"),
	gauge("holdfast.backlog.waiting.age", "s", "How long the oldest of them has waited"),
	gauge("holdfast.backlog.scheduled", "{lane}", "Lanes with scheduled events that are due and not in the log"),
	gauge("holdfast.waiting.events", "{event}", "Events that wait in a consumer", "consumer"),
	gauge("holdfast.waiting.keys", "{key}", "Topics and keys that wait", "consumer"),
	gauge("holdfast.waiting.age", "s", "How long the oldest of them has waited", "consumer"),
	gauge("holdfast.waiting.no_handler", "{event}", "Waiting events of types that no running node of the consumer handles", "consumer"),
	gauge("holdfast.letters.open", "{event}", "Dead letters that a person has to decide on", "origin", "consumer"),
	gauge("holdfast.table.size", "By", "Size of a table with its indexes; the segments of the log are one", "table"),
	gauge("holdfast.sample.age", "s", "How old the figures of the database are"),
	gauge("holdfast.sample.duration", "s", "How long the queries for them took"),
	gauge("holdfast.lane.unowned", "{lane}", "Lanes that no relay owns"),
	gauge("holdfast.relay.running", "{relay}", "Relays that run"),
	gauge("holdfast.relay.troubled", "{relay}", "Running relays that get no answer from the broker"),
	gauge("holdfast.log.empty", "{segment}", "Segments of the log that are empty; while there is none, the log grows"),
	gauge("holdfast.backlog.held", "{place}", "Topics, and partitions, that take no events, which wait for them", "fault"),
	gauge("holdfast.consumer.partitions", "{partition}", "Partitions in which a consumer has a position", "consumer"),
	gauge("holdfast.consumer.held", "{partition}", "Partitions that are held because their log does not hold the next offset", "consumer"),
	gauge("holdfast.backfill.remaining", "{offset}", "Offsets that a consumer's last backfill has left, for a week; 0 when it is done", "consumer"),
	gauge("holdfast.backfill.waiting", "{backfill}", "1 while a node runs a consumer's backfill and it waits: the consumer is paused, or too many of its events wait", "consumer"),
	gauge("holdfast.backfill.age", "s", "How old the figures of a consumer's backfill are that is not done; above 30 s no node runs it", "consumer"),
	gauge("holdfast.dependency.away", "{dependency}", "1 while something that handlers of a consumer need is away; 0 when it is back, or when no event has tried it for 5 minutes", "consumer", "dependency"),
	total("holdfast.sample.failures", "{sample}", "Samples of the database that failed: their figures are missing"),
}

// ObserveDatabase makes gauges of what only the database knows: what is not published, what waits or is a dead letter, and how large the
// tables are. With DatabaseConfig.EndsFunc it also makes gauges of how far consumers are from the ends of their partitions, in offsets. It
// returns an error if the configuration is wrong, which lists every problem of it, or if a gauge could not be made. Then nothing is
// observed.
//
// A sample is eleven short queries, once in DatabaseConfig.Interval, within DatabaseConfig.Timeout, however often the Meter asks. Counts
// end at 100,000 rows, at 50 consumers, at 50 dependencies, and at 1,000 topics and partitions. A sample that fails is counted, and its gauges are missing.
// The role of the pool needs what holdfast.RolesSQL grants to holdfast_reader. Every process reports the same values, so one of them is
// enough.
//
// A partition counts in the lag from the first time that a node of the consumer has had it. What was stored for later counts as read:
// holdfast.waiting.events has it.
//
// Call stop before you close the pool. It may be called from any goroutine.
func ObserveDatabase(meter Meter, pool *pgxpool.Pool, c DatabaseConfig) (stop func() error, err error) {
	d, err := newDatabase(pool, c)
	if err != nil {
		return nil, err
	}
	stopDatabase, err := meter.Observe(ofDatabase, d.readings)
	if err != nil {
		return nil, fmt.Errorf("observe the database: %w", err)
	}
	if c.EndsFunc == nil {
		return stopDatabase, nil
	}
	l := &lagging{
		d:      d,
		ends:   c.EndsFunc,
		topics: &bounded{most: maxTopics, none: "unnamed", rest: "other"},
	}
	stopLag, err := meter.Observe(ofLag, l.readings)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("observe the lag of consumers: %w", err), stopDatabase())
	}
	return func() error { return errors.Join(stopLag(), stopDatabase()) }, nil
}

// readings are a sample, and how many have failed, as values of ofDatabase.
func (d *database) readings(ctx context.Context) ([]Reading, error) {
	s, err := d.sample(ctx)
	failed := Reading{Index: len(ofDatabase) - 1, Value: float64(d.failed())}
	if err != nil {
		return []Reading{failed}, nil // It is what failures is for: the other metrics of the process are still wanted.
	}
	return append(s.readings(), failed), nil
}

// readings are a sample as values of ofDatabase.
func (s sample) readings() []Reading {
	all := []Reading{
		{0, float64(s.Lanes), nil}, {1, s.Oldest.Seconds(), nil}, {2, float64(s.Waiting), nil}, {3, s.OldestWaiting.Seconds(), nil}, {4, float64(s.Scheduled), nil},
		{11, max(time.Since(s.At).Seconds(), 0), nil}, {12, s.Took.Seconds(), nil},
		{13, float64(s.Unowned), nil}, {14, float64(s.Relays), nil}, {15, float64(s.Troubled), nil}, {16, float64(s.Empty), nil},
		{17, float64(s.HeldTopics), []string{string(publish.FaultTopic)}}, {17, float64(s.HeldPartitions), []string{string(publish.FaultPartition)}},
	}
	for _, of := range s.Stored {
		who := []string{of.Consumer}
		all = append(all, Reading{5, float64(of.Events), who}, Reading{6, float64(of.Keys), who}, Reading{7, of.Oldest, who}, Reading{8, float64(of.NoHandler), who})
	}
	for _, of := range s.Letters {
		all = append(all, Reading{9, float64(of.Open), []string{of.Origin, of.Consumer}})
	}
	for _, of := range s.Positions {
		who := []string{of.Consumer}
		all = append(all, Reading{18, float64(of.Partitions), who}, Reading{19, float64(of.Held), who})
	}
	for _, of := range s.Backfills {
		who, waiting := []string{of.Consumer}, 0.0
		if of.Waiting {
			waiting = 1
		}
		all = append(all, Reading{20, float64(of.Remaining), who}, Reading{21, waiting, who})
		if !of.Done {
			all = append(all, Reading{22, of.Told.Seconds(), who})
		}
	}
	for _, of := range s.Needed {
		away := 0.0
		if of.Gone() {
			away = 1
		}
		all = append(all, Reading{23, away, []string{of.Consumer, of.Name}})
	}
	for _, of := range s.Sizes {
		all = append(all, Reading{10, float64(of.Bytes), []string{of.Table}})
	}
	return all
}

// ofPool are the instruments of ObservePool.
var ofPool = []Instrument{
	gauge("db.client.connection.count", "{connection}", "Connections of a pool, by whether they are used", labelPool, labelState),
	gauge("db.client.connection.max", "{connection}", "Connections that a pool may have", labelPool),
	total("holdfast.pool.acquired", "{connection}", "Connections that were taken from the pool", labelPool),
	total("holdfast.pool.waits", "{connection}", "Connections that were waited for, because none was idle", labelPool),
	total("holdfast.pool.wait.time", "s", "Time that was spent waiting for connections", labelPool),
	total("holdfast.pool.canceled", "{connection}", "Waits for a connection that ended without one", labelPool),
}

// ObservePool makes gauges and counters of a pool: its connections, and how long they are waited for. name tells pools of a process
// apart; it is a label, so it must be one of few.
func ObservePool(meter Meter, name string, pool *pgxpool.Pool) (stop func() error, err error) {
	return meter.Observe(ofPool, func(context.Context) ([]Reading, error) {
		s, who := pool.Stat(), []string{name}
		return []Reading{
			{0, float64(s.AcquiredConns()), []string{name, "used"}}, {0, float64(s.IdleConns()), []string{name, "idle"}}, {1, float64(s.MaxConns()), who},
			{2, float64(s.AcquireCount()), who}, {3, float64(s.EmptyAcquireCount()), who}, {4, s.EmptyAcquireWaitTime().Seconds(), who}, {5, float64(s.CanceledAcquireCount()), who},
		}, nil
	})
}
