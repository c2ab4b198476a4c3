package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast/contrib/franz"
	"github.com/holdfast-go/holdfast/relay"
)

const (
	franzDrain   = "drain by franz-go against kafka-go"
	franzLatency = "p50 at 2,000 events/s by franz-go against kafka-go"
)

// byFranz is how the relay with the publisher of contrib/franz is called.
const byFranz = "relay on franz-go"

var franzFigures = []string{franzDrain, franzLatency}

// newFranzRelay is newRelay with the publisher of contrib/franz.
func newFranzRelay(pool *pgxpool.Pool, brokers []string, o relay.Observer) (*relay.Relay, func(), error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ProducerBatchCompression(kgo.SnappyCompression()))
	if err != nil {
		return nil, nil, err
	}
	publisher, err := franz.NewPublisher(client, franz.PublisherConfig{})
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, err := relay.New(pool, publisher, relay.Config{Observer: o, Logger: logger})
	return r, func() { publisher.Close(); client.Close() }, err
}

// measureFranz compares relays by their publishers: what they drain, and how long an event takes at 2,000 a second.
func measureFranz(ctx context.Context, e *env, r *report) error {
	return errors.Join(measureFranzDrain(ctx, e, r), measureFranzLatency(ctx, e, r))
}

func measureFranzDrain(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	r.progress("franz-go: writing a backlog of %d events", e.drain)
	backlog, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	if err := e.writeBacklog(ctx, backlog, topic, e.drain); err != nil {
		return err
	}
	if err := e.analyze(ctx, backlog); err != nil {
		return err
	}
	var kafkaGo, franzGo samples
	for round := range e.rounds {
		runs := []func() error{
			func() error { return e.drainCopy(ctx, r, backlog, topic, "relay", "", e.drain, &kafkaGo, round) },
			func() error { return e.drainCopy(ctx, r, backlog, topic, byFranz, ".franz", e.drain, &franzGo, round) },
		}
		if round%2 == 1 {
			runs[0], runs[1] = runs[1], runs[0]
		}
		for _, run := range runs {
			if err := run(); err != nil {
				return err
			}
		}
		r.progress("franz-go %d/%d: kafka-go %s, franz-go %s events/s", round+1, e.rounds, number(kafkaGo.speed[round]), number(franzGo.speed[round]))
	}
	kafkaGo.report(r, "drain, by kafka-go")
	franzGo.report(r, "drain, by franz-go")
	r.info(franzDrain, median(ratios(franzGo.speed, kafkaGo.speed)), "x")
	return nil
}

func measureFranzLatency(ctx context.Context, e *env, r *report) error {
	var kafkaGo, franzGo []float64
	for round := range e.rounds {
		for _, w := range []way{polling, withFranz} {
			spans, err := e.latencySpans(ctx, r, latencyRate, payloadBytes, w)
			if err != nil {
				return fmt.Errorf("%s: %w", w, err)
			}
			p50, p99 := quantile(spans, 0.5), quantile(spans, 0.99)
			r.progress("franz-go %d/%d: %s: p50 %s, p99 %s", round+1, e.rounds, w, p50.Round(10*time.Microsecond), p99.Round(10*time.Microsecond))
			if w == withFranz {
				franzGo = append(franzGo, p50.Seconds()*1000)
			} else {
				kafkaGo = append(kafkaGo, p50.Seconds()*1000)
			}
		}
	}
	r.info("p50 at 2,000 events/s, by kafka-go", median(kafkaGo), "ms")
	r.info("p50 at 2,000 events/s, by franz-go", median(franzGo), "ms")
	r.info(franzLatency, median(ratios(franzGo, kafkaGo)), "x")
	return nil
}
