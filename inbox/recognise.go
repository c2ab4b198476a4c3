package inbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// This file is how a partition gets over records that it has read before: those below its position, and those that were in
// hand at an unclean end. Their rows are looked up by the page, so that a known one costs no transaction: a group that
// brokers make join anew again and again would else spend its time on the same duplicates, and never come to commit.

// recognise asks which of a page's records are known with their payload, and makes theirs disposeKnown. What is missing,
// or has another payload, keeps its disposition. False: ctx ended.
//
// No fence is needed, since nothing is written; and a row that a failover takes back later does not count as settled,
// because positions are saved under the database's incarnation.
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
	return p.patiently(ctx, func(ctx context.Context) error {
		rows, err := p.pool.Query(ctx, p.sql.knownMany, p.c.Consumer, sources, ids)
		if err != nil {
			return fmt.Errorf("read inbox rows: %w", err)
		}
		var n int32
		var hash []byte
		_, err = pgx.ForEachRow(rows, []any{&n, &hash}, func() error {
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
