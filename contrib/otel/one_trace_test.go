package holdfastotel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// traced is an exporter in memory, with a tracer that samples everything.
func traced() (*tracetest.InMemoryExporter, trace.Tracer) {
	spans := tracetest.NewInMemoryExporter()
	return spans, tracerOf("test", spans)
}

// tracerOf is the tracer of a service.
func tracerOf(service string, spans *tracetest.InMemoryExporter) trace.Tracer {
	name := resource.NewSchemaless(attribute.String("service.name", service))
	return sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithResource(name)).Tracer("test")
}

// away is a publisher that cannot write to its partitions while it is away.
type away struct {
	relay.Publisher
	is atomic.Bool
}

func (a *away) Publish(ctx context.Context, events []holdfast.Event) []error {
	if !a.is.Load() {
		return a.Publisher.Publish(ctx, events)
	}
	err := &publish.Error{Topic: events[0].Topic, Partition: -1, Fault: publish.FaultPartition, Err: errors.New("no leader")}
	return slices.Repeat([]error{err}, len(events))
}

// running runs f until the test ends.
func running(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s ended: %v", what, err)
		}
	})
}

// consuming runs a consumer of a topic with spans.
func consuming(t *testing.T, db *pgtest.DB, cluster *kafkatest.Cluster, tracer trace.Tracer, consumer, topic string, attempts int, h inbox.Handler) {
	t.Helper()
	in, err := inbox.New(db.Pool, inbox.Config{Consumer: consumer, Logger: slog.New(slog.DiscardHandler), Observer: holdfastotel.InboxSpans(tracer, inbox.Observer{}),
		ImmediateRetries: -1, PollMin: time.Millisecond, PollMax: 10 * time.Millisecond, Retry: retry.Policy{Attempts: attempts, Base: time.Millisecond, Cap: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("told", h)
	group, err := kafkago.NewGroup(kafkago.Connection{Brokers: cluster.Brokers}, kafkago.GroupConfig{GroupID: consumer + " of " + topic, Topics: []string{topic},
		SessionTimeout: 20 * time.Second, HeartbeatInterval: 500 * time.Millisecond, WatchInterval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	running(t, consumer, func(ctx context.Context) error { return in.Consume(ctx, group) })
}

func TestOneTrace_OneTraceFromTheRequestToTheLastConsumer(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	db, cluster := migrated.New(t), kafkatest.New(t)
	orders, invoices := cluster.Topic(t, 2), cluster.Topic(t, 2)
	spans := tracetest.NewInMemoryExporter()
	tracer := tracerOf("shop", spans)

	// 1. A service writes an order's event in the transaction of its request.
	out, err := outbox.New(outbox.Config{Source: "shop", Observer: holdfastotel.OutboxSpans(tracer, outbox.Observer{})})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := idempotency.New(db.Pool, idempotency.Config{Logger: slog.New(slog.DiscardHandler), Principal: func(*http.Request) (string, error) { return "a", nil },
		Observer: holdfastotel.IdempotencySpans(tracer, idempotency.Observer{})})
	if err != nil {
		t.Fatal(err)
	}
	service := http.NewServeMux()
	service.Handle("POST /orders", guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := out.Write(r.Context(), idempotency.Tx(r.Context()), holdfast.Event{ID: "order", Topic: orders, Type: "told", Key: "k", Payload: []byte("{}")}); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
	})))

	// 2. The relay's partition is away at first, so the event is parked.
	kafka, err := kafkago.NewPublisher(kafkago.Connection{Brokers: cluster.Brokers}, kafkago.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	publisher := &away{Publisher: kafka}
	publisher.is.Store(true)
	r, err := relay.New(db.Pool, publisher, relay.Config{Logger: slog.New(slog.DiscardHandler), Lease: 30 * time.Second, ParkAfter: 50 * time.Millisecond, Observer: holdfastotel.RelaySpans(tracerOf("relay", spans), relay.Observer{})})
	if err != nil {
		t.Fatal(err)
	}
	running(t, "relay", r.Run)

	// 3. The first consumer fails until its event is a dead letter. When that is replayed, it writes the next event.
	billing, err := outbox.New(outbox.Config{Source: "billing", Observer: holdfastotel.OutboxSpans(tracerOf("billing", spans), outbox.Observer{})})
	if err != nil {
		t.Fatal(err)
	}
	var well atomic.Bool
	consuming(t, db, cluster, tracerOf("billing", spans), "billing", orders, 3, func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if !well.Load() {
			return errors.New("planned")
		}
		return billing.Write(ctx, tx, holdfast.Event{ID: "invoice", Topic: invoices, Type: "told", Key: e.Key})
	})
	told := make(chan trace.SpanContext, 1)
	consuming(t, db, cluster, tracerOf("mail", spans), "mail", invoices, 3, func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error {
		told <- trace.SpanContextFromContext(ctx)
		return nil
	})

	ctx, client := tracer.Start(t.Context(), "client")
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader("{}"))
	request.Header.Set("Idempotency-Key", "0123456789abcdef")
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(request.Header))
	answer := httptest.NewRecorder()
	service.ServeHTTP(answer, request)
	if answer.Code != http.StatusCreated {
		t.Fatalf("got %d: %s", answer.Code, answer.Body)
	}
	client.End()
	wait.Until(t, "the event is parked", func() bool {
		return pgtest.Count(t, db, "select count(*) from holdfast.parked where why = 'partition'") == 1
	})
	publisher.is.Store(false)
	wait.Until(t, "the event is a dead letter", func() bool {
		return pgtest.Count(t, db, "select count(*) from holdfast.letter where state = 'open'") == 1
	})
	well.Store(true)
	letters, err := dlq.New(db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := letters.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "somebody"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	select {
	case last := <-told:
		if last.TraceID() != client.SpanContext().TraceID() {
			t.Errorf("the last handler is in the trace %s, want the client's %s", last.TraceID(), client.SpanContext().TraceID())
		}
	case <-time.After(time.Minute):
		t.Fatal("the second event was not handled")
	}
	// What was published may be handled before the relay hears that it was written.
	wait.Until(t, "the last spans have ended", func() bool {
		ended := map[string]bool{}
		for _, s := range spans.GetSpans() {
			ended[s.Name] = ended[s.Name] || s.Status.Code != codes.Error
		}
		return ended["publish "+orders] && ended["publish "+invoices] && ended["process "+invoices]
	})

	if *otlp != "" {
		sendTrace(t, spans.GetSpans(), strings.NewReplacer(orders, "orders", invoices, "invoices"))
	}

	// 4. All spans are of one trace, each below the one that caused it.
	names := map[trace.SpanID]string{}
	for _, s := range spans.GetSpans() {
		names[s.SpanContext.SpanID()] = s.Name
	}
	got, first := map[string]int{}, map[string]bool{}
	for _, s := range spans.GetSpans() {
		if s.SpanContext.TraceID() != client.SpanContext().TraceID() {
			t.Errorf("the span %s is in another trace", s.Name)
		}
		about := fmt.Sprintf("%s, a %s below %s", s.Name, s.SpanKind, names[s.Parent.SpanID()])
		if s.Status.Code == codes.Error {
			about += ", failed"
		}
		about = strings.ReplaceAll(strings.ReplaceAll(about, orders, "orders"), invoices, "invoices")
		got[about]++
		first[about] = true
	}
	for about, n := range map[string]int{
		"client, a internal below ":                                1,
		"request POST /orders, a server below client":              1,
		"create orders, a producer below request POST /orders":     1,
		"publish orders, a client below create orders":             1,
		"process orders, a consumer below create orders, failed":   1,
		"retry orders, a consumer below create orders, failed":     2,
		"process orders, a consumer below create orders":           1, // the replay counts its attempts anew
		"create invoices, a producer below process orders":         1,
		"publish invoices, a client below create invoices":         1,
		"process invoices, a consumer below create invoices":       1,
		"publish orders, a client below create orders, failed":     got["publish orders, a client below create orders, failed"],
		"publish invoices, a client below create invoices, failed": got["publish invoices, a client below create invoices, failed"],
	} {
		if got[about] != n {
			t.Errorf("%d times %q, want %d", got[about], about, n)
		}
		delete(got, about)
	}
	if !first["publish orders, a client below create orders, failed"] || len(got) > 0 {
		t.Errorf("there are %v too, or no span of the publication that failed", got)
	}
}

func TestOneTrace_AWebhooksSpanIsAboveItsHandlersAlsoLater(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	spans, tracer := traced()
	in, err := inbox.New(migrated.New(t).Pool, inbox.Config{Consumer: "hooks", Logger: slog.New(slog.DiscardHandler), PollMin: time.Millisecond, PollMax: 10 * time.Millisecond,
		Observer: holdfastotel.InboxSpans(tracer, inbox.Observer{})})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{}, 2)
	in.Handle("paid", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	verifier := webhook.VerifierFunc(func(http.Header, []byte, time.Time) (webhook.Delivery, error) {
		return webhook.Delivery{ID: "1", IDSigned: true, Type: "paid", Timestamp: time.Now()}, nil
	})
	h, err := webhook.New(in, "bank", verifier, webhook.Config{Mode: webhook.StoreFirst, Observer: holdfastotel.WebhookSpans(tracer, webhook.Observer{
		OnDelivery: func(webhook.Answered) { done <- struct{}{} }})})
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hook", strings.NewReader("{}"))
	request.Header.Set("traceparent", producersSpan)
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, request)
	if answer.Code/100 != 2 {
		t.Fatalf("got %d: %s", answer.Code, answer.Body)
	}
	<-done
	running(t, "inbox", in.Run)
	wait.Until(t, "the event is handled", func() bool { return len(spans.GetSpans()) == 2 })
	got := map[string]tracetest.SpanStub{}
	for _, s := range spans.GetSpans() {
		got[s.Name] = s
	}
	hook, handler := got["webhook bank"], got["process webhook.bank"]
	if hook.SpanKind != trace.SpanKindServer || hook.Parent.IsValid() || len(hook.Links) != 1 || hook.Links[0].SpanContext.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("the webhook's span is %s below %v with links %v", hook.SpanKind, hook.Parent.SpanID(), hook.Links)
	}
	if handler.Parent.SpanID() != hook.SpanContext.SpanID() || handler.SpanContext.TraceID() != hook.SpanContext.TraceID() {
		t.Errorf("the handler's span is below %s, want %s: %v", handler.Parent.SpanID(), hook.SpanContext.SpanID(), got)
	}
}
