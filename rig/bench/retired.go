package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/waiting"
)

const (
	retiredP99    = "giving up what is parked of a retired topic: p99 of another topic meanwhile"
	retiredTopic  = "retired" // which no broker has
	retiredKeys   = 5000
	retiredReason = "the topic was retired"
	parkedRetired = `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload, attempts, errors)
select (n % $2 % (select lanes from holdfast.installation))::smallint, $3, 'key ' || n % $2, n, 'topic', 'infinity', 'retired ' || n, 'shop', 'order.placed', now(), convert_to(repeat('x', 300), 'UTF8'), 0, '{}'
  from generate_series(1, $1::bigint) n`
	placesTaken = "select setval('holdfast.parked_place', $1::bigint)"
)

var retiredFigures = []string{retiredP99}

// measureRetired gives up the parked events of a topic while 500 events a second of another one are committed, and compares
// their times from COMMIT to acknowledgement with those of the same load a moment before.
func measureRetired(ctx context.Context, e *env, r *report) error {
	database, topic, drop, err := e.scratch(ctx)
	if err != nil {
		return err
	}
	defer drop()
	r.progress("retired topic: %d events parked, %d events/s of another topic", e.retired, latencyRate)
	pool, err := e.pool(ctx, database, 4)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, parkedRetired, e.retired, retiredKeys, retiredTopic); err != nil {
		return fmt.Errorf("park events: %w", err)
	}
	if _, err := pool.Exec(ctx, placesTaken, e.retired); err != nil {
		return fmt.Errorf("park events: %w", err)
	}
	for _, settle := range []string{"vacuum (analyze) holdfast.parked", "checkpoint"} { // else the disk writes one large INSERT meanwhile
		if _, err := pool.Exec(ctx, settle); err != nil {
			return fmt.Errorf("park events: %w", err)
		}
	}
	room, err := waiting.New(pool, waiting.Config{})
	if err != nil {
		return err
	}
	const warmUp = 25 * latencyRate // a broker that has just started answers late for some 20 s
	before := int(e.pinned.Seconds() * latencyRate)
	n := warmUp + before + int(e.giveUp.Seconds()*latencyRate)
	l := newLatencies(e, n)
	var began, ended time.Time
	done := make(chan error, 1)
	l.due = func(number int) {
		if number != warmUp+before {
			return
		}
		began = time.Now()
		go func() {
			given, err := room.GiveUp(ctx, waiting.Filter{Origin: "relay", Topic: retiredTopic}, waiting.Options{By: "bench", Reason: retiredReason})
			if ended = time.Now(); err == nil && given != e.retired {
				err = fmt.Errorf("%d of %d events were given up", given, e.retired)
			}
			done <- err
		}()
	}
	if err := e.exactly(ctx, r, topic, n, "relay", func() error { return l.measure(ctx, e, database, topic) }); err != nil {
		return err
	}
	if err := <-done; err != nil {
		return err
	}
	free, held := l.between(warmUp, l.sent[warmUp], began), l.between(warmUp+before, began, ended)
	r.info(fmt.Sprintf("giving up %d events", e.retired), ended.Sub(began).Seconds(), "s")
	r.info("commit to acknowledgement of another topic before that, p99", milliseconds(free[len(free)*99/100]), "ms")
	r.info("the same meanwhile, p50", milliseconds(held[len(held)/2]), "ms")
	r.goal(retiredP99, milliseconds(held[len(held)*99/100]), "ms", below(500))
	r.info("the same, max", milliseconds(held[len(held)-1]), "ms")
	return nil
}

// between are the sorted latencies of the events from a number on that were sent between two moments.
func (l *latencies) between(number int, from, to time.Time) (spans []time.Duration) {
	for ; number < len(l.sent); number++ {
		if at := l.sent[number]; !at.Before(from) && at.Before(to) {
			spans = append(spans, l.began.Add(time.Duration(l.acknowledged[number].Load())).Sub(at))
		}
	}
	slices.Sort(spans)
	return spans
}
