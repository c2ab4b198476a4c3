package main

import (
	"context"
	"errors"
	"fmt"
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

var franzRelay = contestant{byFranz, ".franz", (*env).franzDrain, (*env).published}

// franzDrain is relayDrain with the publisher of contrib/franz.
func (e *env) franzDrain(ctx context.Context, database string, events int) (float64, error) {
	return e.drainWith(ctx, newFranzRelay, database, 1, 0, events)
}

// franzOptions are those of a client.
func franzOptions(brokers []string) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.ProducerBatchCompression(kgo.SnappyCompression())}
}

// newFranzRelay is newRelay with the publisher of contrib/franz.
func newFranzRelay(pool *pgxpool.Pool, brokers []string, o relay.Observer) (*relay.Relay, func(), error) {
	client, err := kgo.NewClient(franzOptions(brokers)...)
	if err != nil {
		return nil, nil, err
	}
	publisher, err := franz.NewPublisher(client, franz.PublisherConfig{})
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	r, err := newRelayBy(pool, publisher, o)
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
	kafkaGo, franzGo, err := e.drainInTurns(ctx, r, "franz-go", topic, usual(topic), e.drain, usualRelay, franzRelay)
	if err != nil {
		return err
	}
	kafkaGo.report(r, "drain, by kafka-go")
	franzGo.report(r, "drain, by franz-go")
	r.ratio(franzDrain, franzGo.speed, kafkaGo.speed, "events/s", noGoal)
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
	r.ratio(franzLatency, franzGo, kafkaGo, "ms", noGoal)
	return nil
}
