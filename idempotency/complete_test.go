package idempotency

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// asItIs completes requests without adding anything.
func asItIs(r *http.Request, _ Info) *http.Request { return r }

// completed is a route whose requests are completed.
func completed(change ...func(*Route)) Route {
	o := Route{Lease: aLease, Operation: "sell", Complete: asItIs}
	for _, c := range change {
		c(&o)
	}
	return o
}

// soon completes at once, at most so often.
func soon(attempts int) func(*Config) {
	return func(c *Config) {
		c.Completion = retry.Policy{Attempts: attempts, Base: time.Nanosecond, Cap: time.Nanosecond}
	}
}

func (b *bundle) complete(g *Guard, want int) {
	b.Helper()
	if n, err := g.CompleteOnce(b.Context()); n != want || err != nil {
		b.Fatalf("%d were run, %v, want %d", n, err, want)
	}
}

// R40.
func TestComplete_AnAbandonedRequestIsCompletedByANodeThatHasItsRoute(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := openTill(t)
	g := b.guard(soon(10))
	b.abandonAt(g, "after the call", completed())
	without := b.guard(soon(10))
	b.sell(without)
	due := func() { pgtest.Exec(t, b.db, "update holdfast.idempotency_request set due_at = clock_timestamp()") }
	due()
	b.complete(g, 0) // Its lease lives.
	b.lapse()
	b.complete(without, 0)
	b.complete(g, 1)
	b.complete(g, 0)
	b.sold(1)
	if o := b.observed[len(b.observed)-1]; o.Result != Created || !o.Completed || o.Attempt != 2 {
		t.Errorf("reported %+v", o)
	}
	w := b.send(b.sell(without, Route{Lease: aLease, Operation: "sell"}), sent{key: "k"})
	b.is(w, 201, "")
	if w.Header().Get("Idempotency-Status") != "replayed" {
		t.Errorf("got %v", w.Header())
	}
}

// R40.
func TestComplete_RunCompletesWhatNobodyRepeats(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := openTill(t)
	g := b.guard(soon(10), func(c *Config) { c.CompleteEvery = 5 * time.Millisecond })
	b.abandonAt(g, "after the call", completed())
	b.ending()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	wait.Until(b, "it is completed", func() bool {
		return pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state = 'complete'") == 1
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	b.sold(1)
}

// R40.
func TestComplete_ManyNodesCompleteEachRequestOnce(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := openTill(t)
	const requests = 12
	first := b.guard()
	h := b.sell(first, completed())
	b.at = func(place string, r *http.Request) error {
		if place == "before the call" {
			return errors.New("planned")
		}
		return nil
	}
	for i := range requests {
		b.is(b.send(h, sent{key: fmt.Sprint("k", i)}), 500, "")
	}
	b.at = nil
	b.runs.Store(0)
	pgtest.Exec(t, b.db, "update holdfast.idempotency_request set due_at = clock_timestamp()")
	var wg sync.WaitGroup
	for range 4 {
		g := b.guard(func(c *Config) { c.Completers = requests })
		b.sell(g, completed())
		wg.Go(func() {
			if _, err := g.CompleteOnce(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := b.runs.Load(); n != requests {
		t.Errorf("the handler ran %d times for %d requests", n, requests)
	}
	b.sold(requests)
}

// R40.
func TestComplete_WhatCannotBeCompletedIsReportedOnceAndWaitsForItsClient(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := openTill(t)
	var reported []Abandoned
	g := b.guard(soon(3), func(c *Config) { c.Observer.OnAbandoned = func(a Abandoned) { reported = append(reported, a) } })
	h := b.sell(g, completed())
	b.at = func(place string, r *http.Request) error {
		if place == "before the call" {
			panic(errors.New("planned"))
		}
		return nil
	}
	func() {
		defer func() { _ = recover() }()
		b.send(h, sent{key: "k"})
	}()
	for range 3 {
		b.complete(g, 1)
	}
	if len(reported) != 0 {
		t.Errorf("reported too early: %v", reported)
	}
	for range 3 {
		b.complete(g, 0)
	}
	if len(reported) != 1 || reported[0].Attempts != 4 || reported[0].Steps != 1 || reported[0].Operation != "sell" || reported[0].KeyHash != b.observed[0].KeyHash || reported[0].CreatedAt.IsZero() {
		t.Errorf("reported %+v", reported)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request where due_at is null"); n != 1 {
		t.Error("it is not listed")
	}
	func() { // A client's try that fails does not begin it all again.
		defer func() { _ = recover() }()
		b.send(h, sent{key: "k"})
	}()
	b.complete(g, 0)
	b.at = nil
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.sold(1)
	if len(reported) != 1 {
		t.Errorf("reported %d times", len(reported))
	}
}

// R40.
func TestComplete_ARouteMayLeaveARequestToItsClient(t *testing.T) {
	b := openTill(t)
	g := b.guard(soon(3))
	answers := []func(r *http.Request, info Info) *http.Request{
		func(r *http.Request, info Info) *http.Request { return nil },
		func(r *http.Request, info Info) *http.Request { panic("planned") },
	}
	for i, complete := range answers {
		key := fmt.Sprint("k", i)
		name := fmt.Sprint("sell", i)
		b.abandon(g, "after the call", sent{key: key}, completed(func(o *Route) { o.Complete, o.Operation = complete, name }))
		pgtest.Exec(t, b.db, "update holdfast.idempotency_request set due_at = clock_timestamp()")
		b.complete(g, 0)
		if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request where route = $1 and due_at > clock_timestamp() and tries = 0", name); n != 1 {
			t.Error("it was not put off")
		}
		b.is(b.send(b.sell(b.guard(), Route{Lease: aLease, Operation: name}), sent{key: key}), 201, "")
	}
	b.sold(2)
}

// R48.
func TestComplete_TheProviderSeesOneKeyForEveryAttempt(t *testing.T) {
	b := openTill(t)
	var keys []string
	b.at = func(place string, r *http.Request) error {
		if place == "after the call" {
			if keys = append(keys, DownstreamKey(r.Context(), "charge")); len(keys) < 4 {
				return errors.New("planned")
			}
		}
		return nil
	}
	g := b.guard(soon(10))
	h := b.sell(g, completed())
	b.is(b.send(h, sent{key: "k"}), 500, "")
	b.is(b.send(h, sent{key: "k"}), 500, "")
	b.complete(g, 1)
	b.complete(g, 1)
	if len(keys) != 4 || len(slices.Compact(keys)) != 1 || keys[0] == "" {
		t.Errorf("the keys were %v", keys)
	}
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.sold(1)
	b.is(b.send(h, sent{key: "k2"}), 201, "")
	b.is(b.send(h, sent{key: "k2", account: "b"}), 201, "")
	b.sold(3) // Another key and another principal are other charges.
}

func TestComplete_ACompletedRequestIsTheOneThatWasSent(t *testing.T) {
	b := openTill(t)
	type who struct{}
	var seen []string
	fail := true
	handler := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		info, _ := InfoOf(r.Context())
		seen = append(seen, fmt.Sprint(r.Method, r.Host, r.URL, r.RequestURI, r.PathValue("id"), r.PathValue("rest"), body, r.ContentLength, r.Header["Content-Type"], r.Header["X-Mine"], r.Header["If-Match"],
			r.Header.Get("Idempotency-Key"), info.Key, info.Principal, info.Operation))
		if fail {
			fail = false
			w.WriteHeader(503)
			return
		}
		if r.Context().Value(who{}) != "a" || r.Header.Get("Authorization")+r.Header.Get("Cookie")+r.Header.Get("X-Other") != "" {
			t.Errorf("got %v as %v", r.Header, r.Context().Value(who{}))
		}
		w.WriteHeader(201)
	}
	g := b.guard(soon(10))
	mux := http.NewServeMux()
	mux.Handle("POST /shops/{id}/{rest...}", g.Route(completed(func(o *Route) {
		o.CompleteHeaders, o.CompleteQuery = []string{"x-mine"}, []string{"q", "broken"}
		o.Complete = func(r *http.Request, info Info) *http.Request {
			return r.WithContext(context.WithValue(r.Context(), who{}, info.Principal))
		}
	}))(http.HandlerFunc(handler)))
	s := sent{key: "k", path: "/shops/a%2Fb/c/d?q=1&q=%C3%A9&broken=%zz", body: "\x00\xff{}"}
	s.header = http.Header{"Content-Type": {"application/x-mine"}, "X-Mine": {"1", "caf\xe9"}, "X-Other": {"2"}, "If-Match": {`"v1"`}, "Authorization": {"Bearer secret"}, "Cookie": {"session=secret"}}
	b.is(b.send(mux, s), 503, "")
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request r where r::text like '%secret%'"); n != 0 {
		t.Error("credentials are stored")
	}
	b.complete(g, 1)
	if len(seen) != 2 || seen[0] != seen[1] {
		t.Errorf("sent\n%s", strings.Join(seen, "\n"))
	}
	b.is(b.send(mux, s), 201, "")
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request"); n != 0 {
		t.Error("the request is kept longer than needed")
	}
}

func TestComplete_OnlyRoutesWithCompleteStoreRequests(t *testing.T) {
	b := openTill(t)
	b.abandonAt(b.guard(), "after the call")
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request"); n != 0 {
		t.Errorf("%d requests are stored", n)
	}
}

func TestComplete_AStopEndsWhatIsBeingCompleted(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := openTill(t)
	g := b.guard(soon(10), func(c *Config) { c.CompleteEvery = 5 * time.Millisecond })
	b.abandonAt(g, "after the call", completed())
	b.lapse()
	pgtest.Exec(t, b.db, "update holdfast.idempotency_request set due_at = clock_timestamp()")
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	b.at = func(place string, r *http.Request) error {
		once.Do(cancel)
		<-r.Context().Done()
		return r.Context().Err()
	}
	if err := g.Run(ctx); err != nil {
		t.Error(err)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state = 'pending' and lease_until <= clock_timestamp()"); n != 1 {
		t.Error("it was not left to the next node")
	}
	b.at = nil
	b.is(b.send(b.sell(b.guard(), Route{Lease: aLease, Operation: "sell"}), sent{key: "k"}), 201, "")
	b.sold(1)
}
