package main

import (
	"context"
	"fmt"
	"time"
)

// growLatencyByRate commits more and more events a second.
func growLatencyByRate(ctx context.Context, e *env, r *report) ([]curve, error) {
	c := latencyCurve(latencyByRate, "rate", axis{"rate of commits, one event each", "events/s"},
		fmt.Sprintf("One relay, 8 lanes, 8 partitions, payloads of %d bytes, %v at each rate.", payloadBytes, e.latency))
	for _, rate := range e.growth.rates {
		if err := e.addLatencies(ctx, r, &c, float64(rate), rate, payloadBytes); err != nil {
			return nil, fmt.Errorf("%d events/s: %w", rate, err)
		}
	}
	return []curve{c}, nil
}

// growLatencyByPayload commits larger and larger events.
func growLatencyByPayload(ctx context.Context, e *env, r *report) ([]curve, error) {
	c := latencyCurve(latencyByPayload, "payload", axis{"payload of an event", "bytes"},
		fmt.Sprintf("One relay, 8 lanes, 8 partitions, %d events/s, one a transaction, %v at each size.", e.growth.rate, e.latency))
	for _, size := range e.growth.payloads {
		if err := e.addLatencies(ctx, r, &c, float64(size), e.growth.rate, size); err != nil {
			return nil, fmt.Errorf("events of %d bytes: %w", size, err)
		}
	}
	return []curve{c}, nil
}

// latencyQuantiles are the series of a curve of latencies.
var latencyQuantiles = []struct {
	name  string
	share float64
}{{"p99", 0.99}, {"p50", 0.50}}

func latencyCurve(name, against string, x axis, caption string) curve {
	c := curve{
		Name:    name,
		Title:   "Commit to acknowledgement against " + against,
		X:       x,
		Y:       axis{"from COMMIT to the broker's acknowledgement", "ms"},
		Caption: []string{caption},
	}
	for _, q := range latencyQuantiles {
		c.Series = append(c.Series, series{Name: q.name})
	}
	return c
}

// addLatencies measures one run.
func (e *env) addLatencies(ctx context.Context, r *report, c *curve, x float64, rate, payload int) error {
	spans, err := e.latencySpans(ctx, r, rate, payload, polling)
	if err != nil {
		return err
	}
	for i, q := range latencyQuantiles {
		c.Series[i].add(x, milliseconds(quantile(spans, q.share)))
	}
	r.progress("latency at %d events/s of %d bytes: p50 %v, p99 %v", rate, payload, quantile(spans, 0.5).Round(10*time.Microsecond), quantile(spans, 0.99).Round(10*time.Microsecond))
	return nil
}
