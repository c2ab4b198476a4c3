package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file shows one stored event with all that is kept of it.

// ErrNotStored says that a consumer has no such stored event. The error of GetStored wraps it.
var ErrNotStored = errors.New("no such stored event")

// StoredDetail is a stored event with all that is kept of it. Event has its headers, and its payload if that was asked for.
type StoredDetail struct {
	StoredEvent
	Errors      []string  // of the last attempts, the oldest first
	FailedAt    time.Time // when its handler failed first; zero if it never did
	Partition   int       // of the Kafka record; -1 if there was none
	Offset      int64     // likewise
	PayloadSize int       // in bytes, -1 for a tombstone
}

// GetStored returns the stored events of a consumer that have an id: one, unless several sources use it and source is "". payloads
// says whether to read their payloads. The error wraps ErrNotStored if there is none: holdfast find says where it is.
func (d *DLQ) GetStored(ctx context.Context, consumer, source, eventID string, payloads bool) ([]StoredDetail, error) {
	rows, err := d.pool.Query(ctx, d.sql.showStored, consumer, eventID, source, payloads)
	if err != nil {
		return nil, fmt.Errorf("get stored event %s: %w", eventID, explain(err))
	}
	found, err := pgx.CollectRows(rows, scanStoredDetail)
	if err != nil {
		return nil, fmt.Errorf("get stored event %s: %w", eventID, explain(err))
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("get stored event %s of consumer %s: %w", eventID, consumer, ErrNotStored)
	}
	return found, nil
}

func scanStoredDetail(row pgx.CollectableRow) (s StoredDetail, err error) {
	var next, failed *time.Time
	var headers *string
	e := &s.Event
	err = row.Scan(&s.Consumer, &e.Topic, &e.Key, &s.Place, &e.Source, &e.ID, &e.Type, &e.Time, &s.Head, &s.Running, &s.Handled, &s.Paused, &s.Attempts,
		&s.Error, &s.StoredAt, &next, &s.Letter, &s.Errors, &failed, &s.Partition, &s.Offset, &headers, &e.Payload, &s.PayloadSize)
	if err != nil {
		return s, err
	}
	if next != nil {
		s.NextAt = *next
	}
	if failed != nil {
		s.FailedAt = *failed
	}
	if headers != nil {
		if err := json.Unmarshal([]byte(*headers), &e.Headers); err != nil {
			return s, fmt.Errorf("its headers are no JSON object of strings: %w", err)
		}
	}
	return s, nil
}
