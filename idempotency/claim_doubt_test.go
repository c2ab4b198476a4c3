package idempotency

import (
	"net/http"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Postgres carries a claim out, its answer is lost, and then nobody can be asked. Where the request was kept it will be run
// yet: the client must not be told that nothing was done.
func TestClaimDoubt_AClaimOfUnknownOutcomeIsNotCalledNothingWhereItIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		route Route
		code  string
	}{
		"kept":     {completed(), codeOutcomeUnknown},
		"not kept": {Route{Lease: aLease, Operation: "sell"}, codeStoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			f := &faulty{t: b, point: point{statement: "idempotency.claim"}, fault: fault{"nobody is reached any more", func(f *faulty) { f.cut.Store(true) }}}
			ran := 0
			h := b.service(b.guardOn(faultyPool(b, b.db.DSN, f), soon(10)), func(w http.ResponseWriter, _ *http.Request) { ran++; w.WriteHeader(http.StatusCreated) }, c.route)
			b.is(b.send(h, sent{key: "warm"}), http.StatusCreated, "")
			f.armed.Store(true)
			b.is(b.send(h, sent{key: "k"}), http.StatusServiceUnavailable, c.code)
			if !f.struck.Load() || ran > 1 {
				t.Fatalf("there was no claim, or its handler ran (%d): the test tests nothing", ran)
			}
			if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state = 'pending'"); n != 1 {
				t.Errorf("%d keys are claimed, want 1: the test tests nothing", n)
			}
		})
	}
}
