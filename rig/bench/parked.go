package main

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/lane"
)

const (
	parkedManyKeys = "drain of events that wait, of 10,000 keys"
	parkedOneKey   = "drain of events that wait, of one key"
)

var parkedFigures = []string{parkedManyKeys, parkedOneKey}

// parkedRows has each event in the lane of its key, as a relay would have parked it: the first of a key is due, the others wait for it. $1
// events, $2 the topic, $3 lanes of keys.
const parkedRows = `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload, attempts, errors)
select ($3::smallint[])[1 + n % cardinality($3::smallint[])], $2::text, 'key ' || n % cardinality($3::smallint[]), n, case when n < cardinality($3::smallint[]) then 'record' else 'follows' end,
       case when n < cardinality($3::smallint[]) then now() else 'infinity' end, 'parked ' || n, 'shop', 'order.placed', now(), convert_to(repeat('x', 300), 'UTF8'), 0, '{}'
  from generate_series(0, $1::bigint - 1) n`

// measureParked lets a relay drain what waits in it, once nothing keeps it from that any more.
func measureParked(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	for _, c := range []struct {
		name         string
		keys, events int
	}{{parkedManyKeys, 10_000, e.parked}, {parkedOneKey, 1, e.parked / 10}} {
		var speeds samples
		for round := range e.rounds {
			if err := e.drainParked(ctx, r, topic, c.keys, c.events, &speeds); err != nil {
				return err
			}
			r.progress("%s %d/%d: %s events/s", c.name, round+1, e.rounds, number(speeds.speed[round]))
		}
		speeds.report(r, c.name)
	}
	return nil
}

func (e *env) drainParked(ctx context.Context, r *report, topic string, keys, events int, speeds *samples) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	pool, err := e.pool(ctx, database, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	var lanes int
	if err := pool.QueryRow(ctx, "select lanes from holdfast.installation").Scan(&lanes); err != nil {
		return fmt.Errorf("read the number of lanes: %w", err)
	}
	of := make([]int16, keys)
	for key := range of {
		of[key] = int16(lane.Of(fmt.Sprint("key ", key), "", lanes))
	}
	if _, err := pool.Exec(ctx, parkedRows, events, topic, of); err != nil {
		return fmt.Errorf("park events: %w", err)
	}
	if err := e.analyze(ctx, database); err != nil {
		return err
	}
	return e.exactly(ctx, r, topic, events, "relay", func() error {
		return speeds.take(e, events, func() (float64, error) { return e.relayDrain(ctx, database, events) })
	})
}
