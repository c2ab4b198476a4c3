package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/fixture"
	"github.com/holdfast-go/holdfast/retry"
)

// inboxRow is what the inbox says of an event.
type inboxRow struct {
	id, source string
	firstSeen  time.Time
	processed  *time.Time
	result     string
}

// TestOutcomes_TheConsumerInboxOfTheTableComesOut delivers the rows of testdata/consumer_inbox.csv one after the other. A row's
// event and source are the delivery; a row that is never processed is one whose handler refuses it for good; the last
// column is what has to come out.
//
// R49.
func TestOutcomes_TheConsumerInboxOfTheTableComesOut(t *testing.T) {
	b := setup(t)
	rows := fixture.Rows(t, "testdata/consumer_inbox.csv", "event_id", "source", "first_seen", "processed", "result")
	refuse := false
	in, err := New(b.db.Pool, Config{Consumer: "ledger"})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("payment.settled", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := effectOf(ctx, tx, e); err != nil {
			return err
		}
		if refuse {
			return retry.Permanent(errors.New("no such account"))
		}
		return nil
	})
	results := map[Outcome]string{Handled: "ok", Duplicate: "replayed", Dead: "dead"}
	seenFirst := map[string]inboxRow{}
	effects, met, last := int64(0), map[string]bool{}, time.Time{}
	for n, row := range rows {
		id, source, result := row[0], row[1], row[4]
		seen, err := time.Parse(time.RFC3339, row[2])
		if err != nil || seen.Before(last) {
			t.Fatalf("row %d was seen at %q: %v", n+1, row[2], err)
		}
		if last = seen; row[3] != "" {
			if done, err := time.Parse(time.RFC3339, row[3]); err != nil || done.Before(seen) {
				t.Fatalf("row %d was processed at %q: %v", n+1, row[3], err)
			}
		}
		refuse = row[3] == ""
		outcome, err := in.Receive(t.Context(), holdfast.Event{ID: id, Source: source, Topic: "payments", Key: source + id, Type: "payment.settled", Payload: []byte(id)})
		if err != nil || results[outcome] != result {
			t.Errorf("row %d: got %s, %v; want %s", n+1, outcome, err, result)
		}
		if result == "ok" {
			effects++
		}
		// The columns of the table are those of the inbox's row: event_id, source, first_seen, processed, result.
		var got inboxRow
		if err := b.db.QueryRow(t.Context(), `select event_id, source, received_at, processed_at, result from holdfast.inbox
			where consumer = 'ledger' and source = $1 and event_id = $2`, source, id).Scan(&got.id, &got.source, &got.firstSeen, &got.processed, &got.result); err != nil {
			t.Fatal(err)
		}
		first, again := seenFirst[source+"/"+id]
		if !again {
			first = got
			seenFirst[source+"/"+id] = got
		}
		stored := map[string]string{"ok": "handled", "dead": "dead", "replayed": first.result}[result]
		if got.id != id || got.source != source || got.processed == nil || got.processed.Before(got.firstSeen) || got.result != stored {
			t.Errorf("row %d: the inbox says %+v, want result %s", n+1, got, stored)
		}
		if again != (result == "replayed") || !got.firstSeen.Equal(first.firstSeen) || !got.processed.Equal(*first.processed) {
			t.Errorf("row %d: the inbox says %+v, and first said %+v", n+1, got, first)
		}
		met[result] = true
	}
	if got := b.count("select count(*) from effect"); got != effects {
		t.Errorf("there are %d effects, want %d", got, effects)
	}
	if got := b.count("select count(*) from holdfast.inbox where consumer = 'ledger' and processed_at is not null"); got != 4 || len(met) != 3 {
		t.Errorf("the inbox has %d rows, the table had %v", got, met)
	}
}
