package metrics

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/backfill"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// The rows that were written last have waited longest: they came from elsewhere, or from a queue that was moved.
func TestTheOldestIsFoundBeyondWhatIsCounted(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time)
		select n % 8, 'orders', 'k', n, case when n % 2 = 0 then 'record' else 'topic' end, now(), now() - n * interval '1 hour', n::text, '', 't', now() from generate_series(1, 100) n`)
	pgtest.Exec(t, db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, first_at)
		select case when n % 10 = 0 then 'mail' else 'billing' end, 'orders', n::text, n, 's', n::text, 't', now(), '', now() - n * interval '1 hour' from generate_series(1, 100) n`)
	const most = 7
	var parked, topics, partitions int
	var oldest float64
	if err := db.Pool.QueryRow(t.Context(), sampleParked, most).Scan(&parked, &oldest, &topics, &partitions); err != nil {
		t.Fatal(err)
	}
	if parked != most || int(oldest/3600) != 100 {
		t.Errorf("%d parked, the oldest for %v hours: want %d and 100", parked, oldest/3600, most)
	}
	rows, _ := db.Pool.Query(t.Context(), sampleStored, most, 10)
	defer rows.Close()
	want := map[string]int{"billing": 99, "mail": 100} // hours
	for rows.Next() {
		var consumer string
		var events, keys, undeclared int
		if err := rows.Scan(&consumer, &events, &keys, &oldest, &undeclared); err != nil {
			t.Fatal(err)
		}
		if events != most || keys != most || undeclared != most || int(oldest/3600) != want[consumer] {
			t.Errorf("%s: %d events of %d keys, %d of no node's type, the oldest for %v hours: want %d each, and %d", consumer, events, keys, undeclared, oldest/3600, most, want[consumer])
		}
		delete(want, consumer)
	}
	if err := rows.Err(); err != nil || len(want) > 0 {
		t.Errorf("%v are missing: %v", want, err)
	}
}

// However many consumers have done a backfill, those that need a person have figures.
func TestOfManyBackfillsThoseThatAreDoneAreLeftOut(t *testing.T) {
	t.Parallel()
	var rows []backfill.Row
	for i := range 3 * maxConsumers {
		rows = append(rows, backfill.Row{Consumer: fmt.Sprintf("c%03d", i), Ended: i%10 > 0, Remaining: 1})
	}
	got := backfillsOf(rows)
	left := 0
	for _, of := range got {
		if !of.Done {
			left++
		}
	}
	if len(got) != maxConsumers || left != len(rows)/10 || got[1].Consumer != "c010" {
		t.Errorf("%d have figures, %d of them are not done: %+v", len(got), left, got)
	}
	done := 0
	for _, r := range (Sample{Backfills: got}).readings() {
		if r.Index == 22 {
			done++
		}
	}
	if done != left {
		t.Errorf("%d have an age, want the %d that are not done", done, left)
	}
}
