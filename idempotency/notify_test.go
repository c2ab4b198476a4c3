package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// R33.
func TestNotify_EachRequestIsOneLineOfTheLogWithoutItsKeyAndItsPayload(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	log := &logtest.Log{}
	g := b.guard(func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	answer := 201
	h := b.service(g, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(answer) })
	const key, secret = "key-0123456789", "4111111111111111"
	s := sent{key: key, body: `{"card": "` + secret + `"}`, header: http.Header{"X-Request-Id": {"request-7"}}}
	ask := func(s sent) map[string]any {
		t.Helper()
		b.send(h, s)
		taken := logtest.Lines[map[string]any](t, log.Take())
		if len(taken) != 1 || taken[0]["msg"] != "idempotent request" {
			t.Fatalf("got lines %v", taken)
		}
		if text, _ := json.Marshal(taken[0]); strings.Contains(string(text), key) || strings.Contains(string(text), secret) {
			t.Errorf("the log says too much: %s", text)
		}
		return taken[0]
	}
	has := func(line map[string]any, want map[string]any) {
		t.Helper()
		for name, value := range want {
			if line[name] != value {
				t.Errorf("%s is %v, want %v, in %v", name, line[name], value, line)
			}
		}
	}
	created := ask(s)
	has(created, map[string]any{"level": "INFO", "outcome": "created", "operation": "POST /charges", "status": 201.0, "attempt": 1.0, "from_state": "none", "to_state": "complete", "correlation_id": "request-7"})
	replayed := ask(s)
	has(replayed, map[string]any{"level": "INFO", "outcome": "replayed", "status": 201.0, "from_state": "complete", "to_state": "complete",
		"idempotency_key": created["idempotency_key"], "payload_hash": created["payload_hash"]})
	if pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where left(encode(fingerprint, 'hex'), 64) = $1", created["payload_hash"]) != 1 {
		t.Errorf("payload_hash %v does not lead to the row", created["payload_hash"])
	}
	conflict := ask(sent{key: key, header: http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}})
	has(conflict, map[string]any{"level": "INFO", "outcome": "conflict", "status": 409.0, "error_code": "CONFLICT." + codePayloadMismatch, "idempotency_key": created["idempotency_key"],
		"correlation_id": "0af7651916cd43dd8448eb211c80319c", "from_state": "complete", "to_state": "complete"})
	if conflict["payload_hash"] == created["payload_hash"] {
		t.Error("two payloads have one hash")
	}
	b.expire()
	has(ask(s), map[string]any{"outcome": "created", "from_state": "expired", "to_state": "complete"})
	answer = 503
	has(ask(sent{key: "other"}), map[string]any{"level": "WARN", "outcome": "forgotten", "status": 503.0, "from_state": "none", "to_state": "none"})
	has(ask(sent{key: "other"}), map[string]any{"level": "DEBUG", "outcome": "forgotten", "status": 503.0}) // it is repeated, and fails again
	has(ask(sent{}), map[string]any{"level": "DEBUG", "outcome": "refused", "error_code": "VALIDATION." + codeKeyMissing, "from_state": "unknown"})
	has(ask(sent{key: "other", header: http.Header{"Account": {""}}}), map[string]any{"level": "INFO", "outcome": "refused", "error_code": "AUTH." + codePrincipalUnknown})
	pgtest.Exec(t, b.db, "update holdfast.idempotency set body_hash = ''")
	unusable := ask(s)
	has(unusable, map[string]any{"level": "ERROR", "outcome": "unusable", "error_code": "DEPENDENCY.unavailable." + codeAnswerUnusable})
	if text, _ := unusable["error"].(string); !strings.Contains(text, "stored answer cannot be used") {
		t.Errorf("got %v", unusable)
	}
	pgtest.Exec(t, b.db, "drop table holdfast.idempotency cascade")
	unavailable := ask(sent{key: "other"})
	has(unavailable, map[string]any{"level": "WARN", "outcome": "unavailable", "status": 503.0, "error_code": "DEPENDENCY.unavailable." + codeStoreUnavailable, "from_state": "unknown", "to_state": "unknown"})
	if text, _ := unavailable["error"].(string); !strings.Contains(text, "look up key") {
		t.Errorf("got %v", unavailable)
	}
}

// A hit is the only trace of a replay, so a logger with slog's default level shows it, with every field, and the answer that it repeats. R33.
func TestNotify_AHitIsLoggedByALoggerOfTheDefaultLevel(t *testing.T) {
	b := setup(t)
	log := &logtest.Log{}
	h := b.service(b.guard(func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) }), b.charge)
	s := sent{key: "k", header: http.Header{"X-Request-Id": {"request-7"}}}
	b.send(h, s)
	if text := log.Take(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `"level":"INFO"`) || !strings.Contains(text, `"outcome":"created"`) {
		t.Errorf("a first request is logged as %s", text)
	}
	b.send(h, s)
	lines := logtest.Lines[map[string]any](t, log.Take())
	if len(lines) != 1 {
		t.Fatalf("a hit is logged as %v", lines)
	}
	for name, want := range map[string]any{"level": "INFO", "outcome": "replayed", "operation": "POST /charges", "status": 201.0, "attempt": 0.0,
		"from_state": "complete", "to_state": "complete", "correlation_id": "request-7"} {
		if lines[0][name] != want {
			t.Errorf("%s is %v, want %v", name, lines[0][name], want)
		}
	}
	for _, name := range []string{"idempotency_key", "payload_hash", "took"} {
		if lines[0][name] == nil {
			t.Errorf("the hit has no %s: %v", name, lines[0])
		}
	}
}

// R33.
func TestNotify_AnObserverIsNotifiedInTheRequestsContext(t *testing.T) {
	b := setup(t)
	type name struct{}
	var got []any
	g := b.guard(func(c *Config) {
		c.Observer.OnOutcome = func(ctx context.Context, o Outcome) {
			got = append(got, ctx.Value(name{}), o.Result, o.Attempt, o.Route)
		}
	})
	b.is(b.send(b.service(g, b.charge), sent{key: "k", ctx: context.WithValue(t.Context(), name{}, "span")}), 201, "")
	if want := []any{"span", Created, 1, "POST /charges"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// R33.
func TestNotify_WhatFailsInAFunctionOfTheRouteIsReportedToo(t *testing.T) {
	b := setup(t)
	g := b.guard()
	for name, o := range map[string]Route{
		"store":     {Store: func(int) bool { panic("planned") }},
		"redact":    {Redact: func(*store.Answer) { panic("planned") }},
		"key func":  {KeyFunc: func(*http.Request, []byte) (string, error) { panic("planned") }},
		"principal": {Anonymous: true, Fingerprint: func(*http.Request, []byte) ([]byte, error) { panic("planned") }},
	} {
		b.observed = nil
		h := b.service(g, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "declined", http.StatusPaymentRequired) }, o)
		func() {
			defer func() { _ = recover() }()
			b.send(h, sent{key: "k"})
		}()
		if got := b.results(); !slices.Equal(got, []Result{Forgotten}) {
			t.Errorf("%s: reported %v", name, got)
		}
	}
}

// R33.
func TestNotify_TransitionsAndLevels(t *testing.T) {
	for _, c := range []struct {
		o        Outcome
		from, to string
	}{
		{Outcome{Result: Created}, "none", "complete"}, {Outcome{Result: Created, Omitted: true}, "none", "omitted"}, {Outcome{Result: Created, Expired: true}, "expired", "complete"},
		{Outcome{Result: Replayed}, "complete", "complete"}, {Outcome{Result: Replayed, Omitted: true}, "omitted", "omitted"},
		{Outcome{Result: InProgress}, "running", "running"}, {Outcome{Result: Forgotten}, "none", "none"}, {Outcome{Result: Forgotten, Expired: true}, "expired", "expired"},
		{Outcome{Result: Unknown}, "none", "unknown"}, {Outcome{Result: Refused}, "unknown", "unknown"}, {Outcome{Result: Bypassed}, "none", "none"},
	} {
		if from, to := transition(c.o); from != c.from || to != c.to {
			t.Errorf("%+v: got %s to %s", c.o, from, to)
		}
	}
	for level, results := range map[slog.Level][]Result{
		slog.LevelError: {Unknown, Unusable, Forgotten}, slog.LevelWarn: {Unavailable}, slog.LevelInfo: {Created, Replayed, Conflict, Refused}, slog.LevelDebug: {InProgress, Bypassed},
	} {
		for _, r := range results {
			if got := levelOf(r, 503, true); got != level {
				t.Errorf("%s of ours: got %v", r, got)
			}
		}
	}
	for _, r := range []Result{Forgotten, Unavailable, Refused} {
		if got := levelOf(r, 404, false); got != slog.LevelDebug {
			t.Errorf("%s of theirs: got %v", r, got)
		}
	}
	for status, level := range map[int]slog.Level{0: slog.LevelDebug, 429: slog.LevelDebug, 499: slog.LevelDebug, 500: slog.LevelWarn, 503: slog.LevelWarn} {
		if got := levelOf(Forgotten, status, false); got != level {
			t.Errorf("a handler's %d: got %v, want %v", status, got, level)
		}
	}
}

// R32.
func TestNotify_ACodeShowsWhetherAProblemIsTheMiddlewares(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"type":"https://shop.example/problems/sold-out","title":"Sold out","status":409,"code":"sold_out"}`))
	}, Route{Store: func(int) bool { return true }})
	own := b.send(h, sent{key: "k"})
	replay, mismatch := b.send(h, sent{key: "k"}), b.send(h, sent{key: "k", body: `{"amount": 11}`})
	b.same(own, replay)
	ours := problemOf(t, mismatch)
	if mismatch.Code != own.Code || ours["code"] != codePayloadMismatch || ours["type"] != "urn:holdfast:"+codePayloadMismatch || ours["code"] == problemOf(t, own)["code"] {
		t.Errorf("got %s and %s", own.Body, mismatch.Body)
	}
	if mismatch.Header().Get("Idempotency-Status") != "" || replay.Header().Get("Idempotency-Status") != "replayed" {
		t.Errorf("got %v and %v", mismatch.Header(), replay.Header())
	}
}

// R47.
func TestNotify_EveryProblemHasACodeOfTheTaxonomyAndSaysWhetherToRetry(t *testing.T) {
	for _, c := range []struct {
		p         problem
		class     string
		retryable bool
	}{
		{keyMissing, "VALIDATION", false}, {keyInvalid, "VALIDATION", false}, {principalUnknown, "AUTH", false}, {requestTooLarge, "VALIDATION", false},
		{requestUnread, "VALIDATION", true}, {requestUnfit, "VALIDATION", false}, {payloadMismatch, "CONFLICT", false}, {inProgress, "CONFLICT", true}, {accepted, "CONFLICT", true},
		{storeUnavailable, "DEPENDENCY.unavailable", true}, {outcomeUnknown, "DEPENDENCY.timeout", true}, {answerUnusable, "DEPENDENCY.unavailable", true}, {handlerFault, "TRANSIENT", true},
	} {
		if string(c.p.class) != c.class || c.p.retryable != c.retryable {
			t.Errorf("%s: class %s, retryable %v", c.p.code, c.p.class, c.p.retryable)
		}
	}
	if errors.Is(errKeyInvalid, errKeyMissing) {
		t.Error("a missing key and an invalid one are the same")
	}
}

func TestNotify_AMissingSchemaIsLoggedWithItsRemedy(t *testing.T) {
	b := setup(t)
	log := &logtest.Log{}
	g := b.guard(func(c *Config) { c.Schema, c.Logger = "elsewhere", slog.New(slog.NewJSONHandler(log, nil)) })
	b.is(b.send(b.service(g, b.charge), sent{key: "k"}), 503, "")
	lines := logtest.Lines[map[string]any](t, log.Take())
	if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0]["error"]), "run holdfast migrate") {
		t.Errorf("got lines %v", lines)
	}
}

// R48.
func TestNotify_TheNameOfAKeyInTheLogIsNotTheNumberOfItsLock(t *testing.T) {
	t.Parallel()
	lock := lockNumber("holdfast", "principal:a", "POST /charges", "k")
	name := hashName(lock)
	if len(name) != 16 || name == fmt.Sprintf("%016x", uint64(lock)) || name != hashName(lock) || name == hashName(lock+1) {
		t.Errorf("lock %d has the name %s", lock, name)
	}
}
