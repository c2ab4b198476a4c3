package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/outbox"
)

// R1 to R49 and C1 to C10 in names of tests are rows of docs/project/idempotency.md, which says what each is about.

// R1.
func TestRequest_AMissingKeyIsRefused(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(func(c *Config) { c.DocsURL = "https://shop.example/docs/keys" }), b.charge)
	w := b.send(h, sent{})
	b.is(w, 400, codeKeyMissing)
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("got content type %q", got)
	}
	if got := w.Header().Get("Link"); got != `<https://shop.example/docs/keys>; rel="describedby"` {
		t.Errorf("got link %q", got)
	}
	var p map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if p["title"] != "Idempotency-Key is missing" || p["status"] != 400.0 || p["retryable"] != false || p["error_code"] != "VALIDATION.idempotency.key_missing" {
		t.Errorf("got %v", p)
	}
	b.kept(0, 0, 0)
}

// R2, R3.
func TestRequest_AnInvalidKeyNeverReachesTheHandler(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	for name, header := range map[string]http.Header{
		"empty":           {"Idempotency-Key": {""}},
		"256 bytes":       {"Idempotency-Key": {strings.Repeat("k", 256)}},
		"two lines":       {"Idempotency-Key": {"a", "a"}},
		"names differ":    {"Idempotency-Key": {"a"}, "X-Idempotency-Key": {"b"}},
		"a comma":         {"Idempotency-Key": {"a,b"}},
		"not ASCII":       {"Idempotency-Key": {"clé"}},
		"unended string":  {"Idempotency-Key": {`"abc`}},
		"control in it":   {"Idempotency-Key": {"a\x01b"}},
		"empty in quotes": {"Idempotency-Key": {`""`}},
	} {
		w := b.send(h, sent{header: header})
		if w.Code != 400 || !strings.Contains(w.Body.String(), codeKeyInvalid) {
			t.Errorf("%s: got %d %s", name, w.Code, w.Body)
		}
	}
	b.is(b.send(h, sent{key: strings.Repeat("k", 255)}), 201, "")
	b.is(b.send(h, sent{header: http.Header{"X-Idempotency-Key": {"older-name"}}}), 201, "")
	b.is(b.send(h, sent{header: http.Header{"X-Idempotency-Key": {"older-name"}, "Idempotency-Key": {`"older-name"`}}}), 201, "")
	b.kept(2, 2, 2)
}

// R4, R5.
func TestRequest_ARepeatGetsTheSameAnswerAndTheHandlerDoesNotRun(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	first := b.send(h, sent{key: "k1"})
	b.is(first, 201, "")
	if got := first.Header().Get("Idempotency-Status"); got != "stored" {
		t.Errorf("got status %q", got)
	}
	if first.Header().Get("Idempotency-Key") != "k1" || first.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("got %v", first.Header())
	}
	for range 3 {
		second := b.send(h, sent{key: "k1"})
		b.same(first, second)
		if second.Header().Get("Idempotency-Status") != "replayed" || second.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("got %v", second.Header())
		}
	}
	b.kept(1, 1, 1)
	if n := b.runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
	if got := b.results(); !slices.Equal(got, []Result{Created, Replayed, Replayed, Replayed}) {
		t.Errorf("reported %v", got)
	}
}

// R5.
func TestRequest_AnswersOfEveryShapeComeBackByteForByte(t *testing.T) {
	b := setup(t)
	for name, handler := range map[string]http.HandlerFunc{
		"empty 200": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(200) },
		"204":       func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) },
		"binary":    func(w http.ResponseWriter, r *http.Request) { w.Write([]byte{0, 1, 0xff, 0xfe, '\n', 0}) },
		"303":       func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusSeeOther) },
		"402": func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "declined", http.StatusPaymentRequired)
		},
		"many links": func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Link"] = []string{"<a>", "<b>"}
			w.WriteHeader(200)
		},
		"latin-1": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Disposition", "f=\xe9")
			w.WriteHeader(200)
		},
		"sniffed":       func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html><body>hi</body></html>") },
		"no type":       func(w http.ResponseWriter, r *http.Request) { w.Header()["Content-Type"] = nil; fmt.Fprint(w, "hi") },
		"json, trailed": func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "{\"b\":1, \"a\":1e2}\n\n") },
	} {
		srv := httptest.NewServer(b.service(b.guard(), handler))
		ask := func() (int, string, http.Header) {
			r, _ := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/charges", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", name[:2]+strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", ""))
			r.Header.Set("Account", "a")
			client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			var body strings.Builder
			if _, err := fmt.Fprint(&body, readAll(t, res)); err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, body.String(), res.Header
		}
		status, body, header := ask()
		status2, body2, header2 := ask()
		if header2.Get("Idempotency-Status") != "replayed" {
			t.Errorf("%s: not replayed: %d %v", name, status2, header2)
		}
		for _, h := range []http.Header{header, header2} {
			for _, own := range []string{"Date", "Idempotency-Status", "Idempotent-Replayed"} {
				h.Del(own)
			}
		}
		if status != status2 || body != body2 || fmt.Sprint(header) != fmt.Sprint(header2) {
			t.Errorf("%s: got %d %q %v, then %d %q %v", name, status, body, header, status2, body2, header2)
		}
		srv.Close()
	}
}

// R6.
func TestRequest_AKeyWithAnotherRequestIsRefusedAndChangesNothing(t *testing.T) {
	b := setup(t)
	g := b.guard()
	h := b.service(g, b.charge)
	first := b.send(h, sent{key: "k1", body: `{"amount": 10}`})
	w := b.send(h, sent{key: "k1", body: `{"amount": 20}`})
	b.is(w, 409, codePayloadMismatch)
	if w.Header().Get("Retry-After") != "" {
		t.Error("a mismatch is not worth another try")
	}
	b.same(first, b.send(h, sent{key: "k1", body: `{"amount": 10}`}))
	b.is(b.send(b.service(g, b.charge, Route{MismatchStatus: 422}), sent{key: "k1", body: `{"amount": 20}`}), 422, codePayloadMismatch)
	b.kept(1, 1, 1)
}

// R7.
func TestRequest_WhatAFingerprintCovers(t *testing.T) {
	b := setup(t)
	g := b.guard()
	h := b.service(g, b.charge)
	b.is(b.send(h, sent{key: "k", path: "/orders/1?a=1&b=2&a=3"}), 201, "")
	b.is(b.send(h, sent{key: "k", path: "/orders/1?b=2&a=1&a=3"}), 201, "")
	for name, s := range map[string]sent{
		"another path":        {path: "/orders/2?a=1&b=2&a=3"},
		"values in new order": {path: "/orders/1?a=3&b=2&a=1"},
		"another media type":  {path: "/orders/1?a=1&b=2&a=3", header: http.Header{"Content-Type": {"text/plain"}}},
		"a condition":         {path: "/orders/1?a=1&b=2&a=3", header: http.Header{"If-Match": {`"v1"`}}},
	} {
		s.key = "k"
		if w := b.send(h, s); w.Code != 409 || !strings.Contains(w.Body.String(), codePayloadMismatch) {
			t.Errorf("%s: got %d %s", name, w.Code, w.Body)
		}
	}
	// A handler that changes its request does not change what is compared.
	spoil := b.service(g, func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path, r.Body = "/spoilt", http.NoBody
		r.Header.Set("If-Match", "x")
		w.WriteHeader(201)
	})
	b.is(b.send(spoil, sent{key: "spoilt"}), 201, "")
	b.is(b.send(spoil, sent{key: "spoilt"}), 201, "")
	b.kept(1, 1, 2)
}

// R8, R9.
func TestRequest_TheOrderOfNamesIsIrrelevantWhatDiffersIsNot(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	b.is(b.send(h, sent{key: "k1", body: `{"a":1,"b":2}`}), 201, "")
	b.is(b.send(h, sent{key: "k1", body: `{ "b":2.0, "a":1 }`}), 201, "")
	b.is(b.send(h, sent{key: "k2", body: `{"id":9007199254740993}`}), 201, "")
	b.is(b.send(h, sent{key: "k2", body: `{"id":9007199254740992}`}), 409, codePayloadMismatch)
	b.kept(2, 2, 2)
}

// R10.
func TestRequest_FieldsThatMayDiffer(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	h := b.service(b.guard(), b.charge, Route{IgnoreFields: []string{"/sent_at", "/meta/nonce"}})
	b.is(b.send(h, sent{key: "k", body: `{"amount":1,"sent_at":"now","meta":{"nonce":1,"x":2}}`}), 201, "")
	b.is(b.send(h, sent{key: "k", body: `{"amount":1,"sent_at":"then","meta":{"nonce":2,"x":2}}`}), 201, "")
	b.is(b.send(h, sent{key: "k", body: `{"amount":1,"sent_at":"then","meta":{"nonce":2,"x":3}}`}), 409, codePayloadMismatch)
	selected := b.service(b.guard(), b.charge, Route{Operation: "selected", Fingerprint: func(r *http.Request, body []byte) ([]byte, error) {
		var v struct{ Amount json.Number }
		err := json.Unmarshal(body, &v)
		return []byte(v.Amount), err
	}})
	b.is(b.send(selected, sent{key: "s", body: `{"amount":1,"x":1}`}), 201, "")
	b.is(b.send(selected, sent{key: "s", body: `{"amount":1,"x":2}`}), 201, "")
	b.is(b.send(selected, sent{key: "s", body: `{"amount":2,"x":2}`}), 409, codePayloadMismatch)
	b.kept(2, 2, 2)
}

// R13.
func TestRequest_AnotherKeyIsAnotherOperation(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	b.is(b.send(h, sent{key: "k1"}), 201, "")
	b.is(b.send(h, sent{key: "k2"}), 201, "")
	b.kept(2, 2, 2)
}

// R14.
func TestRequest_AKeyBelongsToOnePrincipalAndOneOperation(t *testing.T) {
	b := setup(t)
	g := b.guard()
	h := b.service(g, b.charge)
	first, second := b.send(h, sent{key: "k", account: "a"}), b.send(h, sent{key: "k", account: "b"})
	if first.Body.String() == second.Body.String() {
		t.Errorf("b got what was a's: %s", second.Body)
	}
	b.is(b.send(h, sent{key: "k", path: "/orders/1"}), 201, "")
	b.kept(3, 3, 3)
	b.is(b.send(h, sent{key: "k", header: http.Header{"Account": {""}}}), 401, codePrincipalUnknown)
	anonymous := b.service(g, b.charge, Route{Anonymous: true})
	b.is(b.send(anonymous, sent{key: "k", header: http.Header{"Account": {""}}}), 201, "")
	b.kept(4, 4, 4)
}

// R14.
func TestRequest_WiderScopesNeverShowAnAnswerToSomebodyElse(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	g := b.guard()
	for _, o := range []Route{{Operation: "payments", Scope: ScopeOperation}, {Operation: "payments", Scope: ScopeGlobal}} {
		h := b.service(g, b.charge, o)
		key := "k-" + string(o.Scope)
		b.is(b.send(h, sent{key: key, account: "a"}), 201, "")
		b.is(b.send(h, sent{key: key, account: "b"}), 409, codePayloadMismatch)
		b.is(b.send(h, sent{key: key, account: "a"}), 201, "")
	}
	other := b.service(g, b.charge, Route{Operation: "refunds", Scope: ScopeGlobal})
	b.is(b.send(other, sent{key: "k-global", account: "a"}), 409, codePayloadMismatch)
	b.kept(2, 2, 2)
}

// A handler that is registered outside of the guard, or passes another context, hears so from each of its statements.
func TestRequest_WhatIsNotGuardedHearsSo(t *testing.T) {
	ctx := t.Context()
	b := setup(t)
	var leased pgx.Tx
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		leased = Tx(r.Context())
		w.WriteHeader(201)
	}, Route{Lease: time.Minute})
	b.send(h, sent{key: "k"})
	for want, tx := range map[string]pgx.Tx{"no Guard has this request": Tx(ctx), "write in idempotency.Step": leased} {
		_, exec := tx.Exec(ctx, "select 1")
		rows, query := tx.Query(ctx, "select 1")
		rows.Close()
		row := tx.QueryRow(ctx, "select 1").Scan(new(int))
		_, begin := tx.Begin(ctx)
		_, copied := tx.CopyFrom(ctx, pgx.Identifier{"a"}, []string{"b"}, pgx.CopyFromRows(nil))
		_, prepared := tx.Prepare(ctx, "a", "select 1")
		batch := &pgx.Batch{}
		batch.Queue("select 1")
		for what, err := range map[string]error{
			"Exec": exec, "Query": query, "QueryRow": row, "Begin": begin, "CopyFrom": copied, "Prepare": prepared, "SendBatch": tx.SendBatch(ctx, batch).Close(),
			"Commit": tx.Commit(ctx), "outbox.Write": outbox.Write(ctx, tx, holdfast.Event{Topic: "t", Type: "t"}), "outbox.Lock": outbox.Lock(ctx, tx, "k"),
			"a function in a transaction": pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { return nil }),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
	}
}

// R16, R17.
func TestRequest_WhichMethodsAreGuarded(t *testing.T) {
	b := setup(t)
	g := b.guard()
	h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		_, err := Tx(r.Context()).Exec(r.Context(), "select 1")
		if (err != nil) != (r.Method == "GET" || r.Method == "PUT" || r.Method == "DELETE") {
			t.Errorf("%s has the transaction of %v", r.Method, err)
		}
		w.WriteHeader(200)
	})
	for method, want := range map[string]int64{"GET": 2, "PUT": 2, "DELETE": 2, "POST": 1, "PATCH": 1} {
		b.runs.Store(0)
		for range 2 {
			b.send(h, sent{key: "k", method: method})
		}
		if n := b.runs.Load(); n != want {
			t.Errorf("%s ran %d times, want %d", method, n, want)
		}
	}
	b.runs.Store(0)
	more := b.service(g, func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		w.WriteHeader(200)
	}, Route{Methods: []string{"DELETE"}})
	b.send(more, sent{key: "k", method: "DELETE"})
	b.send(more, sent{key: "k", method: "DELETE"})
	if n := b.runs.Load(); n != 1 {
		t.Errorf("R41: a guarded DELETE ran %d times", n)
	}
}

// C10.
func TestRequest_AnOptionalKeyRunsTheHandlerInATransactionToo(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge, Route{Optional: true})
	b.is(b.send(h, sent{}), 201, "")
	b.is(b.send(h, sent{}), 201, "")
	b.kept(2, 2, 0)
	if got := b.results(); !slices.Equal(got, []Result{Bypassed, Bypassed}) {
		t.Errorf("reported %v", got)
	}
}

// C9.
func TestRequest_KeysOfOtherSourcesAndForms(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	g := b.guard()
	derived := b.service(g, b.charge, Route{Operation: "derived", KeyFormat: SHA256, KeyFunc: func(r *http.Request, body []byte) (string, error) {
		return Deterministic(r.Header.Get("Account"), "charge", string(body)), nil
	}})
	b.is(b.send(derived, sent{}), 201, "")
	b.is(b.send(derived, sent{}), 201, "")
	b.is(b.send(derived, sent{body: `{"amount": 11}`}), 201, "")
	b.kept(2, 2, 2)
	uuids := b.service(g, b.charge, Route{KeyFormat: UUID})
	b.is(b.send(uuids, sent{key: "k"}), 400, codeKeyInvalid)
	b.is(b.send(uuids, sent{key: NewKey()}), 201, "")
	prefixed := b.service(g, b.charge, Route{KeyFormat: Prefixed("refund")})
	b.is(b.send(prefixed, sent{key: "refund:ch_9ab:1000:6f6c"}), 201, "")
	b.is(b.send(prefixed, sent{key: "charge:ch_9ab:1000:6f6c"}), 400, codeKeyInvalid)
}

// R29.
func TestRequest_ALongRequestIsRefused(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge, Route{MaxRequest: 1000})
	b.is(b.send(h, sent{key: "k", body: strings.Repeat("x", 1001)}), 413, codeRequestTooLarge)
	b.kept(0, 0, 0)
	b.is(b.send(h, sent{key: "k", body: strings.Repeat("x", 1000)}), 201, "")
}

// A session store that is down is no reason to send a client to its sign-in.
func TestRequest_APrincipalThatCannotBeFoundOutIsNoRefusal(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	var fails error
	h := b.service(b.guard(func(c *Config) {
		c.Principal = func(*http.Request) (string, error) { return "a", fails }
	}), b.charge)
	for _, fails = range []error{context.DeadlineExceeded, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}} {
		b.is(b.send(h, sent{key: "k"}), 503, codeStoreUnavailable)
	}
	fails = errors.New("the session has ended")
	b.is(b.send(h, sent{key: "k"}), 401, codePrincipalUnknown)
	fails = nil
	b.is(b.send(h, sent{key: "k"}), 201, "")
	if got := b.results(); !slices.Equal(got, []Result{Unavailable, Unavailable, Refused, Created}) {
		t.Errorf("reported %v", got)
	}
}
