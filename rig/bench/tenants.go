package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

const (
	besideTenant = "a quiet tenant's p99 beside a noisy one's backlog, tenants told apart, against not told apart"
	besideP50    = "a quiet tenant's p50 beside a noisy one's backlog, tenants told apart, against alone"
	besideP99    = "a quiet tenant's p99 beside a noisy one's backlog, tenants told apart, against alone"

	quietEvery = 20 * time.Millisecond // 50 events/s
	quietLeast = 200                   // events of the quiet tenant alone
)

var tenantFigures = []string{besideTenant, besideP50, besideP99}

// measureTenants lets a relay run for one tenant that writes 50 events/s, and takes the times from the COMMIT of its events to their
// acknowledgement: alone, and after another tenant has committed a backlog in one transaction, until that is published. It does so with
// TenantSeparator and without.
func measureTenants(ctx context.Context, e *env, r *report) error {
	var p50, p99 [2]float64
	for i, c := range []struct{ name, separator string }{{"told apart", "/"}, {"not told apart", ""}} {
		m, err := e.quietTenant(ctx, c.separator, e.tenants)
		if err != nil {
			return fmt.Errorf("tenants: %s: %w", c.name, err)
		}
		alone50, alone99 := milliseconds(quantile(m.alone, 0.5)), milliseconds(quantile(m.alone, 0.99))
		beside50, beside99 := milliseconds(quantile(m.beside, 0.5)), milliseconds(quantile(m.beside, 0.99))
		p50[i], p99[i] = beside50, beside99
		name := fmt.Sprintf("a quiet tenant, %s: ", c.name)
		r.info(name+"alone, p50", alone50, "ms")
		r.info(name+"alone, p99", alone99, "ms")
		r.info(name+"beside a backlog, p50", beside50, "ms")
		r.info(name+"beside a backlog, p99", beside99, "ms")
		r.info(name+"the backlog lasts", m.lasts.Seconds(), "s")
		r.progress("tenants: %s: p50 %.1f and %.1f ms, p99 %.1f and %.1f ms of %d and %d events; the backlog lasts %v", c.name,
			alone50, beside50, alone99, beside99, len(m.alone), len(m.beside), m.lasts.Round(time.Millisecond))
		if c.separator != "" {
			r.goal(besideP50, beside50/alone50, "x", atMost(2))
			r.goal(besideP99, beside99/alone99, "x", atMost(2))
		}
	}
	r.goal(besideTenant, p99[0]/p99[1], "x", atMost(0.5))
	return nil
}

// quietTimes are the sorted times of a quiet tenant's events, alone and beside another's backlog, and how long that lasted.
type quietTimes struct {
	alone, beside []time.Duration
	lasts         time.Duration
}

func (e *env) quietTenant(ctx context.Context, separator string, backlog int) (m quietTimes, err error) {
	database, topic, drop, err := e.scratch(ctx)
	if err != nil {
		return m, err
	}
	defer drop()
	pool, err := e.pool(ctx, database, 0)
	if err != nil {
		return m, err
	}
	defer pool.Close()
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: e.kafka.Brokers}, kafkago.PublisherConfig{Compression: codec})
	if err != nil {
		return m, err
	}
	defer publisher.Close()
	var warm []holdfast.Event // the first call of a topic takes long
	for n := range 200 {
		warm = append(warm, holdfast.Event{
			ID:      fmt.Sprint("warm ", n),
			Topic:   topic,
			Type:    eventType,
			Key:     fmt.Sprint("warm ", n),
			Payload: []byte("p"),
			Time:    time.Now(),
		})
	}
	if err := errors.Join(publisher.Publish(ctx, warm)...); err != nil {
		return m, err
	}
	var mu sync.Mutex
	acknowledged, noisy := map[string]time.Time{}, 0
	observer := relay.Observer{OnPublish: func(ctx context.Context, p relay.Publishing) (context.Context, func([]error)) {
		ids := make([]string, len(p.Events))
		for i, event := range p.Events {
			ids[i] = event.ID
		}
		return ctx, func(errs []error) {
			mu.Lock()
			defer mu.Unlock()
			for i, id := range ids {
				if errs[i] == nil && id[:5] == "noisy" {
					noisy++
				} else if _, known := acknowledged[id]; errs[i] == nil && !known {
					acknowledged[id] = time.Now()
				}
			}
		}
	}}
	rel, err := relay.New(pool, publisher, relay.Config{
		TenantSeparator: separator,
		Observer:        observer,
		Logger:          slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return m, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- rel.Run(running) }()
	defer stop()
	committed := map[string]time.Time{}
	written := 0
	// quiet writes events of the quiet tenant until enough says so, and returns their times when all are acknowledged.
	quiet := func(enough func(n int) bool) (spans []time.Duration, err error) {
		ticks := time.NewTicker(quietEvery)
		defer ticks.Stop()
		first := written
		for ; !enough(written - first); written++ {
			id := fmt.Sprint("quiet ", written)
			if _, err := pool.Exec(ctx, "select holdfast.write($1, $2, 'bench', 'p', id => $3)", topic, fmt.Sprint("quiet/", written%50), id); err != nil {
				return nil, err
			}
			committed[id] = time.Now()
			select {
			case <-ticks.C:
			case err := <-ended:
				return nil, errors.Join(errors.New("the relay ended"), err)
			}
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			n := len(acknowledged)
			mu.Unlock()
			if n == written {
				break
			}
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("%d of %d events of the quiet tenant are acknowledged", n, written)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for n := first; n < written; n++ {
			id := fmt.Sprint("quiet ", n)
			spans = append(spans, max(0, acknowledged[id].Sub(committed[id])))
		}
		slices.Sort(spans)
		return spans, nil
	}
	if _, err := quiet(func(n int) bool { return n >= quietLeast/4 }); err != nil { // a relay that has just started
		return m, err
	}
	if m.alone, err = quiet(func(n int) bool { return n >= quietLeast }); err != nil {
		return m, err
	}
	if _, err := pool.Exec(ctx, `select count(holdfast.write($1, 'noisy/' || n % 200, 'bench', convert_to(repeat(md5(n::text), 9), 'UTF8'), id => 'noisy ' || n))
		from generate_series(1, $2::integer) n`, topic, backlog); err != nil {
		return m, err
	}
	began := time.Now()
	m.beside, err = quiet(func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		if noisy >= backlog && m.lasts == 0 {
			m.lasts = time.Since(began)
		}
		return m.lasts > 0 && n > 0
	})
	if err != nil {
		return m, err
	}
	stop()
	return m, <-ended
}
