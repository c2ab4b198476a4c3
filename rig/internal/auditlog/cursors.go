package auditlog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// read are the events of the log that the saved cursors call published.
const read = `pg_visible_in_snapshot(e.xid, l.done) or (l.upto is not null and pg_visible_in_snapshot(e.xid, l.upto) and e.seq <= l.pos)`

// published are the events that the saved cursors call published and that are still in the log, but for those that wait
// in parked or are letters, which is as good.
const published = `select e.id from holdfast.event e join holdfast.lane l using (lane) where ` + read

// waiting is asked after that: what was parked then may be published by now, and then Kafka has it. What was redirected is in the log
// a second time, and waits there.
const waiting = `select id from holdfast.parked where id = any ($1) union select event_id from holdfast.letter where event_id = any ($1)
	union select e.id from holdfast.event e join holdfast.lane l using (lane) where e.id = any ($1) and not (` + read + `)`

// Look takes a look at the saved cursors: first what they say, then what is there. At last it asks for the ids that Kafka
// has.
func Look(ctx context.Context, db DB, inKafka func(context.Context) (map[string]struct{}, error)) (oracle.CursorSample, error) {
	s := oracle.CursorSample{At: time.Now()}
	ids, err := collect(ctx, db, pgx.RowTo[string], published)
	if err != nil {
		return s, fmt.Errorf("look at the cursors: %w", err)
	}
	parked, err := collect(ctx, db, pgx.RowTo[string], waiting, ids)
	if err != nil {
		return s, fmt.Errorf("look at the cursors: %w", err)
	}
	seen, err := inKafka(ctx)
	if err != nil {
		return s, err
	}
	excused := make(map[string]bool, len(parked))
	for _, id := range parked {
		excused[id] = true
	}
	s.Done = len(ids)
	for _, id := range ids {
		if _, there := seen[id]; !there && !excused[id] {
			s.Missing = append(s.Missing, id)
		}
	}
	return s, nil
}
