package console

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// counted is how far rows are counted.
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
	Consumer string
	Stored   amount
	Oldest   *time.Time
	Letters  amount
}

type overviewPage struct {
	Lanes     []laneRow
	Consumers []consumerRow
	Unowned   int
	Parked    amount
	Stored    amount
	Letters   amount
}

func (c *Console) overview(v *visit) (answer, error) {
	p, err := c.readOverview(v.Context())
	if err != nil {
		return answer{}, fmt.Errorf("read overview: %w", sqlschema.Explain(err, "docs/operations.md lists what to grant to an operator"))
	}
	return answer{page: "overview", data: p.summed()}, nil
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
	if rows, err = c.pool.Query(ctx, c.sql.In(readConsumers)); err != nil {
		return p, err
	}
	p.Consumers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[consumerRow])
	return p, err
}

// summed adds what is in the rows up.
func (p overviewPage) summed() overviewPage {
	for _, l := range p.Lanes {
		if !l.Owned {
			p.Unowned++
		}
		p.Parked += l.Parked
	}
	for _, c := range p.Consumers {
		p.Stored += c.Stored
		p.Letters += c.Letters
	}
	return p
}
