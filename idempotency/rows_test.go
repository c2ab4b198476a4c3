package idempotency

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Rows of docs/project/idempotency.md that are about what stands around the middleware, and about its options.

// R15.
func TestRows_WhoseAccountWasRevokedGetsNoStoredAnswer(t *testing.T) {
	b := setup(t)
	revoked := false
	inner := b.service(b.guard(), b.charge)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // it authenticates, outside
		if revoked {
			http.Error(w, "revoked", http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
	b.is(b.send(h, sent{key: "k"}), 201, "")
	revoked = true
	w := b.send(h, sent{key: "k"})
	if b.is(w, 401, ""); strings.Contains(w.Body.String(), "id") || w.Header().Get(headerStatus) != "" {
		t.Errorf("got %s, %v", w.Body, w.Header())
	}
	revoked = false
	if w := b.send(h, sent{key: "k"}); w.Header().Get(headerStatus) != "replayed" {
		t.Errorf("the refusal took the answer away: %d %v", w.Code, w.Header())
	}
}

// R28.
func TestRows_ALostAnswerToCommitIsFoundOut(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	if w := b.strike(b.charging(), b.db.DSN, points[5], faults[4]); w.Code != 201 || w.Header().Get(headerStatus) != "stored" {
		t.Errorf("the first try got %d %s", w.Code, w.Body)
	}
}

// R28.
func TestRows_WhatCannotBeFoundOutIsSaidToBeUnknownAndTheRetryFindsOut(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	w := b.strike(b.charging(), b.db.DSN, points[5], fault{"the network is cut", func(f *faulty) { f.deaf.Store(true); f.cut.Store(true) }})
	b.is(w, 503, codeOutcomeUnknown)
	if w.Header().Get("Retry-After") != "1" {
		t.Errorf("got %v", w.Header())
	}
}

// R37.
func TestRows_AnAnswerOutlivesTheProcessThatGaveIt(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	first := b.send(b.service(b.guardOn(b.pool(2)), b.charge), sent{key: "k"})
	b.is(first, 201, "")
	b.same(first, b.send(b.service(b.guardOn(b.pool(2)), b.charge), sent{key: "k"})) // nothing is shared but the database
	b.kept(1, 1, 1)
}

// R38.
func TestRows_AReplayCanBeGivenMoreHeaders(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge, Route{OnReplay: func(r *http.Request, h http.Header) { h.Set("Replayed-For", r.Header.Get("Account")) }})
	if w := b.send(h, sent{key: "k"}); w.Header().Get("Replayed-For") != "" {
		t.Errorf("a first answer has it: %v", w.Header())
	}
	if w := b.send(h, sent{key: "k"}); w.Header().Get("Replayed-For") != "a" {
		t.Errorf("got %v", w.Header())
	}
}

// R39.
func TestRows_TheValidityOfAKeyIsShownOnlyWhereItIsAskedFor(t *testing.T) {
	b := setup(t)
	for _, show := range []bool{false, true} {
		h := b.service(b.guard(func(c *Config) { c.ShowExpiry = show; c.TTL = time.Hour }), b.charge, Route{Operation: fmt.Sprint(show)})
		var shown []string
		for range 2 {
			w := b.send(h, sent{key: "k"})
			shown = append(shown, w.Header().Get(headerExpires))
		}
		if !show && shown[0]+shown[1] != "" {
			t.Errorf("it is shown: %v", shown)
		}
		if at, err := http.ParseTime(shown[0]); show && (err != nil || shown[0] != shown[1] || time.Until(at) > time.Hour || time.Until(at) < 50*time.Minute) {
			t.Errorf("got %v, %v", shown, err)
		}
	}
}

// R17, R41.
func TestRows_AGuardedDeleteRepliesWhatItRepliedFirst(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, "insert into charge (amount) values ('1'), ('2')")
	remove := func(w http.ResponseWriter, r *http.Request) {
		id := strings.TrimPrefix(r.URL.Path, "/orders/")
		db := pgtest.Querier(b.db)
		if _, guarded := InfoOf(r.Context()); guarded {
			db = Tx(r.Context())
		}
		tag, err := db.Exec(r.Context(), "delete from charge where id = $1::text::int", id)
		switch {
		case err != nil:
			http.Error(w, err.Error(), 500)
		case tag.RowsAffected() == 0:
			http.Error(w, "gone", http.StatusNotFound)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}
	g := b.guard()
	plain, guarded := b.service(g, remove), b.service(g, remove, Route{Methods: []string{http.MethodDelete}})
	for _, c := range []struct {
		h    http.Handler
		path string
		want []int
	}{{plain, "/orders/1", []int{204, 404}}, {guarded, "/orders/2", []int{204, 204}}} {
		var got []int
		for range 2 {
			got = append(got, b.send(c.h, sent{key: "k", method: http.MethodDelete, path: c.path}).Code)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.path, got, c.want)
		}
	}
}

// R43.
func TestRows_AUniqueRuleOfTheTablesDoesNotMeetARetry(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		reference, _ := io.ReadAll(r.Body)
		if _, err := Tx(r.Context()).Exec(r.Context(), "insert into charge (reference) values ($1)", string(reference)); err != nil {
			http.Error(w, "this order is paid already", http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}, Route{Wait: time.Minute})
	codes := make(chan int, 8)
	for range 8 {
		go func() { codes <- b.send(h, sent{key: "k", body: "order-7"}).Code }()
	}
	for range 8 {
		if code := <-codes; code != 201 {
			t.Errorf("got %d", code)
		}
	}
	b.is(b.send(h, sent{key: "other", body: "order-7"}), 409, "")
	b.kept(1, 0, 1)
}

// R44.
func TestRows_AReplayIsDecidedBeforeConditionsAre(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	version := `"v1"`
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-Match") != version {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		version = `"v2"`
		w.Header().Set("ETag", version)
		w.WriteHeader(200)
	}, Route{Methods: []string{http.MethodPut}})
	put := sent{key: "k", method: http.MethodPut, path: "/orders/1", header: http.Header{"If-Match": {`"v1"`}}}
	first := b.send(h, put)
	b.is(first, 200, "")
	b.same(first, b.send(h, put))
	put.header = http.Header{"If-Match": {`"v2"`}}
	b.is(b.send(h, put), 409, codePayloadMismatch)
	put.key = "another"
	put.header = http.Header{"If-Match": {`"v1"`}}
	b.is(b.send(h, put), 412, "")
}

// R48.
func TestRows_TheKeyForAnotherServiceIsTheSameInEveryTry(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	var got []string
	fail := true
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		got = append(got, DownstreamKey(r.Context(), "charge"), DownstreamKey(r.Context(), "mail"))
		if fail {
			w.WriteHeader(http.StatusBadGateway)
		} else {
			w.WriteHeader(http.StatusOK)
		}
	}, Route{Optional: true})
	b.is(b.send(h, sent{key: "k"}), 502, "")
	fail = false
	b.is(b.send(h, sent{key: "k"}), 200, "")
	b.is(b.send(h, sent{key: "k", account: "b"}), 200, "")
	b.is(b.send(h, sent{}), 200, "")
	if got[0] != got[2] || got[1] != got[3] || got[0] == got[1] || got[4] == got[0] || len(got[0]) != 64 || got[6] != "" {
		t.Errorf("got %q", got)
	}
	if DownstreamKey(context.Background(), "charge") != "" {
		t.Error("a request that is not guarded has a key for others")
	}
}

// C2.
func TestRows_AReplayHasTheFirstStatusUnlessTheRouteSaysOtherwise(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	h := b.service(b.guard(), b.charge, Route{ReplayStatus: func(status int) int { return map[int]int{201: 200}[status] }})
	first, second := b.send(h, sent{key: "k"}), b.send(h, sent{key: "k"})
	if first.Code != 201 || second.Code != 200 || first.Body.String() != second.Body.String() {
		t.Errorf("got %d, then %d", first.Code, second.Code)
	}
}

// R5.
func TestRows_OnlyHeadersThatMeanTheSameLaterAreReplayed(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Set-Cookie", "Vary", "X-Request-Id", "Ratelimit", "ETag", "X-Trace"} {
			w.Header().Set(name, "first")
		}
		w.WriteHeader(201)
	}, Route{ReplayHeaders: []string{"x-trace"}, Redact: func(a *store.Answer) { a.Body = append(a.Body, "****"...) }})
	first, second := b.send(h, sent{key: "k"}), b.send(h, sent{key: "k"})
	if first.Header().Get("Set-Cookie") != "first" || first.Body.Len() != 0 {
		t.Errorf("the first answer was changed: %v %s", first.Header(), first.Body)
	}
	for name, want := range map[string]string{"Set-Cookie": "", "Vary": "", "X-Request-Id": "", "Ratelimit": "", "ETag": "first", "X-Trace": "first"} {
		if got := second.Header().Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if second.Body.String() != "****" {
		t.Errorf("it was not redacted: %s", second.Body)
	}
}
