package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/state"
)

// counts are counters that only grow. The page asks for them again and again, and shows their differences as rates: the console itself
// keeps nothing.
type counts struct {
	At        float64          `json:"at"`        // seconds, by the database's clock
	Written   int64            `json:"written"`   // rows written to the log, rolled back ones too
	Recorded  int64            `json:"recorded"`  // rows written to the inbox, by all consumers
	Letters   int64            `json:"letters"`   // dead letters written
	Positions map[string]int64 `json:"positions"` // of each consumer: the sum of its positions
}

// flow answers with counts.
func (c *Console) flow(v *visit, w http.ResponseWriter) error {
	now, err := c.readCounts(v.Context())
	if err != nil {
		return fmt.Errorf("read counts: %w", sqlschema.Explain(err, "docs/operations.md lists what to grant to an operator"))
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(now)
}

func (c *Console) readCounts(ctx context.Context) (counts, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r := state.Reader{DB: plain.Of(c.pool), Schema: c.c.Schema}
	written, err := r.Written(ctx)
	if err != nil {
		return counts{}, err
	}
	now := counts{
		At:        written.At,
		Written:   written.Written,
		Recorded:  written.Recorded,
		Letters:   written.Letters,
		Positions: map[string]int64{},
	}
	consumers, err := r.Progress(ctx)
	for _, p := range consumers {
		now.Positions[p.Consumer] = p.Position
	}
	return now, err
}
