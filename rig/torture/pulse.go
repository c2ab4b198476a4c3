//go:build linux

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// pulse is what a COMMIT and an acknowledgement take while nothing of holdfast is between, again and again. It tells a
// machine that is busy with something else from a relay that lets events wait.
type pulse struct {
	stop func()

	mu    sync.Mutex
	beats []beat
}

type beat struct {
	at   time.Time
	took time.Duration // unanswered, if there was an error
}

const (
	beatEvery  = 100 * time.Millisecond
	unanswered = 10 * time.Second
)

// feelPulse begins to beat, until stop is called.
func (g *ground) feelPulse(ctx context.Context) *pulse {
	ctx, cancel := context.WithCancel(ctx)
	p := &pulse{}
	var ended sync.WaitGroup
	p.stop = func() {
		cancel()
		ended.Wait()
	}
	ended.Go(func() {
		for sleep(ctx, beatEvery) {
			began := time.Now()
			err := g.beat(ctx)
			if ctx.Err() != nil {
				return
			}
			b := beat{began, time.Since(began)}
			if err != nil {
				b.took = unanswered
			}
			p.mu.Lock()
			p.beats = append(p.beats, b)
			p.mu.Unlock()
		}
	})
	return p
}

func (g *ground) beat(ctx context.Context) error {
	if _, err := g.admin.Exec(ctx, "select pg_logical_emit_message(true, 'torture', 'a commit that is flushed')"); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	res, err := g.kafka.Client.Produce(ctx, &kafka.ProduceRequest{
		Topic:        g.control,
		RequiredAcks: kafka.RequireAll,
		Records:      kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("beat"))}),
	})
	if err == nil {
		err = res.Error
	}
	return err
}

// slowest is the longest beat that began in a span.
func (p *pulse) slowest(span [2]time.Time) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.beats {
		if within(span, b.at) {
			longest = max(longest, b.took)
		}
	}
	return longest
}
