package idempotency

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/store"
)

// The door that a request comes through says whose it is where one account has several tenants.

// inEveryMode runs a test with each kind of guard.
func inEveryMode(t *testing.T, test func(t *testing.T, b *bundle, guard func(change ...func(*Config)) *Guard, lease time.Duration)) {
	for mode, lease := range map[string]time.Duration{"in a transaction": 0, "under a lease": aLease, "without Postgres": aLease} {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			guard := b.guard
			if mode == "without Postgres" {
				guard = func(change ...func(*Config)) *Guard {
					g, err := NewEphemeral(&memory{rows: map[store.Key]*memoryRow{}}, b.config(change...))
					if err != nil {
						b.Fatal(err)
					}
					return g
				}
			}
			test(t, b, guard, lease)
		})
	}
}

// numbered answers each run of the handler by its number.
func (b *bundle) numbered(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, b.runs.Add(1))
}

// asked sends a request and wants a status with a body, or a problem.
func (b *bundle) asked(h http.Handler, s sent, status int, want string) {
	b.Helper()
	w := b.send(h, s)
	if w.Code != status || !strings.Contains(w.Body.String(), want) {
		b.Errorf("%s %s %s: got %d %s, want %d %s", s.host, s.account, s.path, w.Code, w.Body, status, want)
	}
}

// R48.
func TestTenant_AnAnswerIsNotReplayedToAnotherHost(t *testing.T) {
	inEveryMode(t, func(t *testing.T, b *bundle, guard func(...func(*Config)) *Guard, lease time.Duration) {
		h := b.service(guard(), b.numbered, Route{Lease: lease})
		b.asked(h, sent{key: "k", host: "one.example.com"}, 201, "1")
		b.asked(h, sent{key: "k", host: "ONE.example.com.:8443"}, 201, "1")
		b.asked(h, sent{key: "k", host: "two.example.com"}, 409, codePayloadMismatch)
		b.asked(h, sent{key: "k", host: "10.0.0.1:80"}, 409, codePayloadMismatch)
		// Addresses are machines behind one door.
		b.asked(h, sent{key: "m", host: "10.0.0.1:80"}, 201, "2")
		b.asked(h, sent{key: "m", host: "10.0.0.2"}, 201, "2")
		b.asked(h, sent{key: "m", host: "[fd00::1]:80"}, 201, "2")
		b.asked(h, sent{key: "m", host: "[fd00::2]"}, 201, "2")
	})
}

// R48.
func TestTenant_EachTenantOfAPrincipalHasItsOwnKeys(t *testing.T) {
	inEveryMode(t, func(t *testing.T, b *bundle, guard func(...func(*Config)) *Guard, lease time.Duration) {
		tenant, _, _ := strings.Cut("", ".")
		g := guard(func(c *Config) {
			c.TenantFunc = func(r *http.Request) string {
				tenant, _, _ = strings.Cut(r.Host, ".")
				return strings.Replace(tenant, "long", strings.Repeat("x", 600), 1)
			}
		})
		h := b.service(g, b.numbered, Route{Lease: lease, Operation: "charge"})
		b.asked(h, sent{key: "k", host: "one.example.com"}, 201, "1")
		b.asked(h, sent{key: "k", host: "two.example.com"}, 201, "2")
		b.asked(h, sent{key: "k", host: "one.example.org"}, 201, "1")
		b.asked(h, sent{key: "k", host: "two.example.org"}, 201, "2")
		b.asked(h, sent{key: "k", host: "one.example.com", account: "b"}, 201, "3")
		b.asked(h, sent{key: "k", host: "long1.example.com"}, 201, "4")
		b.asked(h, sent{key: "k", host: "long2.example.com"}, 201, "5")
		b.asked(h, sent{key: "k", host: "long1.example.com"}, 201, "4")
		b.asked(h, sent{key: "k", host: ".example.com"}, 201, "6")
		for _, scope := range []Scope{ScopeOperation, ScopeGlobal} {
			wide := b.service(g, b.numbered, Route{Lease: lease, Operation: string(scope), Scope: scope})
			n := b.runs.Load()
			key := "wide-" + string(scope)
			b.asked(wide, sent{key: key, host: "one.example.com"}, 201, fmt.Sprint(n+1))
			b.asked(wide, sent{key: key, host: "two.example.com"}, 201, fmt.Sprint(n+2))
			b.asked(wide, sent{key: key, host: "one.example.com", account: "b"}, 409, codePayloadMismatch)
		}
	})
}

func TestTenant_TwoTenantsNeverHaveOneScope(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	long := strings.Repeat("p", maxPrincipal)
	for _, tenant := range []string{"", "a", "a/principal:b", "a%2F", "a/", "tenant:a/", long, long + "p"} {
		for _, principal := range []string{"b", "a/principal:b", "sha256:" + Deterministic("a"), long} {
			for _, scope := range []string{principalScope + principal, "global", "operation"} {
				from := fmt.Sprintf("%q of %q", scope, tenant)
				got := scope
				if tenant != "" {
					got = tenantScope(tenant, scope)
				}
				if before, ok := seen[got]; ok && before != from {
					t.Errorf("%s and %s share the scope %q", before, from, got)
				}
				seen[got] = from
				if len(got) > maxScope {
					t.Errorf("the scope of %s has %d bytes", from, len(got))
				}
			}
		}
	}
}

// An answer that a build before this one stored, which compared no hosts, is still replayed, and a request that it began is
// still continued.
// R48.
func TestTenant_RowsOfABuildThatComparedNoHostsAreKnown(t *testing.T) {
	for mode, lease := range map[string]time.Duration{"in a transaction": 0, "under a lease": aLease} {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			g := b.guard()
			h := b.service(g, b.numbered, Route{Lease: lease})
			b.asked(h, sent{key: "k", host: "one.example.com"}, 201, "1")
			asOfBefore := func(change string) {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://one.example.com/charges", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", "application/json")
				old := subjectOf(r, "POST /charges", []byte(`{"amount": 10}`)).earlier()
				tag, err := b.server.Pool.Exec(t.Context(), "update holdfast.idempotency set fingerprint = $1, fingerprint_version = $2"+change, old[1:], old[0])
				if err != nil || tag.RowsAffected() != 1 {
					t.Fatal(tag, err)
				}
			}
			asOfBefore("")
			b.asked(h, sent{key: "k", host: "one.example.com"}, 201, "1")
			b.asked(h, sent{key: "k", host: "one.example.com", body: `{"amount": 11}`}, 409, codePayloadMismatch)
			if lease == 0 {
				return
			}
			asOfBefore(", state = 'pending', status = null, headers = null, body = null, body_hash = null, lease_until = clock_timestamp() - interval '1 second'")
			b.asked(h, sent{key: "k", host: "one.example.com", body: `{"amount": 11}`}, 409, codePayloadMismatch)
			b.asked(h, sent{key: "k", host: "one.example.com"}, 201, "2")
			b.asked(h, sent{key: "k", host: "one.example.com"}, 201, "2")
		})
	}
}
