package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/inbox"
)

// story is what the chapters share.
type story struct {
	stories.Story
	config config

	provider provider
	billing  *inbox.Inbox
	orders   int // received

	mu   sync.Mutex
	said []string // by the handler of orders: an order, and how its call went
}

func (s *story) start(ctx context.Context) error {
	if err := s.Start(ctx, "dependencies", s.config.DatabaseURL, tables); err != nil {
		return err
	}
	s.provider.charges = map[string]int{}
	if err := s.provider.start(); err != nil {
		return err
	}
	s.AtEnd(func() { s.provider.stop() })
	in, err := newBilling(s.Pool, s.Schema, "http://"+s.provider.address, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s.billing = in
	in.Use(s.watch)
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = in.Run(ctx) // Its error would leave events that the check finds.
	}()
	s.AtEnd(func() { stop(); <-ended })
	s.Say("holdfast: a payment provider that is away\n\n%s\n", s.AboutPostgres)
	return s.receive(ctx, "order.placed", inbox.Handled)
}

// watch writes down what the handler of orders returns.
func (s *story) watch(next inbox.Handler) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		err := next(ctx, tx, e)
		if e.Type != "order.placed" {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil {
			s.said = append(s.said, e.ID+" is charged")
			return nil
		}
		s.said = append(s.said, fmt.Sprintf("%s tries it: %v", e.ID, err))
		if s.config.careless {
			return errors.New(err.Error())
		}
		return err
	}
}

// receive gives an event to the service.
func (s *story) receive(ctx context.Context, eventType string, want inbox.Outcome) error {
	e := holdfast.Event{Source: "shop", Type: eventType, Topic: "shop", Key: fmt.Sprintf("customer %d", s.orders%3)}
	e.ID = "welcome " + fmt.Sprint(s.orders)
	if eventType == "order.placed" {
		s.orders++
		e.ID = fmt.Sprintf("order %d", s.orders)
		e.Payload, _ = json.Marshal(order{e.ID, 1000 * s.orders}) // A string and a number always can be.
	} else {
		e.Key = "new customer"
	}
	out, err := s.billing.Receive(ctx, e)
	if err != nil {
		return err
	}
	s.Say("    %s is %s", e.ID, out)
	if out != want && !s.config.careless {
		return fmt.Errorf("%s is %s, not %s", e.ID, out, want)
	}
	return nil
}

// outage has two orders and a customer come while the provider is away, and waits until an order has found it so.
func (s *story) outage(ctx context.Context) error {
	s.mu.Lock()
	s.said = nil
	s.mu.Unlock()
	for _, e := range []struct {
		eventType string
		want      inbox.Outcome
	}{{"order.placed", inbox.Stored}, {"order.placed", inbox.Stored}, {"customer.joined", inbox.Handled}} {
		if err := s.receive(ctx, e.eventType, e.want); err != nil {
			return err
		}
	}
	return s.await(ctx, 1)
}

// await waits until the handler of orders has ended so often, and says how.
func (s *story) await(ctx context.Context, times int) error {
	err := stories.Await(ctx, func(context.Context) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.said) >= times || s.config.careless, nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.said {
		s.Say("    %s", text)
	}
	return err
}

func (s *story) busy(ctx context.Context) error {
	s.Say("\n1. The provider is busy. It answers 503 with Retry-After: 2")
	s.provider.is(true, false)
	return s.outage(ctx)
}

func (s *story) refusing(ctx context.Context) error {
	s.Say("\n2. It refuses connections")
	s.provider.is(false, false)
	s.provider.stop()
	return s.outage(ctx)
}

func (s *story) silent(ctx context.Context) error {
	s.Say("\n3. It takes connections, and does not answer")
	s.provider.is(false, true)
	if err := s.provider.start(); err != nil {
		return err
	}
	return s.outage(ctx)
}

func (s *story) back(ctx context.Context) error {
	s.Say("\n4. It is back")
	s.provider.is(false, false)
	s.mu.Lock()
	s.said = nil
	s.mu.Unlock()
	began := time.Now()
	if err := s.await(ctx, s.orders-1); err != nil {
		return err
	}
	committed := func(ctx context.Context) (yes bool, err error) {
		err = s.Pool.QueryRow(ctx, "select not exists (select from "+pgx.Identifier{s.Schema, "stored"}.Sanitize()+")").Scan(&yes)
		return yes, err
	}
	if err := stories.Await(ctx, committed); err != nil {
		return err
	}
	s.Say("    that took %s", time.Since(began).Round(time.Second))
	return nil
}
