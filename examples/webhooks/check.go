package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// promises are what the receiver is for. Each query counts the exceptions; SCHEMA is that of
// holdfast's tables.
var promises = []struct{ text, exceptions string }{
	{"each payment that the bank signed is booked once", `
		select count(*) from (values ('alice', 1200), ('alice', 3000), ('bob', 4000)) signed (account, cents)
		 where 1 <> (select count(*) from payments p where p.account = signed.account and p.cents = signed.cents)`},
	{"no other payment is booked", `select abs(count(*) - 3) from payments`},
	{"the push is deployed once, and nothing else is", `
		select abs(count(*) filter (where ref = 'refs/heads/main') - 1) + count(*) filter (where ref <> 'refs/heads/main') from deploys`},
	{"every delivery is settled, and none of the forged is known", `
		select abs(4 - count(*)) + count(*) filter (where result <> 'handled' or event_id = 'msg_2') from SCHEMA.inbox`},
	{"nothing was given up", `select count(*) from SCHEMA.letter`},
}

func (s *story) check(ctx context.Context) error {
	s.say("6. What must be true, asked in SQL")
	var broken []error
	for _, p := range promises {
		query := strings.ReplaceAll(p.exceptions, "SCHEMA", pgx.Identifier{s.Schema}.Sanitize())
		var exceptions int
		if err := s.Pool.QueryRow(ctx, query).Scan(&exceptions); err != nil {
			return err
		}
		if exceptions == 0 {
			s.say("    ok      %s", p.text)
			continue
		}
		s.say("    BROKEN  %s: %d exceptions", p.text, exceptions)
		broken = append(broken, fmt.Errorf("a promise did not hold: %s: %d exceptions", p.text, exceptions))
	}
	return errors.Join(broken...)
}
