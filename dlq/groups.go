package dlq

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/manual"
)

// Group summarises the letters of one kind of failure: the same fingerprint, origin, consumer, type and topic.
type Group struct {
	Fingerprint string
	Origin      string
	Consumer    string
	Type        string
	Topic       string
	Letters     int       // how many letters
	Holding     int       // how many of the letters hold their key
	FirstAt     time.Time // the earliest first failure
	LastAt      time.Time // when a letter was last given up
	Letter      int64     // the newest letter, as an example
	Reason      string    // the reason of that letter
}

// Groups counts the letters of a filter by kind of failure, the most frequent kind first. With many letters, begin
// here. Limit bounds the groups, not the letters. Groups reads every letter that matches; closed letters only if State
// asks for them. If no letter matches, it returns no groups and no error.
func (d *DLQ) Groups(ctx context.Context, f Filter) ([]Group, error) {
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("group letters: %w", err)
	}
	if f.Limit == 0 {
		f.Limit = defaultLimit
	}
	rows, err := d.pool.Query(ctx, d.sql.groups, append(f.stateArgs(), int32(min(f.Limit, math.MaxInt32)))...)
	if err != nil {
		return nil, fmt.Errorf("group letters: %w", manual.Explain(err))
	}
	groups, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Group])
	if err != nil {
		return nil, fmt.Errorf("group letters: %w", manual.Explain(err))
	}
	return groups, nil
}
