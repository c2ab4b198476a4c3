package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
)

const (
	hotFew    = "other keys beside a key with 1,000 stored events, against without it"
	hotMany   = "other keys beside a key with 100,000 stored events, against without it"
	hotInLog  = "other keys beside a key with 3,000 events in the log and none stored, against without it"
	hotBurst  = 3000 // events of the hot key before the first of another key
	hotKeys   = 200  // others
	hotTakes  = 5 * time.Millisecond
	hotColds  = 5 // one event of the hot key for so many others
	hotName   = "hot"
	hotStored = `
with recorded as (
  insert into holdfast.inbox (consumer, source, event_id, topic, hash, result)
  select 'bench', 'shop/orders', 'stored ' || n, $1, sha256(int8send(n)), 'stored' from generate_series(1, $2::bigint) n)
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, next_at)
select 'bench', $1, '` + hotName + `', nextval('holdfast.stored_place'), 'shop/orders', 'stored ' || n, 'order.placed', now(), convert_to(repeat(md5(n::text), 9), 'UTF8'), sha256(int8send(n)),
       case when n = 1 then now() else 'infinity' end
  from generate_series(1, $2::bigint) n`
)

var hotFigures = []string{hotFew, hotMany, hotInLog}

// measureHotKey lets a consumer, whose handler takes five milliseconds, read a partition with events of many keys: alone, with one of a
// hot key for every five of them while many of it are stored, and after a burst of the hot key. The speed is that of the other keys, from
// the first event of any key to the last of theirs.
func measureHotKey(ctx context.Context, e *env, r *report) error {
	topics := map[string]string{}
	for _, log := range []struct {
		name         string
		burst, colds int
	}{{"alone", 0, 0}, {"mixed", 0, hotColds}, {"burst", hotBurst, hotColds}} {
		topic, drop, err := e.hotTopic(ctx, log.burst, log.colds)
		if err != nil {
			return err
		}
		defer drop()
		topics[log.name] = topic
	}
	cases := []struct {
		log    string
		stored int
		figure string
	}{{"alone", 0, ""}, {"mixed", 1000, hotFew}, {"mixed", 100_000, hotMany}, {"burst", 0, hotInLog}}
	speeds := make([][]float64, len(cases))
	for round := range e.rounds {
		for i := range cases {
			at := (i + round) % len(cases)
			speed, hot, err := e.consumeHot(ctx, topics[cases[at].log], cases[at].stored)
			if err != nil {
				return err
			}
			speeds[at] = append(speeds[at], speed)
			r.progress("hot key %d/%d: %s, %d stored: %s events/s of other keys, %s of the hot key", round+1, e.rounds, cases[at].log, cases[at].stored, number(speed), number(hot))
		}
	}
	r.info("other keys without a hot key (its events are not stored)", median(speeds[0]), "events/s")
	for i, c := range cases[1:] {
		r.ratio(c.figure, speeds[i+1], speeds[0], "events/s", atLeast(0.8))
	}
	return nil
}

// hotTopic makes a topic of one partition: so many events of the hot key, and then those of other keys, with one of the hot key after
// each colds of them.
func (e *env) hotTopic(ctx context.Context, burst, colds int) (topic string, drop func(), err error) {
	e.count++
	topic = fmt.Sprintf("holdfast-bench-%d-%d", os.Getpid(), e.count)
	if err := e.kafka.CreateTopic(ctx, topic, 1, nil); err != nil {
		return "", nil, err
	}
	drop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = e.kafka.DeleteTopic(ctx, topic)
	}
	r := random(7, 0)
	var events []holdfast.Event
	add := func(key string) {
		events = append(events, holdfast.Event{
			ID:      fmt.Sprint(len(events)),
			Topic:   topic,
			Source:  eventSource,
			Type:    eventType,
			Key:     key,
			Payload: payload(r, payloadBytes),
			Time:    time.Now(),
		})
	}
	for range burst {
		add(hotName)
	}
	for n := range e.cold {
		add(fmt.Sprint("cold ", n%hotKeys))
		if colds > 0 && n%colds == 0 {
			add(hotName)
		}
	}
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: e.kafka.Brokers}, kafkago.PublisherConfig{})
	if err != nil {
		return "", nil, errors.Join(err, ctx.Err())
	}
	defer publisher.Close()
	for len(events) > 0 {
		n := min(len(events), 1000)
		if err := errors.Join(publisher.Publish(ctx, events[:n])...); err != nil {
			drop()
			return "", nil, fmt.Errorf("publish: %w", err)
		}
		events = events[n:]
	}
	return topic, drop, nil
}

// consumeHot reads a topic until the last event of the other keys is handled.
func (e *env) consumeHot(ctx context.Context, topic string, stored int) (cold, hot float64, err error) {
	database, err := e.migrated(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	pool, err := e.pool(ctx, database, 2*consumerWorkers+4)
	if err != nil {
		return 0, 0, err
	}
	defer pool.Close()
	if stored > 0 {
		if _, err := pool.Exec(ctx, hotStored, topic, stored); err != nil {
			return 0, 0, fmt.Errorf("store events of the hot key: %w", err)
		}
		if _, err := pool.Exec(ctx, "vacuum (analyze) holdfast.stored"); err != nil {
			return 0, 0, err
		}
	}
	var colds, hots atomic.Int64
	var first atomic.Pointer[time.Time]
	done := make(chan time.Time, 1)
	in, err := inbox.New(pool, inbox.Config{
		Consumer: "bench", MaxStoredKey: -1,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observer: inbox.Observer{OnReceive: func(received inbox.Received) {
			if received.Outcome != inbox.Handled {
				return
			}
			now := time.Now()
			first.CompareAndSwap(nil, &now)
			if received.Event.Key == hotName {
				hots.Add(1)
			} else if colds.Add(1) == int64(e.cold) {
				done <- now
			}
		}},
	})
	if err != nil {
		return 0, 0, err
	}
	in.Handle(eventType, func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error {
		select {
		case <-time.After(hotTakes):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	group, err := kafkago.NewGroup(kafkago.Connection{Brokers: e.kafka.Brokers}, kafkago.GroupConfig{GroupID: database, Topics: []string{topic}})
	if err != nil {
		return 0, 0, err
	}
	consuming, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() {
		err := in.Consume(consuming, group)
		ended <- err
		ended <- err
	}()
	end, err := await(ctx, done, ended, func() int64 { return colds.Load() + hots.Load() }, e.cold)
	of := hots.Load()
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return 0, 0, err
	}
	took := end.Sub(*first.Load()).Seconds()
	return float64(e.cold) / took, float64(of) / took, nil
}
