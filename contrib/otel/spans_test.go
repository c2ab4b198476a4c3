package holdfastotel_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

const producersSpan = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// Document 004 asks for traces of consumers.
func TestSpans_EachRunOfAHandlerIsASpanLinkedToItsProducer(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	dead := make(chan inbox.DeadLettered, 1)
	in, err := inbox.New(migrated.New(t).Pool, inbox.Config{Consumer: "billing", ImmediateRetries: -1, PollMin: time.Millisecond, PollMax: 10 * time.Millisecond,
		Retry:    retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond},
		Observer: holdfastotel.InboxSpans(tracer, inbox.Observer{OnDead: func(d inbox.DeadLettered) { dead <- d }})})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("paid", func(ctx context.Context, _ pgx.Tx, e holdfast.Event) error {
		trace.SpanFromContext(ctx).SetAttributes(attribute.String("set by", "the handler"))
		if e.ID == "bad" {
			return retry.After(errors.New("planned"), time.Millisecond)
		}
		return nil
	})
	caller, request := tracer.Start(t.Context(), "request")
	for _, e := range []holdfast.Event{
		{ID: "good", Headers: map[string]string{"traceparent": producersSpan, "correlation_id": "call-1"}}, {ID: "bad"},
	} {
		e.Topic, e.Type, e.Source, e.Key = "payments", "paid", "bank", e.ID
		if _, err := in.Receive(caller, e); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- in.Run(ctx) }()
	select {
	case d := <-dead:
		if d.Context == nil {
			t.Error("the dead letter has no context")
		}
	case <-time.After(time.Minute):
		t.Fatal("there is no dead letter")
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	request.End()
	got := map[string]tracetest.SpanStub{}
	for _, s := range spans.GetSpans() {
		if s.Name == "request" {
			continue
		}
		said := map[string]string{}
		for _, a := range s.Attributes {
			said[string(a.Key)] = a.Value.String()
		}
		operation := "process"
		if said["attempt"] != "1" {
			operation = "retry"
		}
		if s.Name != operation+" payments" || s.SpanKind != trace.SpanKindConsumer || said["messaging.operation.name"] != operation || said["messaging.operation.type"] != "process" ||
			said["messaging.system"] != "holdfast" || said["messaging.destination.name"] != "payments" || said["messaging.consumer.group.name"] != "billing" ||
			said["messaging.message.id"] != said["event_id"] || said["source"] != "bank" || said["type"] != "paid" || said["set by"] != "the handler" || said["error.type"] != said["error_code"] {
			t.Errorf("span %s: %v", s.Name, said)
		}
		got[said["event_id"]+", attempt "+said["attempt"]+", from "+said["from_state"]+" to "+said["to_state"]+", "+said["correlation_id"]+", "+said["error_code"]] = s
	}
	good, first, second := got["good, attempt 1, from none to handled, call-1, "], got["bad, attempt 1, from none to none, , RATE_LIMIT"], got["bad, attempt 2, from stored to stored, , RATE_LIMIT"]
	if len(got) != 3 || good.Name == "" || first.Name == "" || second.Name == "" {
		t.Fatalf("got %v", got)
	}
	if len(good.Links) != 1 || good.Links[0].SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || good.Links[0].SpanContext.SpanID().String() != "b7ad6b7169203331" || len(first.Links) != 0 {
		t.Errorf("the links are %v and %v", good.Links, first.Links)
	}
	if good.Parent.SpanID() != request.SpanContext().SpanID() || good.Status.Code != codes.Unset || first.Status.Code != codes.Error {
		t.Errorf("the span of the first is below %v, with status %v; that of the failure has %v", good.Parent, good.Status, first.Status)
	}
}

func TestSpans_ABatchIsOneSpanWithTheLinksOfItsEvents(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	_, ended := holdfastotel.InboxSpans(tracer, inbox.Observer{}).OnHandle(t.Context(), inbox.Handling{Attempt: 1, FromState: "none", CorrelationID: "of the first",
		Events: []holdfast.Event{{ID: "1", Headers: map[string]string{"traceparent": producersSpan}}, {ID: "2"}, {ID: "3", Headers: map[string]string{"traceparent": producersSpan}}}})
	ended(nil)
	s := spans.GetSpans()[0]
	if len(s.Links) != 2 {
		t.Errorf("got %d links", len(s.Links))
	}
	for _, a := range s.Attributes {
		if a.Key == "event_id" && len(a.Value.AsStringSlice()) != 3 || a.Key == "correlation_id" {
			t.Errorf("got %v", a)
		}
	}
}
