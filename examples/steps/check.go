package main

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

// promises are what steps are for. Each query counts the exceptions; SCHEMA is that of holdfast's tables.
var promises = []stories.Promise{
	{Text: "each order is shipped once", Exceptions: `
		select count(*) from (select from generate_series(1, 4) n left join shipments on order_id = 'order ' || n
			group by n having count(order_id) <> 1) x`},
	{Text: "each order's two steps are recorded", Exceptions: `
		select abs(count(*) - 8) from SCHEMA.inbox_step`},
}

func (s *story) check(ctx context.Context) error {
	s.Say("\n5. What must be true, asked in SQL and at the services")
	if err := s.Check(ctx, s.Pool, promises); err != nil {
		return err
	}
	s.services.mu.Lock()
	defer s.services.mu.Unlock()
	for n := 1; n <= 4; n++ {
		if times := s.services.effects[fmt.Sprint("/payments order ", n)]; times != 1 {
			return stories.Broken("the payments have charged order %d %d times", n, times)
		}
	}
	s.Say("    ok      the payments, which honor keys, have charged each order once")
	for n, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2} {
		if times := s.services.effects[fmt.Sprint("/warehouse order ", n)]; times != want {
			return stories.Broken("the warehouse has reserved order %d %d times, and not %d", n, times, want)
		}
	}
	s.Say("    ok      the warehouse has reserved each order once, and once more for the one process that was killed there")
	return nil
}
