package main

import (
	"context"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

// promises are what the watermark is for. Each query counts the exceptions; SCHEMA is that of
// holdfast's tables.
var promises = []stories.Promise{
	{Text: "each price is that of the highest version that came", Exceptions: `
		select count(*) from prices where shop = 'careful' and version <> case sku when 'teapot' then 4 else 100 end`},
	{Text: "no price ever went back", Exceptions: `
		select count(*) from (
			select version <= lag(version) over (partition by sku order by n) as back from history where shop = 'careful'
		) h where back`},
	{Text: "there is an event for each price that was shown, and for no other", Exceptions: `
		select abs((select count(*) from history where shop = 'careful')
		         - (select count(*) from SCHEMA.event where source = 'careful' and type = 'price.shown'))`},
	{Text: "every event that came is settled, the stale ones too", Exceptions: `
		select abs(105 - (select count(*) from SCHEMA.inbox where consumer = 'careful' and result = 'handled'))`},
}

func (s *story) check(ctx context.Context) error {
	s.Say("5. What must be true of the careful shop, asked in SQL")
	return s.Check(ctx, s.Pool, promises)
}
