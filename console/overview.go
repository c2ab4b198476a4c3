package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/backfill"
	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/metrics"
)

// counted is how far the rows of a lane are counted.
const counted = 10_000

// amount is a number of rows, counted up to counted.
type amount int

func (a amount) String() string {
	if a > counted {
		return fmt.Sprintf("more than %d", counted)
	}
	return fmt.Sprint(int(a))
}

type laneRow struct {
	Lane              int
	Owner             string
	Owned             bool
	SavedAt           time.Time
	Parked, Scheduled amount
	OldestParked      *time.Time
}

// consumerRow is a consumer; "" stands for the relays, which have letters only.
type consumerRow struct {
	Consumer   string
	Partitions int
	Held       int // of them
	Lag        []metrics.LagOf
	Stored     int
	Undeclared int // of the stored ones
	Keys       int
	Oldest     time.Duration
	Letters    int
	Nodes      nodes.Row // of the consumer, if it has ever announced one
}

type overviewPage struct {
	metrics.Sample
	Lanes     []laneRow
	Consumers []consumerRow
	Backfills []backfill.Row
	Lags      bool   // whether consumers have them
	LagError  string // why they have not
	Stored    int
	Letters   int
}

func (c *Console) overview(v *visit) (answer, error) {
	p, err := c.readOverview(v.Context())
	if err != nil {
		return answer{}, fmt.Errorf("read overview: %w", sqlschema.Explain(err, "grant the roles holdfast_operator and holdfast_reader (docs/operations.md)"))
	}
	return answer{page: "overview", data: p}, nil
}

func (c *Console) readOverview(ctx context.Context) (p overviewPage, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rows, err := c.pool.Query(ctx, c.sql.In(readLanes))
	if err != nil {
		return p, err
	}
	if p.Lanes, err = pgx.CollectRows(rows, pgx.RowToStructByPos[laneRow]); err != nil {
		return p, err
	}
	if p.Sample, err = c.database.Sample(ctx); err != nil {
		return p, err
	}
	if rows, err = c.pool.Query(ctx, c.sql.In(backfill.Rows)); err != nil {
		return p, err
	}
	if p.Backfills, err = pgx.CollectRows(rows, pgx.RowToStructByPos[backfill.Row]); err != nil {
		return p, err
	}
	var lags []metrics.LagOf
	if c.c.Ends != nil {
		p.Lags = true
		if lags, err = c.database.Lag(ctx, c.c.Ends); err != nil {
			c.c.Logger.Warn("lag not read", "error", err)
			p.LagError = "the lag could not be read: the log of the console says why"
		}
	}
	if rows, err = c.pool.Query(ctx, c.sql.In(nodes.Rows), nodes.Args()...); err != nil {
		return p, err
	}
	living, err := pgx.CollectRows(rows, pgx.RowToStructByPos[nodes.Row])
	if err != nil {
		return p, err
	}
	p.Consumers = consumersOf(p.Sample, lags, living)
	for _, row := range p.Consumers {
		p.Stored += row.Stored
		p.Letters += row.Letters
	}
	return p, nil
}

// consumersOf puts what is known of each consumer into its row.
func consumersOf(s metrics.Sample, lags []metrics.LagOf, living []nodes.Row) (rows []consumerRow) {
	of := func(consumer string) *consumerRow {
		i := slices.IndexFunc(rows, func(row consumerRow) bool { return row.Consumer == consumer })
		if i < 0 {
			i = len(rows)
			rows = append(rows, consumerRow{Consumer: consumer})
		}
		return &rows[i]
	}
	for _, p := range s.Positions {
		row := of(p.Consumer)
		row.Partitions, row.Held = p.Partitions, p.Held
	}
	for _, stored := range s.Stored {
		row := of(stored.Consumer)
		row.Stored, row.Keys, row.Oldest, row.Undeclared = stored.Events, stored.Keys, stored.Oldest, stored.Undeclared
	}
	for _, letters := range s.Letters {
		of(letters.Consumer).Letters += letters.Open
	}
	for _, n := range living {
		of(n.Consumer).Nodes = n
	}
	for _, lag := range lags {
		row := of(lag.Consumer)
		row.Lag = append(row.Lag, lag)
	}
	slices.SortFunc(rows, func(a, b consumerRow) int { return strings.Compare(a.Consumer, b.Consumer) })
	return rows
}

// Late says that an event has waited for longer to be published than holdfast status takes for well, by default.
func (p overviewPage) Late() bool { return p.Oldest > time.Minute }

// Silent says that the consumer has no node, though one should run.
func (r consumerRow) Silent() bool { return r.Nodes.Consumer != "" && r.Nodes.Gone() }

// LagSum is the lag of all topics.
func (r consumerRow) LagSum() (n int64) {
	for _, of := range r.Lag {
		n += of.Offsets
	}
	return n
}
