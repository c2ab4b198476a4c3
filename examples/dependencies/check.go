package main

import (
	"context"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

// promises are what Needs and Unavailable are for. Each query counts the exceptions; SCHEMA is that of holdfast's tables.
var promises = []stories.Promise{
	{Text: "nothing is a dead letter", Exceptions: `
		select count(*) from SCHEMA.letter`},
	{Text: "no event has spent an attempt on the outage", Exceptions: `
		select count(*) from SCHEMA.inbox where attempts > 1`},
	{Text: "each order is paid once", Exceptions: `
		select count(*) from (select from generate_series(1, 7) n left join payments on order_id = 'order ' || n
			group by n having count(order_id) <> 1) x`},
	{Text: "each customer was welcomed", Exceptions: `
		select 3 - count(*) from welcomes`},
}

func (s *story) check(ctx context.Context) error {
	s.Say("\n5. What must be true, asked in SQL and at the provider")
	if err := s.Check(ctx, s.Pool, promises); err != nil {
		return err
	}
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	if n := len(s.provider.charges); n != s.orders {
		return stories.Broken("the provider has charged %d orders of %d", n, s.orders)
	}
	for key, times := range s.provider.charges {
		if times != 1 {
			return stories.Broken("the provider was asked %d times to charge %s", times, key)
		}
	}
	s.Say("    ok      the provider has charged each order once")
	return nil
}
