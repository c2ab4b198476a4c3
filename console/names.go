package console

import (
	"context"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/state"
)

// names are those that a filter offers. There may be others.
type names struct {
	Consumers []string
	state.Names
}

func (c *Console) names(ctx context.Context) (n names, err error) {
	if n.Consumers, err = c.room.Consumers(ctx); err != nil {
		return names{}, err
	}
	n.Names, err = state.Reader{DB: plain.Of(c.pool), Schema: c.c.Schema}.Names(ctx)
	return n, err
}
