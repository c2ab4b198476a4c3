package relay

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/plain"
)

// This file keeps Postgres from compiling what reads the log (jit). It compiles statements that it expects to cost much, each time
// anew, and beside a backlog of many millions of events it expects that of every page: a tenth of a second for one that takes
// milliseconds.

// interpretReads is for the transaction that reads.
const interpretReads = `-- relay.interpret
select set_config('jit', 'off', true), ` + plain.Forms

// interpreted makes each query in one round trip with interpretReads. What others make on the connection keeps their settings.
type interpreted struct{ plain.Pool }

func (i interpreted) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return plain.After(ctx, i.Pool.Pool, interpretReads, sql, args...)
}
