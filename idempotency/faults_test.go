package idempotency

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// R12.
func TestFaults_TheLoserOfARaceGetsTheWinnersAnswer(t *testing.T) {
	b := setup(t)
	// The winner's answer comes between the loser's look and its lock.
	first := b.service(b.guard(), b.charge)
	var once sync.Once
	pool := b.pool(4)
	loser := b.guardOn(pool)
	loser.random = func() float64 { return 0 }
	tracer := &beforeQuery{match: "idempotency.open", do: func() { once.Do(func() { b.is(b.send(first, sent{key: "k"}), 201, "") }) }}
	loser.pool = b.traced(tracer)
	w := b.send(b.service(loser, b.charge), sent{key: "k"})
	b.is(w, 201, "")
	if w.Header().Get("Idempotency-Status") != "replayed" {
		t.Errorf("got %v", w.Header())
	}
	b.kept(1, 1, 1)
}

// R20.
func TestFaults_WhatFailsLeavesNothingAndTheKeyFree(t *testing.T) {
	b := setup(t)
	fail := true
	for name, how := range map[string]func(w http.ResponseWriter){
		"500":     func(w http.ResponseWriter) { http.Error(w, "no", 500) },
		"503":     func(w http.ResponseWriter) { http.Error(w, "no", http.StatusServiceUnavailable) },
		"429":     func(w http.ResponseWriter) { http.Error(w, "no", http.StatusTooManyRequests) },
		"401":     func(w http.ResponseWriter) { http.Error(w, "no", http.StatusUnauthorized) },
		"panic":   func(w http.ResponseWriter) { panic("boom") },
		"abort":   func(w http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"go exit": func(w http.ResponseWriter) { runtime.Goexit() },
	} {
		fail = true
		h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
			if _, err := insertCharge(r.Context(), name); err != nil {
				t.Error(err)
			}
			if fail {
				how(w)
				return
			}
			w.WriteHeader(201)
		})
		key := strings.ReplaceAll(name, " ", "-")
		var w *httptest.ResponseRecorder
		var panicked any
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { panicked = recover() }()
			w = b.send(h, sent{key: key})
		}()
		<-done
		switch name {
		case "panic":
			if panicked != "boom" {
				t.Errorf("the panic became %v", panicked)
			}
		case "abort":
			if panicked != http.ErrAbortHandler {
				t.Errorf("the panic became %v", panicked)
			}
		case "go exit":
		default:
			if fmt.Sprint(w.Code) != name || w.Body.String() != "no\n" || w.Header().Get("Idempotency-Status") != "" {
				t.Errorf("%s: got %d %q %v", name, w.Code, w.Body, w.Header())
			}
		}
		if n := pgtest.Count(t, b.db, "select count(*) from charge where amount = $1", name); n != 0 {
			t.Errorf("%s: %d charges are left", name, n)
		}
		fail = false
		b.is(b.send(h, sent{key: key}), 201, "")
	}
	b.kept(7, 7, 7)
	if n := b.db.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were never given back", n)
	}
}

// R22.
func TestFaults_AnAnswerOf4xxIsKeptAndItsWritesAreNot(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		switch r.URL.Query().Get("mode") {
		case "broken": // by a statement that failed
			if _, err := Tx(r.Context()).Exec(r.Context(), "select 1/0"); err == nil {
				t.Error("no error")
			}
		case "commit":
			CommitOnError(r.Context())
			fallthrough
		default:
			if _, err := insertCharge(r.Context(), "declined"); err != nil {
				t.Error(err)
			}
			if r.URL.Query().Get("mode") == "invalid" {
				DoNotStore(r.Context())
			}
		}
		http.Error(w, "declined", http.StatusPaymentRequired)
	})
	for _, c := range []struct {
		mode string
		want [3]int64
	}{ // A failed statement comes first: on a connection that knows none of our statements yet.
		{"broken", [3]int64{0, 1, 1}}, {"", [3]int64{0, 1, 1}}, {"commit", [3]int64{1, 1, 1}}, {"invalid", [3]int64{0, 0, 2}},
	} {
		mode, want := c.mode, c.want
		charges, keys := pgtest.Count(t, b.db, "select count(*) from charge"), pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency")
		b.runs.Store(0)
		first, second := b.send(h, sent{key: "k" + mode, path: "/charges?mode=" + mode}), b.send(h, sent{key: "k" + mode, path: "/charges?mode=" + mode})
		b.is(first, 402, "")
		b.same(first, second)
		got := [3]int64{pgtest.Count(t, b.db, "select count(*) from charge") - charges, pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency") - keys, b.runs.Load()}
		if got != want {
			t.Errorf("mode %q: charges, keys, runs are %v, want %v", mode, got, want)
		}
	}
}

// R19.
func TestFaults_AnAnswerNeverLeavesBeforeItsCommit(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, "create table late (id int, constraint late_id unique (id) deferrable initially deferred)")
	swallow := false
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if swallow { // an error that the handler hides
			Tx(ctx).Exec(ctx, "select 1/0")
		} else if _, err := Tx(ctx).Exec(ctx, "insert into late values (1), (1)"); err != nil { // an error that only COMMIT sees
			t.Error(err)
		}
		w.WriteHeader(201)
	})
	b.is(b.send(h, sent{key: "k1"}), 500, codeHandlerFault)
	swallow = true
	b.is(b.send(h, sent{key: "k2"}), 500, codeHandlerFault)
	b.kept(0, 0, 0)
	ended := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		if err := Tx(r.Context()).Commit(r.Context()); err == nil {
			t.Error("the handler could commit")
		}
		if err := Tx(r.Context()).Rollback(r.Context()); err == nil {
			t.Error("the handler could roll back")
		}
		b.charge(w, r)
	})
	b.is(b.send(ended, sent{key: "k3"}), 201, "")
	b.kept(1, 1, 1)
}

// R27.
func TestFaults_WithoutADatabaseNobodyIsLetThrough(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	pool := b.pool(4)
	h := b.service(b.guardOn(pool), b.charge)
	pool.Close()
	w := b.send(h, sent{key: "k"})
	b.is(w, 503, codeStoreUnavailable)
	if w.Header().Get("Retry-After") == "" || b.runs.Load() != 0 {
		t.Errorf("got %v, and the handler ran %d times", w.Header(), b.runs.Load())
	}
	full := b.pool(1)
	conn, err := full.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	h = b.service(b.guardOn(full, func(c *Config) { c.AcquireTimeout = 50 * time.Millisecond }), b.charge)
	b.is(b.send(h, sent{key: "k"}), 503, codeStoreUnavailable)
}

// R18.
func TestFaults_AClientThatLeavesAfterTheHandlerReturnedChangesNothing(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		b.charge(w, r)
		cancel()
	})
	b.is(b.send(h, sent{key: "k", ctx: ctx}), 201, "")
	b.kept(1, 1, 1)
}

// R30.
func TestFaults_AnAnswerTooLongToKeepIsNeverMadeAgain(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		b.charge(w, r)
		w.Write(bytes.Repeat([]byte("x"), 2000))
	}, Route{MaxResponse: 1000})
	first := b.send(h, sent{key: "k"})
	if first.Code != 201 || first.Body.Len() < 2000 {
		t.Errorf("got %d, %d bytes", first.Code, first.Body.Len())
	}
	second := b.send(h, sent{key: "k"})
	if second.Code != 201 || second.Body.Len() != 0 || second.Header().Get("Idempotency-Body") != "omitted" || second.Header().Get("Location") != first.Header().Get("Location") {
		t.Errorf("got %d, %d bytes, %v", second.Code, second.Body.Len(), second.Header())
	}
	b.kept(1, 1, 1)
}

// R18, R42.
func TestFaults_ARowThatCannotBeTrustedStopsTheRequest(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	for name, spoil := range map[string]string{
		"version": "update holdfast.idempotency set fingerprint_version = 99",
		"body":    "update holdfast.idempotency set body = 'other'",
		"headers": `update holdfast.idempotency set headers = '{"A": 1}'`,
	} {
		pgtest.Exec(t, b.db, "truncate holdfast.idempotency")
		b.is(b.send(h, sent{key: name}), 201, "")
		pgtest.Exec(t, b.db, spoil)
		runs := b.runs.Load()
		b.is(b.send(h, sent{key: name}), 503, codeAnswerUnusable)
		if b.runs.Load() != runs {
			t.Errorf("%s: the handler ran again", name)
		}
	}
}

// R18.
func TestFaults_ASerializationFailureRunsTheHandlerAgain(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, "create table balance (id int primary key, cents int)")
	pgtest.Exec(t, b.db, "insert into balance values (1, 0), (2, 0)")
	var read, written sync.WaitGroup // of the first two runs
	read.Add(2)
	written.Add(2)
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		first := b.runs.Add(1) <= 2
		ctx, id := r.Context(), make([]byte, 1)
		io.ReadFull(r.Body, id) // "1" or "2": it writes one and reads the other
		var other int
		if err := Tx(ctx).QueryRow(ctx, "select cents from balance where id = 3 - $1::text::int", string(id)).Scan(&other); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		if first {
			read.Done()
			read.Wait()
		}
		if _, err := Tx(ctx).Exec(ctx, "update balance set cents = $2::int + 1 where id = $1::text::int", string(id), other); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		if first {
			written.Done()
			written.Wait()
		}
		w.WriteHeader(201)
	}, Route{Isolation: pgx.Serializable})
	codes := make(chan int, 2)
	for _, id := range []string{"1", "2"} {
		go func() {
			code := b.send(h, sent{key: "k" + id, body: id}).Code
			for ; code == http.StatusBadGateway; code = b.send(h, sent{key: "k" + id, body: id}).Code {
				// A run again may meet the failure in a statement of its own, before the other's COMMIT is seen. The handler
				// answers that with 502, which is not kept, and a client tries again.
			}
			codes <- code
		}()
	}
	if one, two := <-codes, <-codes; one != 201 || two != 201 {
		t.Errorf("got %d and %d", one, two)
	}
	if sum, runs := pgtest.Count(t, b.db, "select sum(cents) from balance"), b.runs.Load(); sum != 3 || runs < 3 { // a third one that begins before the other's COMMIT is seen makes a fourth
		t.Errorf("the balances sum up to %d after %d runs, want 3 and at least 3: one after the other", sum, runs)
	}
}

// R20.
func TestFaults_APanicOfAnyFunctionOfTheRouteKeepsNothing(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	g := b.guard()
	for name, o := range map[string]Route{
		"store":  {Store: func(int) bool { panic("planned") }},
		"redact": {Redact: func(*store.Answer) { panic("planned") }},
	} {
		h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
			b.charge(w, r)
		}, o)
		if name == "store" {
			h = b.service(g, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "declined", http.StatusPaymentRequired) }, o)
		}
		func() {
			defer func() {
				if p := recover(); p != "planned" {
					t.Errorf("%s: got %v", name, p)
				}
			}()
			b.send(h, sent{key: name})
		}()
		b.kept(0, 0, 0)
	}
	if n := b.db.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were never given back", n)
	}
}

// beforeQuery does something before the first statement that matches.
type beforeQuery struct {
	match string
	do    func()
}

func (q *beforeQuery) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, qq := range data.Batch.QueuedQueries {
		if strings.Contains(qq.SQL, q.match) {
			q.do()
		}
	}
	return ctx
}
func (q *beforeQuery) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (q *beforeQuery) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (q *beforeQuery) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, q.match) {
		q.do()
	}
	return ctx
}
func (q *beforeQuery) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
