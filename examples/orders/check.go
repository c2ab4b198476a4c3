package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
)

// tables are the example's own. Nothing in them keeps an order from having two invoices, or an
// invoice from having no order: billing could be another service, with a database of its own.
const tables = `
create table orders (
    id       bigint generated always as identity primary key,
    customer text not null,
    country  text not null,
    cents    bigint not null
);
create table invoices (
    number   bigint generated always as identity primary key,
    order_id bigint not null,
    customer text not null,
    cents    bigint not null
);
create table vat (country text primary key, percent integer not null);
insert into vat values ('DE', 19), ('FR', 20), ('SE', 25);
`

// promises are what holdfast is for. Each query counts the exceptions.
var promises = []struct{ text, exceptions string }{
	{"every committed order has exactly one invoice", `
		select count(*) from orders o where 1 <> (select count(*) from invoices i where i.order_id = o.id)`},
	{"no invoice is there without its order", `
		select count(*) from invoices i where not exists (select from orders o where o.id = i.order_id)`},
	{"each customer's invoices follow the order of the orders", `
		select count(*) from (
			select order_id < lag(order_id) over (partition by customer order by number) as early from invoices
		) i where early`},
}

func (s *story) check(ctx context.Context) error {
	if s.config.beforeCheck != nil {
		if err := s.config.beforeCheck(ctx, s); err != nil {
			return err
		}
	}
	var broken []error
	check := func(text string, exceptions int) {
		if exceptions == 0 {
			s.page.say("ok      %s", text)
			return
		}
		s.page.say("BROKEN  %s: %d exceptions", text, exceptions)
		broken = append(broken, fmt.Errorf("a promise did not hold: %s: %d exceptions", text, exceptions))
	}
	for _, p := range promises {
		var exceptions int
		if err := s.Pool.QueryRow(ctx, p.exceptions).Scan(&exceptions); err != nil {
			return err
		}
		check(p.text, exceptions)
	}
	open, err := s.openLetters(ctx)
	if err != nil {
		return err
	}
	check("nothing is given up", open)
	return errors.Join(broken...)
}

// A counter says how many there are of something.
type counter func(context.Context) (int, error)

func count(f func() int) counter {
	return func(context.Context) (int, error) { return f(), nil }
}

func (s *story) outcome(of inbox.Outcome) counter {
	return count(func() int { return s.outcomes.count(of) })
}

func (s *story) rows(table string) counter {
	return func(ctx context.Context) (n int, err error) {
		err = s.Pool.QueryRow(ctx, "select count(*) from "+table).Scan(&n)
		return n, err
	}
}

// openLetters are the dead letters that nobody has dealt with, and those whose replay is under way.
func (s *story) openLetters(ctx context.Context) (int, error) {
	n := 0
	for _, state := range []string{dlq.StateOpen, dlq.StateReplaying} {
		letters, err := s.letters.List(ctx, dlq.Filter{State: state})
		if err != nil {
			return 0, err
		}
		n += len(letters)
	}
	return n, nil
}

// waitTimeout allows for a busy machine, and for a real Kafka, which takes seconds to let a consumer group begin.
const waitTimeout = time.Minute

// await looks until there are as many as wanted. There may be more of what Kafka carries: at least
// once is what it promises. Of invoices there may not, which is for expect and check to see.
func (s *story) await(ctx context.Context, what string, want int, have counter) error {
	deadline := time.Now().Add(waitTimeout)
	for {
		n, err := have(ctx)
		switch {
		case err != nil:
			return err
		case n >= want:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("there are %d %s after %v, not %d", n, what, waitTimeout, want)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// expect looks once.
func (s *story) expect(ctx context.Context, what string, want int, have counter) error {
	n, err := have(ctx)
	if err == nil && n != want {
		err = fmt.Errorf("there are %d %s, not %d", n, what, want)
	}
	return err
}
