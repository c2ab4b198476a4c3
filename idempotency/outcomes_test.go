package idempotency

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/fixture"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// TestOutcomes_TheReplayOutcomesOfTheTableComeOut sends the rows of testdata/replay_outcomes.csv one after the other. A row's
// key and payload are the request; what stands behind them is what has to come out. Status "failed" makes the handler
// fail, "pending" has a first request with the key run meanwhile.
// R49.
func TestOutcomes_TheReplayOutcomesOfTheTableComeOut(t *testing.T) {
	b := setup(t)
	rows := fixture.Rows(t, "testdata/replay_outcomes.csv", "key", "payload_hash", "status", "http_code", "result_id", "notes")
	pgtest.Exec(t, b.db, "create table refund (id int)")
	status := "" // of the row in hand
	in, out := make(chan struct{}), make(chan struct{})
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var id int
		if err := Tx(r.Context()).QueryRow(r.Context(), "insert into refund select coalesce(max(id), 122) + 1 from refund returning id").Scan(&id); err != nil {
			t.Error(err)
		}
		switch {
		case status == "failed":
			http.Error(w, "the bank is away", http.StatusServiceUnavailable)
			return
		case strings.Contains(string(body), "declined"):
			http.Error(w, "declined", http.StatusPaymentRequired)
			return
		case status == "pending":
			in <- struct{}{}
			<-out
		}
		SetResult(r.Context(), fmt.Sprint("rf_", id))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"id": "rf_%d"}`, id)
	})
	met := map[string]bool{}
	for n, row := range rows {
		key, payload, code, result, notes := row[0], row[1], row[3], row[4], row[5]
		status = row[2]
		met[status] = true
		s := sent{key: key, body: fmt.Sprintf(`{"payload": %q}`, payload)}
		var first sync.WaitGroup
		if status == "pending" {
			first.Go(func() { b.is(b.send(h, s), 201, "") })
			<-in
		}
		w := b.send(h, s)
		if status == "pending" {
			close(out)
			first.Wait()
		}
		if got := fmt.Sprint(w.Code); got != code {
			t.Fatalf("row %d, %s: got %s %s", n+1, notes, got, w.Body)
		}
		kept := pgtest.Count(t, b.db, `select count(*) from holdfast.idempotency where key = $1 and status = $2::int and coalesce(result_ref, '') = $3 and state = 'complete'`, key, code, result)
		switch shown := w.Header().Get("Idempotency-Status"); status {
		case "complete":
			want := map[string]string{"created": "stored", "replayed": "replayed"}[strings.FieldsFunc(notes, func(c rune) bool { return c == ' ' || c == ':' })[0]]
			if shown != want || kept != 1 {
				t.Errorf("row %d, %s: got status %q, %d rows are kept so", n+1, notes, shown, kept)
			}
			var body struct{ ID string }
			if code == "201" && (json.Unmarshal(w.Body.Bytes(), &body) != nil || body.ID != result) {
				t.Errorf("row %d, %s: got %s, want %s", n+1, notes, w.Body, result)
			}
		case "conflict":
			b.is(w, 409, codePayloadMismatch)
		case "pending":
			b.is(w, 409, codeInProgress)
		case "failed":
			if shown != "" || pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where key = $1", key) != 0 {
				t.Errorf("row %d, %s: something is kept, or said to be: %q", n+1, notes, shown)
			}
		default:
			t.Fatalf("row %d has status %q", n+1, status)
		}
	}
	if len(met) != 4 {
		t.Errorf("the rows have only %v", met)
	}
}
