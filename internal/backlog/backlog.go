// Package backlog sums up what is not published, over all lanes: for the relay that is asked, for gauges, and for people.
package backlog

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Sum is what is not published. Ages are in seconds, 0 if nothing has one.
type Sum struct {
	Lanes         int     // that have unpublished events
	Oldest        float64 // of the events that lanes read next
	Waiting       int     // events that wait in relays
	OldestWaiting float64
	Scheduled     int // lanes with events that are due and not in the log
}

// read sums up the view of that name. What waits is counted up to $1.
const read = `-- backlog.read
select count(*) filter (where b.unread), coalesce(extract(epoch from now() - min(b.oldest_at)), 0)::float8,
       (select count(*) from (select from holdfast.parked limit $1::bigint) p),
       coalesce(greatest(extract(epoch from now() - min(b.waiting_since)), 0), 0)::float8, count(*) filter (where b.scheduled_for <= now())
  from holdfast.backlog b`

// Read counts what waits up to most.
func Read(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, schema string, most int64) (Sum, error) {
	rows, err := db.Query(ctx, sqlschema.In(schema, read), most)
	if err != nil {
		return Sum{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Sum])
}
