package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// names says whether two relays have one name, as doctor does: it compares the lanes with those of the last look, or with those of a
// second look that follows the first after a pause. Without a running relay there is nothing to see.
func (s *status) names(ctx context.Context) error {
	before, after := s.before, s.looks
	if before == nil {
		if !s.runs || s.pause <= 0 || len(s.looks) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(s.pause - time.Since(s.lookAt)):
		}
		rows, err := s.db.Query(ctx, sqlschema.In(s.schema, doctorLanes))
		if err != nil {
			return err
		}
		before, after = s.looks, map[int]laneLook{}
		var lane int
		var look laneLook
		if _, err := pgx.ForEachRow(rows, []any{&lane, &look.owner, &look.epoch}, func() error { after[lane] = look; return nil }); err != nil {
			return err
		}
	}
	if f := judgeNames(before, after); f.State == stateFail {
		s.say("%s: %s", f.Says, f.Command)
	}
	return nil
}
