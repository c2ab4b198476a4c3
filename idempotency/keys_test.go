package idempotency

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// R47.
func TestKeys_APrincipalHasNoMoreKeysThanItMay(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			charge := b.charge
			if o.Lease > 0 {
				charge = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
			}
			h := b.service(b.guard(func(c *Config) { c.MaxKeys = 3 }), charge, o)
			for i := range 3 {
				b.is(b.send(h, sent{key: fmt.Sprint("k", i)}), http.StatusCreated, "")
			}
			w := b.send(h, sent{key: "one-more"})
			b.is(w, http.StatusTooManyRequests, codeTooManyKeys)
			if got := w.Header().Get("Error-Code"); got != "RATE_LIMIT.idempotency.too_many_keys" || w.Header().Get("Retry-After") != "60" {
				t.Errorf("it has the headers %v", w.Header())
			}
			if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency"); n != 3 {
				t.Errorf("%d keys are kept, want 3", n)
			}
			// What is known is answered, and another principal has keys of its own.
			again := b.send(h, sent{key: "k1"})
			b.is(again, http.StatusCreated, "")
			if again.Header().Get("Idempotency-Status") != "replayed" {
				t.Errorf("a known key got %v", again.Header())
			}
			b.is(b.send(h, sent{key: "k1", header: http.Header{"Account": {"another"}}}), http.StatusCreated, "")
			// Another process counts for itself.
			other := b.service(b.guard(func(c *Config) { c.MaxKeys = 3 }), charge, o)
			b.is(b.send(other, sent{key: "one-more"}), http.StatusTooManyRequests, codeTooManyKeys)
			pgtest.Exec(t, b.db, "delete from holdfast.idempotency where key = 'k2'")
			fresh := b.service(b.guard(func(c *Config) { c.MaxKeys = 3 }), charge, o)
			b.is(b.send(fresh, sent{key: "one-more"}), http.StatusCreated, "")
			b.is(b.send(fresh, sent{key: "yet-another"}), http.StatusTooManyRequests, codeTooManyKeys)
		})
	}
}

func TestKeys_RequestsThatStoreNothingTakeNoRoom(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			status := http.StatusNotFound
			h := b.service(b.guard(func(c *Config) { c.MaxKeys = 2 }), func(w http.ResponseWriter, r *http.Request) {
				if status == http.StatusNotFound {
					DoNotStore(r.Context())
				}
				w.WriteHeader(status)
			}, o)
			for i := range 5 {
				if w := b.send(h, sent{key: fmt.Sprint("not-there", i)}); w.Code != status {
					t.Fatalf("request %d got %d %s", i, w.Code, w.Body)
				}
			}
			status = http.StatusCreated
			for _, key := range []string{"one", "two"} {
				b.is(b.send(h, sent{key: key}), http.StatusCreated, "")
			}
			b.is(b.send(h, sent{key: "three"}), http.StatusTooManyRequests, codeTooManyKeys)
		})
	}
}

func TestKeys_CountsOfKeysAreBelievedForAWhile(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var kc keyCounts
	take := func(at time.Time, most int, room, known bool) {
		t.Helper()
		if r, k := kc.take("a", most, at); r != room || k != known {
			t.Errorf("room %v, known %v; want %v, %v", r, k, room, known)
		}
	}
	take(now, 3, false, false)
	kc.counted("a", 1, now)
	take(now, 3, true, true)
	take(now.Add(countEvery-1), 3, true, true)
	take(now.Add(countEvery-1), 3, false, false) // Two were begun since: have they stored anything?
	take(now.Add(countEvery-1), 4, true, true)
	kc.counted("a", 3, now)
	take(now.Add(countEvery-1), 3, false, true)
	take(now.Add(countEvery), 4, false, false)
	for i := range maxCounts + 10 { // Counts that are old make room, and never are there more.
		kc.counted(fmt.Sprint("b", i), 1, now.Add(time.Duration(i)*time.Second))
	}
	if n := len(kc.of); n > maxCounts {
		t.Errorf("%d counts are kept", n)
	}
	if _, known := kc.take(fmt.Sprint("b", maxCounts+9), 3, now.Add((maxCounts+9)*time.Second)); !known {
		t.Error("the last count is gone")
	}
}

func TestKeys_AnAnswerThatIsTooLongIsNotHeldInMemory(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			var failed error
			length := 2000
			h := b.service(b.guard(func(c *Config) { c.MaxResponse, c.MaxAnswer = 100, 2000 }), func(w http.ResponseWriter, r *http.Request) {
				if o.Lease == 0 {
					b.halves(r.Context(), "debit")
				}
				w.WriteHeader(http.StatusCreated)
				for range length / 100 {
					if _, err := w.Write([]byte(strings.Repeat("x", 100))); err != nil {
						failed = err
					}
				}
			}, o)
			w := b.send(h, sent{key: "as-long-as-may-be"})
			b.is(w, http.StatusCreated, "")
			if w.Body.Len() != 2000 || failed != nil {
				t.Errorf("the answer has %d bytes, %v", w.Body.Len(), failed)
			}
			rows := pgtest.Count(t, b.db, "select count(*) from charge")
			length = 2100
			b.is(b.send(h, sent{key: "longer"}), http.StatusInternalServerError, codeHandlerFault)
			if failed == nil || !strings.Contains(failed.Error(), "MaxAnswer") {
				t.Errorf("the handler's write says %v", failed)
			}
			if n := pgtest.Count(t, b.db, "select count(*) from charge"); n != rows {
				t.Errorf("%d rows are left, want %d", n, rows)
			}
			length = 100
			b.is(b.send(h, sent{key: "longer"}), http.StatusCreated, "") // The key is free.
		})
	}
}
