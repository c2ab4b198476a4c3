package idempotency

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The four routes of document 003, and its header: a double click is one row, and gets one answer.
func TestRequirements_TheFourCriticalRoutesReplayUnderTheOlderHeader(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	g := b.guard()
	mux := http.NewServeMux()
	for _, pattern := range []string{"POST /offers/{requestId}", "POST /offers/negotiation/{offerId}", "POST /offers/accept/{offerId}", "POST /help-requests"} {
		mux.Handle(pattern, g.Middleware(http.HandlerFunc(b.charge)))
	}
	click := func(path, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Account", "a")
		r.Header.Set("x-idempotency-key", "click-1")
		return b.through(mux, r)
	}
	for i, path := range []string{"/offers/7", "/offers/negotiation/7", "/offers/accept/7", "/help-requests"} {
		first, second := click(path, `{"price": 10}`), click(path, `{"price": 10}`)
		b.is(first, http.StatusCreated, "")
		b.same(first, second)
		if first.Header().Get("Idempotency-Status") != "stored" || second.Header().Get("Idempotency-Status") != "replayed" {
			t.Errorf("%s: got %v and %v", path, first.Header(), second.Header())
		}
		b.is(click(path, `{"price": 11}`), http.StatusConflict, codePayloadMismatch)
		b.kept(int64(i+1), int64(i+1), int64(i+1)) // each route has the key for itself
	}
}

func TestRequirements_AnAnswerThatIsNotStoredLeavesTheKeyFree(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			status := 0
			h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
				if o.Lease == 0 {
					b.halves(r.Context(), "debit")
				}
				w.WriteHeader(status)
			}, o)
			for _, refused := range []int{400, 404, 409, 410, 412, 413, 422, 423, 424, 428, 451, 499} {
				key := fmt.Sprint("k", refused)
				status = refused
				if w := b.send(h, sent{key: key}); w.Code != refused || w.Header().Get("Idempotency-Status") != "" {
					t.Errorf("got %d %v, want %d", w.Code, w.Header(), refused)
				}
				if n := pgtest.Count(t, b.db, "select count(*) from charge") + pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state <> 'pending'"); n != 0 {
					t.Errorf("%d: %d rows are left", refused, n)
				}
				status = http.StatusCreated
				b.is(b.send(h, sent{key: key}), http.StatusCreated, "")
				b.is(b.send(h, sent{key: key}), http.StatusCreated, "")
				pgtest.Exec(t, b.db, "delete from charge")
				pgtest.Exec(t, b.db, "delete from holdfast.idempotency")
			}
		})
	}
}
