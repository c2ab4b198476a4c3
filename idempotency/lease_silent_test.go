package idempotency

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/store"
)

// silent is a store that answers the first few renewals and no other.
type silent struct {
	store.Store
	answers int
	asked   int
}

func (s *silent) Renew(ctx context.Context, k store.Key, fence int64, lease time.Duration) (bool, error) {
	if s.asked++; s.asked > s.answers {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return s.Store.Renew(ctx, k, fence, lease)
}

// From the moment at which a lease runs out another request may have the key. A renewal that is not answered must not let a
// handler go on behind it.
func TestLeaseSilent_AHandlerEndsWithItsLeaseHoweverLongARenewalIsNotAnswered(t *testing.T) {
	const lease = 30 * time.Second
	for _, answers := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			b := &bundle{T: t}
			keys := &silent{Store: &memory{rows: map[store.Key]*memoryRow{}}, answers: answers}
			g, err := NewEphemeral(keys, b.config())
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			var ended time.Duration
			h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				ended = time.Since(began)
			}, Route{Lease: lease, Timeout: time.Hour})
			r := httptest.NewRequest(http.MethodPost, "/charges", http.NoBody)
			r.Header.Set("Idempotency-Key", "k")
			r.Header.Set("Account", "a")
			h.ServeHTTP(httptest.NewRecorder(), r)
			// Each renewal comes a third of a lease behind the one before.
			if want := time.Duration(answers)*lease/3 + lease; ended != want {
				t.Errorf("%d renewals are answered: the handler ended after %s, its lease after %s", answers, ended, want)
			}
			if keys.asked < answers+2 {
				t.Errorf("%d renewals were asked for: one that failed was not tried again", keys.asked)
			}
		})
	}
}
