package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// promises are what the watermark is for. Each query counts the exceptions; SCHEMA is that of
// holdfast's tables.
var promises = []struct{ text, exceptions string }{
	{"each price is that of the highest version that came", `
		select count(*) from prices where shop = 'careful' and version <> case sku when 'teapot' then 4 else 100 end`},
	{"no price ever went back", `
		select count(*) from (
			select version <= lag(version) over (partition by sku order by n) as back from history where shop = 'careful'
		) h where back`},
	{"an event tells of each price that was shown, and of no other", `
		select abs((select count(*) from history where shop = 'careful')
		         - (select count(*) from SCHEMA.event where source = 'careful' and type = 'price.shown'))`},
	{"every event that came is settled, the stale ones too", `
		select abs(105 - (select count(*) from SCHEMA.inbox where consumer = 'careful' and result = 'handled'))`},
}

func (s *story) check(ctx context.Context) error {
	s.say("5. What must be true of the careful shop, asked in SQL")
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
