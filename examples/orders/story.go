package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/examples/internal/servers"
	"github.com/holdfast-go/holdfast/inbox"
)

var errInterrupted = errors.New("interrupted; everything it started is stopped, everything it made is removed")

// story is what the chapters share.
type story struct {
	config config
	page   *page
	log    *slog.Logger

	*servers.Servers
	shop      *shop
	letters   *dlq.DLQ
	published published // by the relay
	outcomes  outcomes  // of billing

	stopParts context.CancelCauseFunc
	parts     sync.WaitGroup // the relay and billing
}

type chapter struct {
	title string
	tell  func(context.Context) error
}

func newStory(out io.Writer, c config) *story {
	s := &story{config: c, page: &page{out: out}, stopParts: func(error) {}}
	s.log = s.page.logger()
	return s
}

// tell goes through the chapters until one fails.
func (s *story) tell(ctx context.Context, chapters []chapter) error {
	interrupted := ctx
	ctx, s.stopParts = context.WithCancelCause(ctx)
	fmt.Fprint(s.page.out, "holdfast: from an order in Postgres, through Kafka, to exactly one invoice\n\n")
	for _, c := range chapters {
		begun := time.Now()
		s.page.begin(c.title)
		err := c.tell(ctx)
		s.page.done(time.Since(begun))
		switch {
		case interrupted.Err() != nil:
			return errInterrupted
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx) // a part has ended, and the chapter waited for it in vain
		case err != nil:
			return err
		}
	}
	return nil
}

// run runs a part beside the chapters that follow. They end with its error, should it have one.
func (s *story) run(ctx context.Context, name string, part func(context.Context) error) {
	s.parts.Go(func() {
		if err := part(ctx); err != nil {
			s.stopParts(fmt.Errorf("%s: %w", name, err))
		}
	})
}

func (s *story) stop() error {
	s.stopParts(nil)
	s.parts.Wait()
	if s.Servers == nil {
		return nil
	}
	return s.Servers.Stop()
}

func (s *story) startServers(ctx context.Context) (err error) {
	s.Servers, err = servers.Start(ctx, servers.Config{
		DatabaseURL: s.config.DatabaseURL,
		Brokers:     s.config.Brokers,
		Name:        servers.NewName("orders"), // so that runs do not meet
	})
	if err != nil {
		return err
	}
	s.page.say("%s", s.AboutPostgres)
	s.page.say("%s", s.AboutKafka)
	return nil
}

var customers = []string{"alice", "bob", "carol", "dave", "erin"}

const orders = 100

func (s *story) placeOrders(ctx context.Context) (err error) {
	if err := holdfast.Migrate(ctx, s.Pool, holdfast.SchemaConfig{Schema: s.Schema}); err != nil {
		return err
	}
	if _, err := s.Pool.Exec(ctx, tables); err != nil {
		return err
	}
	if s.shop, err = newShop(s.Pool, s.Schema, s.Topic); err != nil {
		return err
	}
	if s.letters, err = dlq.New(s.Pool, dlq.Config{Schema: s.Schema}); err != nil {
		return err
	}

	if err := s.placeMany(ctx, orders); err != nil {
		return err
	}
	err = s.shop.place(ctx, order{Customer: "bob", Country: "DE", Cents: 5000_00})
	if !errors.Is(err, errDeclined) {
		return fmt.Errorf("bob's order for 5,000 went through: %v", err)
	}
	s.page.say("%d orders of %d customers, each with its event in one transaction", orders, len(customers))
	s.page.say("1 more was rolled back when the card was declined: no order, no event")
	return s.expect(ctx, "orders", orders, s.rows("orders"))
}

// placeMany places n orders, a few at a time as requests come in.
func (s *story) placeMany(ctx context.Context, n int) error {
	next := make(chan order)
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() {
			var err error
			for o := range next {
				err = errors.Join(err, s.shop.place(ctx, o))
			}
			errs <- err
		}()
	}
	for i := range n {
		next <- order{Customer: customers[i%len(customers)], Country: "DE", Cents: int64(10_00 + i)}
	}
	close(next)
	var err error
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	return err
}

func (s *story) publish(ctx context.Context) error {
	s.run(ctx, "the relay", func(ctx context.Context) error {
		return runRelay(ctx, s.Pool, s.Brokers, s.Schema, s.log, &s.published)
	})
	if err := s.await(ctx, "published events", orders, count(s.published.count)); err != nil {
		return err
	}
	s.page.say("%d events to the topic %s; none of the order that was rolled back", orders, s.Topic)
	return nil
}

func (s *story) invoice(ctx context.Context) error {
	s.run(ctx, "billing", func(ctx context.Context) error {
		return runBilling(ctx, s.Pool, s.Brokers, s.Schema, s.Topic, s.Group, s.log, &s.outcomes)
	})
	if err := s.await(ctx, "invoices", orders, s.rows("invoices")); err != nil {
		return err
	}
	s.page.say("%d invoices, each in one transaction with the record that its event was handled", orders)
	return nil
}

func (s *story) redeliver(ctx context.Context) error {
	const again = 25
	if err := publishAgain(ctx, s.Brokers, s.published.last(again)); err != nil {
		return err
	}
	if err := s.await(ctx, "duplicates", again, s.outcome(inbox.Duplicate)); err != nil {
		return err
	}
	s.page.say("the next one publishes %d events a second time; billing recognises %d duplicates", again, again)
	s.page.say("%d invoices, as before", orders)
	return s.expect(ctx, "invoices", orders, s.rows("invoices"))
}

// later is how many orders follow the poison order, of its customer and of another.
const later = 3

func (s *story) poison(ctx context.Context) error {
	placed := []order{{Customer: "carol", Country: "IS", Cents: 99_00}}
	for range later {
		placed = append(placed, order{Customer: "carol", Country: "DE", Cents: 20_00}, order{Customer: "dave", Country: "DE", Cents: 30_00})
	}
	for _, o := range placed {
		if err := s.shop.place(ctx, o); err != nil {
			return err
		}
	}
	if err := s.await(ctx, "dead letters", 1, s.openLetters); err != nil {
		return err
	}
	if err := s.await(ctx, "invoices", orders+later, s.rows("invoices")); err != nil {
		return err
	}
	if err := s.await(ctx, "events that wait for the dead letter", later, s.outcome(inbox.Stored)); err != nil {
		return err
	}
	found, err := s.letters.List(ctx, dlq.Filter{})
	if err != nil {
		return err
	}
	letter := found[0]
	s.page.say("carol orders from Iceland, then %d times more; dave orders %d times", later, later)
	s.page.say("dead letter %d of %s after %d attempts: %s", letter.ID, letter.Event.Key, letter.Attempts, letter.Errors[len(letter.Errors)-1])
	s.page.say("dave's %d orders have their invoices: a bad event holds up its own key at most", later)
	s.page.say("carol's %d wait for it, which keeps their order: billing sets HoldKey, and without it they would go on", later)
	return nil
}

func (s *story) replay(ctx context.Context) error {
	if _, err := s.Pool.Exec(ctx, "insert into vat (country, percent) values ('IS', 24)"); err != nil {
		return err
	}
	replayed, err := s.letters.Replay(ctx, dlq.Filter{Consumer: "billing", Type: "order.placed"}, dlq.ReplayOptions{
		By:     "ann@shop",
		Reason: "billing knows Iceland's VAT rate now",
	})
	if err != nil {
		return err
	}
	const all = orders + 1 + 2*later
	if err := s.await(ctx, "invoices", all, s.rows("invoices")); err != nil {
		return err
	}
	s.page.say("the VAT rate of Iceland is added, and ann replays %d dead letter", replayed)
	s.page.say("carol's %d orders are invoiced one after the other: %d invoices", 1+later, all)
	return nil
}
