package inbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/plain"
)

// This file recognises records that a partition has read before: those below its position, and those that were in progress at an
// unclean end. It looks up their rows by the page, so that a known record costs no transaction. Otherwise a group that has to
// join again and again would spend its time on the same duplicates, and never commit an offset.

// recognise asks which of a page's records are known with their payload, and makes their disposition disposeKnown. The others keep
// theirs. It returns false when ctx ends.
//
// It needs no fence, since it writes nothing. A row that a failover undoes later does not count as settled, because positions
// are saved under the database's incarnation.
func (p *partition) recognise(ctx context.Context, ds []*delivery, dispositions []disposition) bool {
	var looked []int
	var sources, ids []string
	for i, d := range ds {
		if dispositions[i] != disposeSkip && (p.replaying || d.stale()) {
			looked, sources, ids = append(looked, i), append(sources, d.e.Source), append(ids, d.e.ID)
		}
	}
	if len(looked) == 0 {
		return true
	}
	return p.untilAnswered(ctx, func(ctx context.Context) error {
		rows, err := p.pool.Query(ctx, p.sql.knownMany, p.c.Consumer, sources, ids)
		if err != nil {
			return fmt.Errorf("read inbox rows: %w", err)
		}
		var n int32
		var hash []byte
		_, err = pgx.ForEachRow(rows, []any{&n, (*plain.Bytes)(&hash)}, func() error {
			if i := looked[n-1]; ds[i].is(hash) {
				dispositions[i] = disposeKnown
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read inbox rows: %w", err)
		}
		return nil
	})
}
