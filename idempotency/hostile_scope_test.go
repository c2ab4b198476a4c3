package idempotency

import (
	"net/http"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Keys that look alike, of requests that have nothing to do with each other.

// R48.
func TestHostileScope_TheKeyForAnotherServiceIsNeverThatOfSomebodyElse(t *testing.T) {
	for mode, lease := range map[string]time.Duration{"in a transaction": 0, "under a lease": aLease, "without Postgres": aLease} {
		for _, scope := range []Scope{ScopePrincipal, ScopeOperation, ScopeGlobal} {
			t.Run(mode+", "+string(scope), func(t *testing.T) {
				b := setup(t)
				g, forgetful := b.guard(), &memory{}
				if mode == "without Postgres" {
					var err error
					if g, err = NewEphemeral(forgetful, b.config()); err != nil {
						t.Fatal(err)
					}
				}
				var keys []string
				h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
					keys = append(keys, DownstreamKey(r.Context(), "charge"))
					w.WriteHeader(http.StatusUnauthorized) // Nothing is kept, and the key is free.
				}, Route{Operation: "charge", Scope: scope, Lease: lease})
				for _, account := range []string{"a", "b", "a"} {
					forgetful.rows = map[store.Key]*memoryRow{} // It forgets, as stores do.
					b.is(b.send(h, sent{key: "order-17", account: account}), 401, "")
				}
				if keys[0] != keys[2] {
					t.Errorf("two tries of one request have the keys %s and %s", keys[0], keys[2])
				}
				if keys[0] == keys[1] {
					t.Errorf("two accounts share the key %s: the second would get the receipt of the first", keys[0])
				}
			})
		}
	}
}

// R48.
func TestHostileScope_TheKeyForAnotherServiceOutlivesADeploy(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	var got string
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		got = DownstreamKey(r.Context(), "charge")
		w.WriteHeader(200)
	}, Route{Operation: "POST /charges"})
	b.is(b.send(h, sent{key: "k"}), 200, "")
	if want := "f8741cef00a6d7ada382279b0a497af0b01a026d29ebd51c572f1906337926e5"; got != want {
		t.Errorf("got %s, want %s: what a build before this one has charged would be charged again", got, want)
	}
}

// After a failure the key is free, and the client may ask for something else under it. A provider that knows the key for the
// first amount would answer with that.
// R48.
func TestHostileScope_TheKeyForAnotherServiceDiffersWithWhatIsAskedFor(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	var got []string
	fails := true
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		got = append(got, DownstreamKey(r.Context(), "charge"))
		if fails {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else {
			w.WriteHeader(http.StatusCreated)
		}
	}, Route{IgnoreFields: []string{"/sent_at"}})
	b.is(b.send(h, sent{key: "k", body: `{"amount": 1000, "sent_at": 1}`}), 503, "")
	b.is(b.send(h, sent{key: "k", body: `{"sent_at": 2, "amount": 1000}`}), 503, "")
	fails = false
	b.is(b.send(h, sent{key: "k", body: `{"amount": 2000, "sent_at": 3}`}), 201, "")
	if got[0] != got[1] || got[0] == got[2] {
		t.Errorf("got %q", got)
	}
}
