//go:build linux

package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// lease is how long a lane waits for a relay that gives no sign of life.
const lease = 2 * time.Second

// relay is a relay as a service would run it, with a publisher that records what it does.
func (p part) relay(ctx context.Context, pool *pgxpool.Pool, rec *history.Recorder, logger *slog.Logger) error {
	real, err := kafkago.NewPublisher(kafkago.Connection{Brokers: p.Brokers, Dial: p.dial(kafkago.Dial)},
		kafkago.PublisherConfig{ProduceTimeout: 5 * time.Second, MetadataTTL: time.Second})
	if err != nil {
		return err
	}
	defer real.Close()
	pub, err := p.buggyPublisher(real, pool)
	if err != nil {
		return err
	}
	r, err := relay.New(pool, recording(pub, rec), relay.Config{
		Name:  p.name(),
		Lease: lease,
		Retry: retry.Policy{
			Attempts: 10_000,
			Base:     100 * time.Millisecond,
			Cap:      time.Second,
		}, // no fault lasts for ever: nothing becomes a letter here
		ParkAfter:    3 * time.Second,
		SegmentBytes: 1 << 20, // so that segments are reclaimed under faults
		Logger:       logger,
		Observer: relay.Observer{
			OnClaimed: func(lane int, epoch int64) {
				rec.Add(history.Entry{Op: history.Claim, Lane: lane, Epoch: epoch})
			},
			OnReleased: func(lane int) {
				rec.Add(history.Entry{
					Op:   history.Lose,
					Lane: lane,
					How:  history.OK,
				})
			},
			OnLost: func(lane int, _ bool, err error) {
				rec.Add(history.Entry{
					Op:   history.Lose,
					Lane: lane,
					How:  history.Failed,
					Text: err.Error(),
				})
			},
			OnDead: func(d relay.DeadLettered) {
				rec.Add(history.Entry{
					Op:   history.Letter,
					IDs:  []string{d.Event.ID},
					Text: d.Err.Error(),
				})
			},
		},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// recording is pub, which records what it does, and says where events go if pub does.
func recording(pub relay.Publisher, rec *history.Recorder) relay.Publisher {
	recorded := &recordingPublisher{Publisher: pub, rec: rec}
	if knows, ok := pub.(publish.Partitioner); ok {
		return struct {
			*recordingPublisher
			partitioner
		}{recorded, knows}
	}
	return recorded
}

// partitioner is what a publish.Partitioner has beside Publish.
type partitioner interface {
	Partition(e holdfast.Event) (partition, partitions int)
}

// recordingPublisher records what is sent, and what the broker answered.
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
	answers := map[history.Result]*history.Entry{}
	for i, err := range errs {
		how, text := answerOf(err)
		if answers[how] == nil {
			answers[how] = &history.Entry{Op: history.Acknowledge, How: how, Text: text}
		}
		answers[how].IDs = append(answers[how].IDs, ids[i])
	}
	for _, how := range []history.Result{history.OK, history.Failed, history.Unknown} {
		if e := answers[how]; e != nil {
			p.rec.Add(*e)
		}
	}
	return errs
}

// answerOf is what a publication's error says about its record. A record or a topic that the broker refuses is not in its
// log; after a time-out, or on a broken connection, nobody knows.
func answerOf(err error) (how history.Result, text string) {
	if err == nil {
		return history.OK, ""
	}
	switch publish.FaultOf(err) {
	case publish.FaultRecord, publish.FaultTopic:
		return history.Failed, err.Error()
	default:
		return history.Unknown, err.Error()
	}
}
