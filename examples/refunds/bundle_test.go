package main

import (
	"log/slog"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/retry"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// self is this program as the command.
func self() *exec.Cmd { return exampletest.Command(nil) }

// bundle is what a test has: a service with a database and a gateway of its own, a shop that asks it, and a payment of
// 100.00 that is there already.
type bundle struct {
	*testing.T
	db      *pgtest.DB
	gateway *gateway
	service *service
	http    *httptest.Server
	shop    *client
	charge  string

	log    logtest.Log
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	b := &bundle{T: t, db: pgtest.New(t), gateway: startGateway(), reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	t.Cleanup(b.gateway.http.Close)
	if err := holdfast.Migrate(t.Context(), b.db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, b.db, tables)
	pgtest.Exec(t, b.db, "insert into payments (id, account, cents, state) values ('ch_paid', 'teashop', 10000, 'captured')")
	b.charge = "ch_paid"
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(b.spans))
	b.tracer = provider.Tracer("shop")
	tel, err := newTelemetry(slog.New(slog.NewJSONHandler(&b.log, nil)), sdkmetric.NewMeterProvider(sdkmetric.WithReader(b.reader)), provider)
	if err != nil {
		t.Fatal(err)
	}
	unhurried := hurried // so that a busy machine is not taken for a process that has ended, or for a gateway that hangs
	unhurried.lease, unhurried.timeout = usual.lease, usual.timeout
	b.service, err = newService(settings{pool: b.db.Pool, gateway: b.gateway.http.URL, pace: unhurried, telemetry: tel, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b.http = httptest.NewServer(describe(t, b.service.mux))
	t.Cleanup(b.http.Close)
	b.shop = b.client("teashop", retry.Policy{})
	return b
}

// client is an account's, which asks the first of these nodes that is there, and then the test's own.
func (b *bundle) client(account string, policy retry.Policy, before ...string) *client {
	c := newClient("Bearer "+account+"-token", b.tracer, policy, append(before, b.http.Listener.Addr().String())...)
	b.Cleanup(c.close)
	return c
}

// expect says what goes wrong with the next calls of the gateway. The service waits two seconds for one that hangs: those
// that do not must be answered within them, too.
func (b *bundle) expect(troubles ...trouble) {
	if slices.Contains(troubles, hangsAfter) || slices.Contains(troubles, hangsBefore) {
		b.service.provider.http.Timeout = 2 * hurried.timeout
	}
	b.gateway.expect(troubles...)
}

// once is the policy of a client that does not try again.
var once = retry.Policy{Attempts: 1}

// post asks the service as c does.
func (b *bundle) post(c *client, path, key string, body any) answer {
	b.Helper()
	a, err := c.post(b.Context(), path, key, body)
	if err != nil {
		b.Fatal(err)
	}
	return a
}

// refund asks for a refund of the payment.
func (b *bundle) refund(c *client, key string, cents int64) answer {
	b.Helper()
	return b.post(c, "/refunds", key, refund{Charge: b.charge, Cents: cents})
}

// is checks an answer: its status, and its code where it is a problem.
func (b *bundle) is(a answer, status int, code string) {
	b.Helper()
	if a.status != status || a.code != code {
		b.Fatalf("it is answered %d %q %s, want %d %q", a.status, a.code, a.body, status, code)
	}
}

// same checks that an answer is another's replay.
func (b *bundle) same(first, again answer) {
	b.Helper()
	if again.status != first.status || again.body != first.body || !again.replayed || first.replayed {
		b.Errorf("it is answered %d %s (replayed: %v), and then %d %s (replayed: %v)", first.status, first.body, first.replayed, again.status, again.body, again.replayed)
	}
}

// deliver sends the webhook of a refund's payout.
func (b *bundle) deliver(id string) int {
	b.Helper()
	status, err := b.gateway.notify(b.Context(), b.hook(), b.payout(id))
	if err != nil {
		b.Fatal(err)
	}
	return status
}

// hook is where the gateway reports what has arrived.
func (b *bundle) hook() string { return b.http.URL + "/hooks/gateway" }

// payout is what the gateway has paid for a refund: once, or the test fails.
func (b *bundle) payout(id string) movement {
	b.Helper()
	found := b.gateway.of(id)
	if len(found) != 1 {
		b.Fatalf("the gateway has paid %d times for %s, want once", len(found), id)
	}
	return found[0]
}

// kept checks what the database holds, and how often the gateway has paid.
func (b *bundle) kept(refunds, ledger, payouts int) {
	b.Helper()
	type found struct{ Refunds, Ledger, Payouts int }
	got := found{b.count("select count(*) from refunds"), b.count("select count(*) from ledger"), len(b.gateway.statement())}
	if want := (found{refunds, ledger, payouts}); got != want {
		b.Errorf("there are %+v, want %+v", got, want)
	}
}

func (b *bundle) count(query string, args ...any) int {
	b.Helper()
	return int(pgtest.Count(b, b.db, query, args...))
}

// published checks the events that were written, by type.
func (b *bundle) published(want map[string]int) {
	b.Helper()
	rows, err := b.db.Query(b.Context(), "select type, count(*)::int from holdfast.event group by type")
	if err != nil {
		b.Fatal(err)
	}
	got := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			b.Fatal(err)
		}
		got[name] = n
	}
	if diff := cmp.Diff(want, got); rows.Err() != nil || diff != "" {
		b.Errorf("other events are published than wanted (%v): -want +got\n%s", rows.Err(), diff)
	}
}

// counted checks the counters.
func (b *bundle) counted(created, replays, conflicts int64) {
	b.Helper()
	got, err := counters(b.Context(), b.reader)
	if err != nil {
		b.Fatal(err)
	}
	for name, want := range map[string]int64{"idempotent.created": created, "idempotent.replayed": replays, "idempotent.conflict": conflicts} {
		if got[name] != want {
			b.Errorf("%s is %d, want %d", name, got[name], want)
		}
	}
}

// line is one of the log.
type line struct {
	Message string `json:"msg"`
	Key     string `json:"idempotency_key"`
	Event   string `json:"event_id"`
	Outcome string `json:"outcome"`
	Attempt int    `json:"attempt"` // the start of the handler that it was; 0 where it was none
}

// logged checks the log's lines of a message: one with each outcome, in their order. It returns them.
func (b *bundle) logged(message string, outcomes ...string) (found []line) {
	b.Helper()
	var got []string
	for _, l := range logtest.Lines[line](b, b.log.String()) {
		if l.Message == message {
			found, got = append(found, l), append(got, l.Outcome)
		}
	}
	if !slices.Equal(got, outcomes) {
		b.Errorf("the log has %q, want %q", got, outcomes)
	}
	return found
}

// oneKey checks that lines of the log name one key, and never the key itself.
func (b *bundle) oneKey(found []line, key string) {
	b.Helper()
	for _, l := range found {
		if l.Key == "" || l.Key != found[0].Key || l.Key == key {
			b.Errorf("the log names the key %s as %q and %q", key, found[0].Key, l.Key)
		}
	}
}

// traced checks the spans of a kind in the order of their starts: each as its attributes say, in the order of their names.
func (b *bundle) traced(kind trace.SpanKind, names []string, want ...string) {
	b.Helper()
	spans := b.spans.Ended()
	slices.SortFunc(spans, func(x, y sdktrace.ReadOnlySpan) int { return x.StartTime().Compare(y.StartTime()) })
	var got []string
	for _, span := range spans {
		if span.SpanKind() != kind {
			continue
		}
		said := map[string]string{}
		for _, a := range span.Attributes() {
			said[string(a.Key)] = a.Value.String()
		}
		if len(said["idempotency_key"]) != 16 {
			b.Errorf("the span %s has the key %q, want 16 digits", span.Name(), said["idempotency_key"])
		}
		var parts []string
		for _, name := range names {
			parts = append(parts, name+"="+said[name])
		}
		got = append(got, strings.Join(parts, " "))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		b.Errorf("other spans than wanted: -want +got\n%s", diff)
	}
}

// attempts checks the spans of the shop's attempts, each "attempt=1 status=201".
func (b *bundle) attempts(want ...string) {
	b.Helper()
	b.traced(trace.SpanKindClient, []string{"attempt", "status"}, want...)
}

// starts checks the spans of the service's requests: which start of its handler each was, "" for none.
func (b *bundle) starts(want ...string) {
	b.Helper()
	b.traced(trace.SpanKindServer, []string{"attempt"}, want...)
}
