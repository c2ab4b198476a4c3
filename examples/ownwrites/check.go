package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

// promises are what must be true of the tables. Each query counts the exceptions; SCHEMA is that of holdfast's tables.
var promises = []stories.Promise{
	{Text: "each order is in its customer's account, once", Exceptions: `
		select count(*) from (select customer, count(*) n, sum(cents) c from orders where cents > 0 group by customer) o
			full join accounts a using (customer) where (o.n, o.c) is distinct from (a.orders, a.cents)`},
	{Text: "the event that was given up is a dead letter", Exceptions: `
		select abs(count(*) - 1) from SCHEMA.letter`},
}

func (s *story) check(ctx context.Context) error {
	s.Say("\n4. What must be true, asked in SQL, and what the client saw")
	settled := func(ctx context.Context) (yes bool, err error) {
		err = s.Pool.QueryRow(ctx, "select count(*) = 22 from "+pgx.Identifier{s.Schema, "inbox"}.Sanitize()+" where result <> 'stored'").Scan(&yes)
		return yes, err
	}
	if err := stories.Await(ctx, settled); err != nil { // for the careless
		return err
	}
	if err := s.Check(ctx, s.Pool, promises); err != nil {
		return err
	}
	if s.stale > 0 {
		return stories.Broken("each answer shows the order that it answers: %d exceptions", s.stale)
	}
	s.Say("    ok      each answer shows the order that it answers")
	return nil
}
