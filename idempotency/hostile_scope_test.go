package idempotency

import (
	"net/http"
	"testing"
	"time"
)

// Keys that look alike, of requests that have nothing to do with each other.

// R48.
func TestTheKeyForAnotherServiceIsNeverThatOfSomebodyElse(t *testing.T) {
	for mode, lease := range map[string]time.Duration{"in a transaction": 0, "under a lease": aLease, "without Postgres": aLease} {
		for _, scope := range []Scope{ScopePrincipal, ScopeOperation, ScopeGlobal} {
			t.Run(mode+", "+string(scope), func(t *testing.T) {
				b := setup(t)
				g, store := b.guard(), &memory{}
				if mode == "without Postgres" {
					var err error
					if g, err = NewEphemeral(store, b.config()); err != nil {
						t.Fatal(err)
					}
				}
				var keys []string
				h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
					keys = append(keys, DownstreamKey(r.Context(), "charge"))
					w.WriteHeader(http.StatusUnauthorized) // Nothing is kept, and the key is free.
				}, Route{Operation: "charge", Scope: scope, Lease: lease})
				for _, account := range []string{"a", "b", "a"} {
					store.rows = map[StoreKey]*memoryRow{} // It forgets, as stores do.
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
func TestTheKeyForAnotherServiceOutlivesADeploy(t *testing.T) {
	b := setup(t)
	var got string
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		got = DownstreamKey(r.Context(), "charge")
		w.WriteHeader(200)
	}, Route{Operation: "POST /charges"})
	b.is(b.send(h, sent{key: "k"}), 200, "")
	if want := "0599e5356e3421cda22abab41c2f8ec36b87ff811c2f15ebca2dffcb2f016a62"; got != want {
		t.Errorf("got %s, want %s: what a build before this one has charged would be charged again", got, want)
	}
}
