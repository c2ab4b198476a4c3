package holdfastotel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// A canary is a value that must not be found anywhere but in the tables. Each place has one of its own, so that what leaks says
// where it was.
const (
	inPayload   = "canary-payload-4111"
	inHeader    = "canary-header-4112"
	inKey       = "canary-key-4113"
	inDSN       = "canary-dsn-4114"
	inBearer    = "canary-bearer-4115"
	inIdemKey   = "canary-idempotency-4116"
	inBody      = "canary-body-4117"
	inSecret    = "canary-secret-4118"
	inSignature = "canary-signature-4119"
	inPath      = "canary-path-4120"
	inQuery     = "canary-query-4121"
	inPrincipal = "canary-principal-4122"
	inRow       = "canary-row-4123"
)

var canaries = []string{inPayload, inHeader, inKey, inDSN, inBearer, inIdemKey, inBody, inSecret, inSignature, inPath, inQuery, inPrincipal, inRow}

// leaks fails the test for each canary in a text.
func leaks(t *testing.T, where, text string) {
	t.Helper()
	for _, canary := range canaries {
		if i := strings.Index(text, canary); i >= 0 {
			t.Errorf("%s has %s: …%s…", where, canary, text[max(i-300, 0):min(i+100, len(text))])
		}
	}
}

// signals are the log at every level, the metrics and the spans of everything that a test runs.
type signals struct {
	log    logtest.Log
	logger *slog.Logger
	reader *metric.ManualReader
	meters *metric.MeterProvider
	spans  *tracetest.InMemoryExporter
	tracer *sdktrace.TracerProvider
}

func listen() *signals {
	s := &signals{reader: metric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	s.logger = slog.New(slog.NewJSONHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug - 100}))
	s.meters = metric.NewMeterProvider(metric.WithReader(s.reader))
	s.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.spans))
	return s
}

func (s *signals) check(t *testing.T, lines ...string) {
	t.Helper()
	var metrics metricdata.ResourceMetrics
	if err := s.reader.Collect(t.Context(), &metrics); err != nil {
		t.Fatal(err)
	}
	measured, err := json.Marshal(metrics)
	if err != nil {
		t.Fatal(err)
	}
	log := s.log.String()
	leaks(t, "the log", log)
	leaks(t, "a metric", string(measured))
	leaks(t, "a span", fmt.Sprintf("%+v", s.spans.GetSpans()))
	for _, line := range lines { // so that the test has gone where it says
		if !strings.Contains(log, `"msg":"`+line) {
			t.Errorf("nothing was logged of %q: %s", line, log)
		}
	}
}

func private(id, topic string) holdfast.Event {
	return holdfast.Event{ID: id, Source: "shop", Type: "order.placed", Topic: topic, Key: inKey, Payload: []byte(inPayload), Headers: map[string]string{"x-private": inHeader, "traceparent": producersSpan}}
}

func TestCanary_WhatARelaySaysHasNoCanary(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	s, db := listen(), migrated.New(t)
	meter := holdfastotel.Meter(s.meters.Meter("test"))
	observer, err := metrics.Relay(meter)
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(db.Pool, half{}, relay.Config{Observer: holdfastotel.RelaySpans(s.tracer.Tracer("test"), observer), Logger: s.logger, DeadLetterTopic: "dead", Retry: retry.Policy{Attempts: 1, Base: time.Millisecond, Cap: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.ObserveDatabase(meter, db.Pool, metrics.DatabaseConfig{}); err != nil {
		t.Fatal(err)
	}
	// What is refused before it is written.
	for _, bad := range []func(e *holdfast.Event){
		func(e *holdfast.Event) { e.Headers["ce_x"] = inHeader },
		func(e *holdfast.Event) { e.Headers["x"] = inHeader + "\x00" },
		func(e *holdfast.Event) { e.Payload = []byte(strings.Repeat(inPayload, 1<<16)) },
		func(e *holdfast.Event) { e.Key = inKey + "\xff" },
		func(e *holdfast.Event) { e.Key = strings.Repeat(inKey, 100) },
	} {
		e := private("bad", "orders")
		bad(&e)
		err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, e) })
		if !errors.As(err, new(*outbox.LimitError)) {
			t.Errorf("Write returned %v", err)
		}
		leaks(t, "the error of Write", fmt.Sprint(err))
	}
	// What SQL refuses.
	for _, sql := range []string{
		"select holdfast.write('orders', $1, 'order.placed', $2, headers => jsonb_build_object('ce_x', $3::text))",
		"select holdfast.write('orders', repeat($1, 100), 'order.placed', $2, headers => jsonb_build_object('x', $3::text))",
	} {
		_, err := db.Exec(t.Context(), sql, inKey, []byte(inPayload), inHeader)
		if err == nil {
			t.Errorf("%s was not refused", sql)
		}
		leaks(t, "the error of holdfast.write", fmt.Sprint(err))
	}
	// What Kafka refuses, and a row whose headers are no object.
	err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if err := outbox.Write(t.Context(), tx, private("1", "orders"), private("2", "refused")); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `insert into holdfast.event (lane, id, type, topic, key, payload, headers) values (0, 'array', 'order.placed', 'orders', $1, $2, to_jsonb(array[$3::text])), (0, 'topic', 'order.placed', 'no topic', $1, $2, null)`, inKey, []byte(inPayload), inHeader)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	wait.Until(t, "three events are dead letters", func() bool { return pgtest.Count(t, db, "select count(*) from holdfast.letter") == 3 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.check(t, "event given up")
	var published string
	if err := db.QueryRow(t.Context(), "select string_agg((headers - 'x-private')::text || coalesce(convert_from(payload, 'UTF8'), ''), ' ') from holdfast.event where topic = 'dead'").Scan(&published); err != nil {
		t.Fatal(err)
	}
	leaks(t, "a published dead letter", published)
}

func TestCanary_WhatAnInboxSaysHasNoCanary(t *testing.T) {
	t.Parallel()
	s, db := listen(), migrated.New(t)
	meter := holdfastotel.Meter(s.meters.Meter("test"))
	observer, err := metrics.Inbox(meter, "billing")
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing", Observer: holdfastotel.InboxSpans(s.tracer.Tracer("test"), observer), Logger: s.logger, Retry: retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond},
		ImmediateRetries: 1, PollMin: time.Millisecond, DeadLetterTopic: "*.dlq", LetterPayload: -1})
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db, `create table card (number integer, holder text primary key); insert into card values (1, '`+inRow+`'), (2, '`+inPayload+`');
		create table charge (holder text references card deferrable initially deferred);
		create function no() returns trigger language plpgsql as $$ begin raise 'no %', new.holder using detail = new.holder, hint = new.holder; end $$;
		create table refusing (holder text); create trigger no before insert on refusing for each row execute function no()`)
	fail := map[string]func(tx pgx.Tx, e holdfast.Event) error{
		"text": func(_ pgx.Tx, e holdfast.Event) error {
			return fmt.Errorf("card %q, %s: declined for %s", e.Payload, e.Payload, e.Key)
		},
		"panic":  func(_ pgx.Tx, e holdfast.Event) error { panic("no card " + string(e.Payload)) },
		"unique": func(tx pgx.Tx, e holdfast.Event) error { return exec(tx, "insert into card values (1, $1)", inRow) },
		"syntax": func(tx pgx.Tx, e holdfast.Event) error {
			return exec(tx, "select $1::text::integer", string(e.Payload))
		},
		"trigger":  func(tx pgx.Tx, e holdfast.Event) error { return exec(tx, "insert into refusing values ($1)", inRow) },
		"deferred": func(tx pgx.Tx, e holdfast.Event) error { return exec(tx, "insert into charge values ($1)", inKey) },
		"broken": func(tx pgx.Tx, e holdfast.Event) error { // The connection breaks under the handler, which says more than it should.
			_ = exec(tx, "select pg_terminate_backend(pg_backend_pid())")
			return fmt.Errorf("card %s: %w", e.Payload, exec(tx, "select 1"))
		},
	}
	broken := 0
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		f := fail[e.ID]
		if e.ID == "broken" {
			if broken++; broken > 2 {
				return retry.Permanent(fmt.Errorf("card %s", e.Payload))
			}
		}
		return f(tx, e)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	for id := range fail {
		e := private(id, "orders")
		e.Key = inKey + id
		if _, err := in.Receive(t.Context(), e); err != nil {
			leaks(t, "the error of Receive", err.Error())
			t.Errorf("%s: %v", id, err)
		}
	}
	other := private("text", "orders")
	other.Payload = []byte(inPayload + " again")
	if out, err := in.Receive(t.Context(), other); out != inbox.Conflict {
		t.Errorf("got %s, %v", out, err)
	}
	for _, bad := range []func(e *holdfast.Event){
		func(e *holdfast.Event) { e.Key = inKey + "\x00" },
		func(e *holdfast.Event) { e.Headers["x\xff"] = inHeader },
	} {
		e := private("bad", "orders")
		bad(&e)
		if out, err := in.Receive(t.Context(), e); err == nil {
			t.Errorf("got %s", out)
		} else {
			leaks(t, "the error of Receive", err.Error())
		}
	}
	want := int64(len(fail)) + 1
	wait.Until(t, "all events are dead letters", func() bool { return pgtest.Count(t, db, "select count(*) from holdfast.letter") == want })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.check(t, "event given up", "handler failed, will retry", "event id came again", "waiting for the database")
	// What is published has the event's own headers and its key, and nothing else of it.
	var published string
	if err := db.QueryRow(t.Context(), "select string_agg((headers - 'x-private')::text || coalesce(convert_from(payload, 'UTF8'), ''), ' ') from holdfast.event where topic = 'orders.dlq'").Scan(&published); err != nil {
		t.Fatal(err)
	}
	leaks(t, "a published dead letter", published)
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event where topic = 'orders.dlq'"); n != want {
		t.Errorf("%d letters are published, want %d", n, want)
	}
}

func exec(tx pgx.Tx, sql string, args ...any) error {
	_, err := tx.Exec(context.Background(), sql, args...)
	return err
}

func TestCanary_WhatAGuardSaysHasNoCanary(t *testing.T) {
	t.Parallel()
	s, db := listen(), migrated.New(t)
	observer, err := metrics.Idempotency(holdfastotel.Meter(s.meters.Meter("test")))
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db, "create table card (holder text primary key); create table charge (holder text references card deferrable initially deferred); insert into card values ('"+inRow+"')")
	of := func(c *pgxpool.Pool, acquire time.Duration) http.Handler {
		g, err := idempotency.New(c, idempotency.Config{Observer: observer, Logger: s.logger, AcquireTimeout: acquire,
			Principal: func(r *http.Request) (string, error) {
				if r.Header.Get("Authorization") == "" {
					return "", errors.New("no bearer token")
				}
				return inPrincipal, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		guarded := g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			tx := idempotency.Tx(r.Context())
			switch r.Header.Get("X-Fail") {
			case "unique":
				if err := exec(tx, "insert into card values ($1)", inRow); err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
			case "deferred":
				_ = exec(tx, "insert into charge values ($1)", string(body))
			case "panic":
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(http.StatusCreated)
		}))
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, span := s.tracer.Tracer("test").Start(r.Context(), "request")
			defer span.End()
			defer func() { _ = recover() }()
			guarded.ServeHTTP(w, r.WithContext(ctx))
		})
	}
	ask := func(h http.Handler, key, fail, body, bearer string) int {
		r := httptest.NewRequest(http.MethodPost, "/reset/"+inPath+"?token="+inQuery, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("X-Fail", fail)
		r.Header.Set("X-Private", inHeader)
		if bearer != "" {
			r.Header.Set("Authorization", "Bearer "+bearer)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusCreated || fail == "unique" {
			return w.Code
		}
		leaks(t, "a problem", w.Body.String()+fmt.Sprint(w.Header()))
		return w.Code
	}
	h := of(db.Pool, wait.Limit())
	const body = `{"card": "` + inBody + `"}`
	for _, c := range []struct {
		key, fail, body, bearer string
		want                    int
	}{
		{inIdemKey, "", body, inBearer, 201}, {inIdemKey, "", body, inBearer, 201}, {inIdemKey, "", body + " ", inBearer, 201}, {inIdemKey, "", `{"card": "` + inBody + `2"}`, inBearer, 409},
		{inIdemKey + "unique", "unique", body, inBearer, 500}, {inIdemKey + "deferred", "deferred", `"` + inBody + `"`, inBearer, 500}, {inIdemKey + "panic", "panic", body, inBearer, 200},
		{inIdemKey + ",", "", body, inBearer, 400}, {inIdemKey, "", `{"card": ` + inBody, inBearer, 409}, {inIdemKey, "", body, "", 401},
	} {
		if got := ask(h, c.key, c.fail, c.body, c.bearer); got != c.want {
			t.Errorf("key %s, fail %s, body %s: %d, want %d", c.key, c.fail, c.body, got, c.want)
		}
	}
	away, err := pgxpool.New(t.Context(), "postgres://u:"+inDSN+"@127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	if got := ask(of(away, time.Second), inIdemKey, "", body, inBearer); got != 503 {
		t.Errorf("without a database: %d", got)
	}
	s.check(t, "idempotent request")
}

func TestCanary_WhatAWebhookSaysHasNoCanary(t *testing.T) {
	t.Parallel()
	s, db := listen(), migrated.New(t)
	meter := holdfastotel.Meter(s.meters.Meter("test"))
	observer, err := metrics.Webhook(meter)
	if err != nil {
		t.Fatal(err)
	}
	verifiers := map[string]func(secrets ...string) (webhook.Verifier, error){"github": webhook.GitHub, "stripe": webhook.Stripe, "slack": webhook.Slack, "shopify": webhook.Shopify}
	away, err := pgxpool.New(t.Context(), "postgres://u:"+inDSN+"@127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	for name, verifier := range verifiers {
		if _, err := verifier(" "+inSecret, ""); err != nil {
			leaks(t, "the error of a secret", err.Error())
		}
		v, err := verifier(inSecret)
		if err != nil {
			t.Fatal(err)
		}
		for _, pool := range []*pgxpool.Pool{db.Pool, away} {
			in, err := inbox.New(pool, inbox.Config{Consumer: "hooks", Logger: s.logger, Retention: 31 * 24 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			h, err := webhook.New(in, name, v, webhook.Config{Observer: holdfastotel.WebhookSpans(s.tracer.Tracer("test"), observer), Logger: s.logger})
			if err != nil {
				t.Fatal(err)
			}
			for _, header := range []http.Header{
				{},
				{"X-Hub-Signature-256": {inSignature}, "Stripe-Signature": {"t=1,v1=" + inSignature}, "X-Slack-Signature": {inSignature}, "X-Slack-Request-Timestamp": {inSignature}, "X-Shopify-Hmac-Sha256": {inSignature}},
				{"X-Hub-Signature-256": {inSignature, inSignature}, "Stripe-Signature": {inSignature}, "X-Slack-Signature": {"v0=" + inSignature}, "X-Slack-Request-Timestamp": {fmt.Sprint(time.Now().Unix())}, "X-Shopify-Hmac-Sha256": {"YWI="}},
			} {
				r := httptest.NewRequest(http.MethodPost, "/hooks/"+inPath, strings.NewReader(inBody))
				r.Header = header
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code < 400 {
					t.Errorf("%s: answered %d to %v", name, w.Code, header)
				}
				leaks(t, "the answer", w.Body.String()+fmt.Sprint(w.Header()))
			}
		}
	}
	s.check(t, "webhook refused")
}
