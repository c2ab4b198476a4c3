package steps

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Most is how many steps of an event are shown at most.
const Most = 100

// Recorded is a step of an event's handler that is done and recorded. dlq.Step has the same fields.
type Recorded struct {
	Name         string
	Key          string // what its function got, for the system that it calls
	DoneAt       time.Time
	Result       string // as JSON; "" if it was not asked for
	OtherPayload bool   // it ran for another payload under the event's id, before an edit or of a conflict: the event's handler does not get its result
}

// Read returns the steps of one event of a consumer, in the order in which they were done. Of more than Most it returns those of the event as it is now,
// and the latest of the others. hash is that of the event now, nil for that of its row in the inbox. results says whether to read their results.
func Read(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, schema, consumer, source, eventID string, hash []byte, results bool) ([]Recorded, error) {
	rows, err := db.Query(ctx, sqlschema.In(schema, recordedSQL), consumer, source, eventID, hash, results, int32(Most))
	if err != nil {
		return nil, fmt.Errorf("read its steps: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Recorded, err error) {
		var ran []byte
		err = row.Scan(&s.Name, &ran, &s.OtherPayload, &s.DoneAt, &s.Result)
		s.Key = Key(consumer, source, eventID, ran, s.Name)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read its steps: %w", err)
	}
	return all, nil
}
