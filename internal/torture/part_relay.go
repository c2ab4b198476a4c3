//go:build linux

package torture

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/history"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
)

// lease is how long a lane waits for a relay that gives no sign of life.
const lease = 2 * time.Second

// relay is a relay as a service would run it, with a publisher that writes down what it does.
func (p part) relay(ctx context.Context, pool *pgxpool.Pool, rec *history.Recorder, logger *slog.Logger) error {
	transport := &kafka.Transport{Dial: p.dial(relay.KafkaDial), MetadataTTL: time.Second}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(p.Brokers...), Transport: transport}
	real, err := relay.NewKafka(client, relay.KafkaConfig{ProduceTimeout: 5 * time.Second, MetadataTTL: time.Second})
	if err != nil {
		return err
	}
	pub, err := p.plantedPublisher(real, pool)
	if err != nil {
		return err
	}
	r, err := relay.New(pool, &recordingPublisher{Publisher: pub, rec: rec}, relay.Config{
		Name:         p.name(),
		Lease:        lease,
		Retry:        retry.Policy{Attempts: 10_000, Base: 100 * time.Millisecond, Cap: time.Second}, // no fault lasts for ever: nothing becomes a letter here
		SpillAfter:   3 * time.Second,
		SegmentBytes: 1 << 20, // so that segments are reclaimed under faults
		Logger:       logger,
		Observer: relay.Observer{
			OnClaimed: func(lane int, epoch int64) {
				rec.Add(history.Entry{Op: history.Claim, Lane: lane, Epoch: epoch})
			},
			OnReleased: func(lane int) { rec.Add(history.Entry{Op: history.Lose, Lane: lane, How: history.OK}) },
			OnLost: func(lane int, err error) {
				rec.Add(history.Entry{Op: history.Lose, Lane: lane, How: history.Failed, Text: err.Error()})
			},
			OnDead: func(_ int, e holdfast.Event, _ int64, err error) {
				rec.Add(history.Entry{Op: history.Letter, IDs: []string{e.ID}, Text: err.Error()})
			},
		},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// recordingPublisher writes down what is sent, and what the broker answered.
type recordingPublisher struct {
	relay.Publisher
	rec *history.Recorder
}

func (p *recordingPublisher) Publish(ctx context.Context, events []holdfast.Event) []error {
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	p.rec.Add(history.Entry{Op: history.Publish, IDs: ids})
	errs := p.Publisher.Publish(ctx, events)
	var acknowledged, unknown []string
	var last error
	for i, err := range errs {
		if err == nil {
			acknowledged = append(acknowledged, ids[i])
		} else {
			unknown, last = append(unknown, ids[i]), err
		}
	}
	if len(acknowledged) > 0 {
		p.rec.Add(history.Entry{Op: history.Acknowledge, IDs: acknowledged, How: history.OK})
	}
	if len(unknown) > 0 { // a time-out, a broken connection: the broker may have them
		p.rec.Add(history.Entry{Op: history.Acknowledge, IDs: unknown, How: history.Unknown, Text: last.Error()})
	}
	return errs
}
