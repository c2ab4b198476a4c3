package backlog

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// A lane counts as late with its schedule from the moment at which something is due.
func TestNeighbours_WhatIsDueNowIsToBeInTheLog(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, "set local jit = off")
		pgtest.Exec(t, tx, `insert into holdfast.scheduled (lane, due_at, id, type, topic, time) values (3, now(), 'd', 't', 'orders', now()),
			(4, now() + interval '1 microsecond', 'l', 't', 'orders', now()), (5, now() - interval '1 microsecond', 'e', 't', 'orders', now())`)
		if b, err := Read(t.Context(), tx, "holdfast", 1); err != nil || b != (Sum{Scheduled: 2}) {
			t.Errorf("%+v, %v: want 2 lanes", b, err)
		}
	})
}
