package main

import (
	"context"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

// promises are what the receiver is for. Each query counts the exceptions; SCHEMA is that of
// holdfast's tables.
var promises = []stories.Promise{
	{Text: "each payment that the bank signed is booked once", Exceptions: `
		select count(*) from (values ('alice', 1200), ('alice', 3000), ('bob', 4000)) signed (account, cents)
		 where 1 <> (select count(*) from payments p where p.account = signed.account and p.cents = signed.cents)`},
	{Text: "no other payment is booked", Exceptions: `select abs(count(*) - 3) from payments`},
	{Text: "the push is deployed once, and nothing else is", Exceptions: `
		select abs(count(*) filter (where ref = 'refs/heads/main') - 1) + count(*) filter (where ref <> 'refs/heads/main') from deploys`},
	{Text: "every delivery is settled, and none of the forged is known", Exceptions: `
		select abs(4 - count(*)) + count(*) filter (where result <> 'handled' or event_id = 'msg_2') from SCHEMA.inbox`},
	{Text: "nothing was given up", Exceptions: `select count(*) from SCHEMA.letter`},
}

func (s *story) check(ctx context.Context) error {
	s.Say("6. What must be true, asked in SQL")
	return s.Check(ctx, s.Pool, promises)
}
