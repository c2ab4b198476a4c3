package idempotency

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

// A conflict's line says which parts of the request differ from the first one, and nothing of what is in them.
func TestFingerprint_AConflictsLineNamesThePartsThatDiffer(t *testing.T) {
	for mode, lease := range map[string]time.Duration{"in a transaction": 0, "under a lease": aLease} {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			log := &logtest.Log{}
			g := b.guard(func(c *Config) {
				c.Logger = slog.New(slog.NewJSONHandler(log, nil))
			})
			// One operation in a scope of all accounts, so that each part can differ by itself.
			h := b.service(g, b.numbered, Route{Lease: lease, Scope: ScopeGlobal, Operation: "charge", Methods: []string{"POST", "PATCH"}})
			other := b.service(g, b.numbered, Route{Lease: lease, Scope: ScopeGlobal, Operation: "refund"})
			const path = "/orders/secret?a=1&b=2"
			b.asked(h, sent{key: "k", path: path}, 201, "1")
			log.Take()
			for differs, c := range map[string]struct {
				h http.Handler
				s sent
			}{
				"host":              {h, sent{path: path, host: "secret.example.com"}},
				"operation":         {other, sent{path: path}},
				"method":            {h, sent{path: path, method: "PATCH"}},
				"path":              {h, sent{path: "/orders/8?a=1&b=2"}},
				"query":             {h, sent{path: "/orders/secret?a=1&b=3"}},
				"media_type":        {h, sent{path: path, header: http.Header{"Content-Type": {"application/merge-patch+json"}}}},
				"conditions":        {h, sent{path: path, header: http.Header{"If-Match": {`"secret"`}}}},
				"account":           {h, sent{path: path, account: "secret"}},
				"body":              {h, sent{path: path, body: `{"amount": 11}`}},
				"media_type body":   {h, sent{path: path, header: http.Header{"Content-Type": {"text/plain"}}}}, // its bytes count then
				"query account":     {h, sent{path: "/orders/secret?a=2&b=2", account: "b"}},
				"host path query":   {h, sent{path: "/orders/8", host: "secret.example.com"}},
				"conditions body":   {h, sent{path: path, body: "[]", header: http.Header{"If-None-Match": {"*"}}}},
				"method media_type": {h, sent{path: path, method: "PATCH", header: http.Header{"Content-Type": {"application/json-patch+json"}}}},
			} {
				c.s.key = "k"
				b.asked(c.h, c.s, 409, codePayloadMismatch)
				text := log.String()
				lines := logtest.Lines[struct {
					Msg, Outcome string
					Differs      []string
				}](t, log.Take())
				if len(lines) != 1 || lines[0].Outcome != "conflict" || strings.Join(lines[0].Differs, " ") != differs {
					t.Errorf("%s: got %+v", differs, lines)
				}
				if strings.Contains(text, "secret") {
					t.Errorf("%s: the log says too much: %s", differs, text)
				}
			}
			b.asked(h, sent{key: "k", path: path, body: `{"amount":1e1}`}, 201, "1") // the same, written otherwise
			if text := log.String(); strings.Contains(text, "differs") {
				t.Errorf("a replay differs: %s", text)
			}
		})
	}
}

// An answer of a build before this one, whose fingerprints had no checksums, is still replayed, and a request that it began is
// continued.
func TestFingerprint_RowsWithoutChecksumsAreKnown(t *testing.T) {
	for mode, lease := range map[string]time.Duration{"in a transaction": 0, "under a lease": aLease} {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			h := b.service(b.guard(), b.numbered, Route{Lease: lease})
			b.asked(h, sent{key: "k"}, 201, "1")
			asOfBefore := func(change string) {
				t.Helper()
				tag, err := b.server.Pool.Exec(t.Context(), "update holdfast.idempotency set fingerprint = substring(fingerprint for 32)"+change)
				if err != nil || tag.RowsAffected() != 1 {
					t.Fatal(tag, err)
				}
			}
			asOfBefore("")
			b.asked(h, sent{key: "k"}, 201, "1")
			b.asked(h, sent{key: "k", body: `{"amount": 11}`}, 409, codePayloadMismatch)
			if lease == 0 {
				return
			}
			asOfBefore(", state = 'pending', status = null, headers = null, body = null, body_hash = null, lease_until = clock_timestamp() - interval '1 second'")
			b.asked(h, sent{key: "k", body: `{"amount": 11}`}, 409, codePayloadMismatch)
			b.asked(h, sent{key: "k"}, 201, "2")
			b.asked(h, sent{key: "k"}, 201, "2")
		})
	}
}

// A Store takes 64 bytes, and parts are compared at their places.
func TestFingerprint_ChecksumsFitAStore(t *testing.T) {
	t.Parallel()
	one := subject{operation: "o", method: "m", path: "p", host: "h", conditions: []string{"", ""}, body: []byte("b")}
	if n := len(one.fingerprint()); n != 1+32+len(covered)*checksumSize || n > 64 {
		t.Errorf("a fingerprint has %d bytes", n)
	}
	other := one
	other.conditions = []string{"", "x"}
	a, b := one.fingerprint()[1:], other.fingerprint()[1:]
	if got := fmt.Sprint(differing(a, b), differing(b, a), differing(a, a), differing(a, b[:32]), differing(a[:32], b)); got != "[conditions] [conditions] [] [] []" {
		t.Errorf("got %s", got)
	}
	if slices.Equal(comparedOf(a), comparedOf(b)) {
		t.Error("two requests have one hash")
	}
	// A request that has waited for a row without checksums may meet one with them, of a node that took the key meanwhile, and the other way round.
	whole, short := one.fingerprint(), one.fingerprint()[:33]
	for _, asked := range [][]byte{whole, short} {
		for _, kept := range [][]byte{whole, short} {
			s := &stored{Fingerprint: kept[1:], Version: int16(kept[0]), State: statePending}
			if got := foundOf(s, asked); got != foundPending {
				t.Errorf("%d bytes meet %d: %v", len(asked), len(kept), got)
			}
		}
		if got := foundOf(&stored{Fingerprint: b, Version: int16(whole[0]), State: statePending}, asked); got != foundOther {
			t.Errorf("another request: %v", got)
		}
		if got := foundOf(&stored{Fingerprint: b[:40], Version: int16(whole[0]), State: statePending}, asked); got != foundUnusable {
			t.Errorf("a fingerprint of 40 bytes: %v", got)
		}
	}
	// The order of the parts is that of the rows that are stored: a change needs another version.
	if got := strings.Join(covered, " "); got != "host operation method path query media_type conditions account body" {
		t.Errorf("the parts are %s", got)
	}
}
