package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

const newTopicMost = "first event to a topic that the relay has not met, commit to acknowledgement, slowest of 20"

var newTopicFigures = []string{newTopicMost}

// measureNewTopics commits one event to each of some topics that exist and that the relay has never published to.
func measureNewTopics(ctx context.Context, e *env, r *report) error {
	const topics = 20
	database, first, drop, err := e.scratch(ctx)
	if err != nil {
		return err
	}
	defer drop()
	names := []string{first}
	for len(names) < topics+1 {
		name, drop, err := e.topic(ctx)
		if err != nil {
			return err
		}
		defer drop()
		names = append(names, name)
	}
	pool, err := e.pool(ctx, database, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	acknowledged := make(chan time.Time, 1)
	rel, closeIdle, err := newRelay(pool, e.kafka.Brokers, relay.Observer{OnPublished: func(int, []holdfast.Event) { acknowledged <- time.Now() }})
	if err != nil {
		return err
	}
	defer closeIdle()
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- rel.Run(running) }()
	r.progress("new topics: one event to each of %d", topics)
	var spans []time.Duration
	for i, name := range names {
		var committing time.Time
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			defer func() { committing = time.Now() }()
			return outbox.Write(ctx, tx, holdfast.Event{
				Topic:   name,
				Source:  eventSource,
				Type:    eventType,
				Key:     name,
				Payload: payload(random(4, i), payloadBytes),
			})
		})
		if err != nil {
			return err
		}
		select {
		case at := <-acknowledged:
			if i > 0 { // The first one also waits for the relay's lanes and its connections.
				spans = append(spans, at.Sub(committing))
			}
		case err := <-ended:
			return fmt.Errorf("the relay ended: %w", err)
		case <-time.After(stalled):
			return fmt.Errorf("the first event to topic %s was not published in %v", name, stalled)
		}
	}
	stop()
	slices.Sort(spans)
	r.info("first event to a topic that the relay has not met, p50", milliseconds(quantile(spans, 0.5)), "ms")
	r.goal(newTopicMost, milliseconds(spans[len(spans)-1]), "ms", atMost(300))
	return <-ended
}
