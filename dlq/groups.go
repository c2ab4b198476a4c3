package dlq

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// Group is letters of one kind of failure: of one fingerprint, origin, consumer, type and topic.
type Group struct {
	Fingerprint string
	Origin      string
	Consumer    string
	Type        string
	Topic       string
	Letters     int       // how many
	Holding     int       // how many of them hold their key
	FirstAt     time.Time // of the earliest first failure
	LastAt      time.Time // when one of them was given up last
	Letter      int64     // the newest of them, as an example
	Reason      string    // of that letter
}

// Groups counts the letters that a filter chooses by kind of failure, the most frequent kind first: what to look at
// first when there are many. Limit bounds the groups, not the letters. It reads every letter that the filter chooses, and
// of closed ones none unless State asks for them. No letters are no groups, not an error.
func (d *DLQ) Groups(ctx context.Context, f Filter) ([]Group, error) {
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("group letters: %w", err)
	}
	if f.Limit == 0 {
		f.Limit = defaultLimit
	}
	rows, err := d.pool.Query(ctx, d.sql.groups, append(f.stateArgs(), int32(min(f.Limit, math.MaxInt32)))...)
	if err != nil {
		return nil, fmt.Errorf("group letters: %w", explain(err))
	}
	groups, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Group])
	if err != nil {
		return nil, fmt.Errorf("group letters: %w", explain(err))
	}
	return groups, nil
}
