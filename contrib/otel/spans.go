package holdfastotel

import (
	"cmp"
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// OutboxSpans adds a span to an outbox's Observer for each Write: "create" and the topic. It is the producer's span of OpenTelemetry's
// messaging conventions. The events carry it in their headers traceparent and tracestate, so all that becomes of them belongs to
// the trace of Write's context. A function that o already has is called too; the span's headers win over those that it gives.
func OutboxSpans(tracer trace.Tracer, o outbox.Observer) outbox.Observer {
	before := o.OnWrite
	o.OnWrite = func(ctx context.Context, events []holdfast.Event) (map[string]string, func(error)) {
		var more map[string]string
		ended := func(error) {}
		if before != nil {
			more, ended = before(ctx, events)
		}
		first := &events[0]
		name := "create " + first.Topic
		attributes := []attribute.KeyValue{attrSystem.String(systemHoldfast), attrOperation.String("create"), attrOperationType.String("create"), attrBatch.Int(len(events))}
		for i := range events {
			if events[i].Topic != first.Topic {
				name = "create"
			}
		}
		if name != "create" {
			attributes = append(attributes, attrDestination.String(first.Topic))
		}
		if len(events) == 1 && first.ID != "" {
			attributes = append(attributes, attrEventID.String(first.ID), attrMessageID.String(first.ID))
		}
		ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes...))
		return joined(headersOf(ctx), more), func(err error) {
			fail(span, err)
			span.End()
			ended(err)
		}
	}
	return o
}

// RelaySpans adds a span to a relay's Observer for each event of each call of the publisher: "publish" and the topic. Its parent is
// the span that wrote the event, so an event that was parked for hours is still in its trace; its attribute attempt counts. Events
// without traceparent, and those whose trace is not sampled, have none. A function that o already has is called too.
func RelaySpans(tracer trace.Tracer, o relay.Observer) relay.Observer {
	before := o.OnPublish
	o.OnPublish = func(ctx context.Context, p relay.Publishing) (context.Context, func([]error)) {
		ended := func([]error) {}
		if before != nil {
			ctx, ended = before(ctx, p)
		}
		spans := publishSpans(ctx, tracer, p)
		return ctx, func(errs []error) {
			for i, span := range spans {
				if span == nil {
					continue
				}
				if errs[i] != nil {
					span.SetAttributes(attribute.String("fault", string(publish.FaultOf(errs[i]))))
				}
				fail(span, errs[i])
				span.End()
			}
			ended(errs)
		}
	}
	return o
}

// publishSpans starts the spans of a call: one for each event, nil for those without a sampled trace.
func publishSpans(ctx context.Context, tracer trace.Tracer, p relay.Publishing) []trace.Span {
	var spans []trace.Span
	for i := range p.Events {
		e := &p.Events[i]
		producer := producerOf(e)
		if !producer.IsSampled() {
			continue
		}
		if spans == nil {
			spans = make([]trace.Span, len(p.Events))
		}
		attributes := []attribute.KeyValue{
			attrSystem.String(p.System), attrOperation.String("publish"), attrOperationType.String("send"), attrDestination.String(p.Topic),
			attrMessageID.String(e.ID), attrBatch.Int(len(p.Events)), attrEventID.String(e.ID), attrSource.String(e.Source), attrEventType.String(e.Type),
			attrAttempt.Int(p.Attempts[i]),
		}
		if p.Partition >= 0 {
			attributes = append(attributes, attrPartition.String(strconv.Itoa(p.Partition)))
		}
		_, spans[i] = tracer.Start(trace.ContextWithRemoteSpanContext(ctx, producer), "publish "+p.Topic,
			trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	}
	return spans
}

// InboxSpans adds a span to an inbox's Observer for each run of a handler: "process" and the topic for the first run, "retry" and the
// topic for later ones. The handler's context has the span. Its attributes are those of the log: event_id, source, type, attempt,
// from_state, to_state, correlation_id and, after a failure, error_code; and those of OpenTelemetry's messaging conventions.
//
// An event from Kafka, and one that was stored, continues the trace that wrote it, however late that is: the span's parent is the
// producer's. If a caller of Receive waits, the span is below the caller's, with a link to the producer's. A batch has one span, a
// trace of its own with links to the producers of its events.
//
// The span ends with the handler, before the commit: to_state is what a commit makes of it. After a failure the state is
// unchanged; the log says whether the event is then stored or a dead letter. A function that o already has is called too.
func InboxSpans(tracer trace.Tracer, o inbox.Observer) inbox.Observer {
	before := o.OnHandle
	o.OnHandle = func(ctx context.Context, h inbox.Handling) (context.Context, func(error)) {
		beforeEnded := func(error) {}
		if before != nil {
			ctx, beforeEnded = before(ctx, h)
		}
		operation := "process"
		if h.Attempt > 1 {
			operation = "retry"
		}
		ctx, options := placeOf(ctx, h)
		options = append(options, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributesOf(h, operation)...))
		ctx, span := tracer.Start(ctx, operation+" "+h.Events[0].Topic, options...)
		return ctx, func(err error) {
			if err == nil {
				span.SetAttributes(attrToState.String("handled"))
			} else {
				span.SetAttributes(attrToState.String(h.FromState))
			}
			fail(span, err)
			span.End()
			beforeEnded(err)
		}
	}
	return o
}

// placeOf is where in which trace the span of a handler's run belongs.
func placeOf(ctx context.Context, h inbox.Handling) (context.Context, []trace.SpanStartOption) {
	caller := trace.SpanContextFromContext(ctx)
	called := h.Called && caller.IsValid()
	first := producerOf(&h.Events[0])
	switch {
	case !called && len(h.Events) == 1 && first.IsValid():
		return trace.ContextWithRemoteSpanContext(ctx, first), nil
	case !called && !caller.IsValid() && len(h.Events) == 1:
		return ctx, nil
	}
	var links []trace.Link
	for i := range h.Events {
		if producer := producerOf(&h.Events[i]); producer.IsValid() && producer.SpanID() != caller.SpanID() {
			links = append(links, trace.Link{SpanContext: producer})
		}
	}
	options := []trace.SpanStartOption{trace.WithLinks(links...)}
	if !called {
		options = append(options, trace.WithNewRoot()) // Run's own span, if it has one, is of no event.
	}
	return ctx, options
}

func attributesOf(h inbox.Handling, operation string) []attribute.KeyValue {
	first := &h.Events[0]
	attributes := []attribute.KeyValue{
		attrSystem.String(cmp.Or(h.System, systemHoldfast)), attrOperation.String(operation), attrOperationType.String("process"), attrDestination.String(first.Topic), attrGroup.String(h.Consumer),
		attrSource.String(first.Source), attrEventType.String(first.Type), attrAttempt.Int(h.Attempt), attrFromState.String(h.FromState),
	}
	if h.Partition >= 0 && len(h.Events) == 1 {
		attributes = append(attributes, attrPartition.String(strconv.Itoa(h.Partition)))
	}
	if len(h.Events) > 1 {
		ids := make([]string, len(h.Events))
		for i := range h.Events {
			ids[i] = h.Events[i].ID
		}
		return append(attributes, attrBatch.Int(len(ids)), attrEventID.StringSlice(ids))
	}
	if h.CorrelationID != "" {
		attributes = append(attributes, attrCorrelation.String(h.CorrelationID))
	}
	return append(attributes, attrEventID.String(first.ID), attrMessageID.String(first.ID))
}

// fail says in a span what class an error has. Its text is left out: it may hold what the event says.
func fail(span trace.Span, err error) {
	if err == nil {
		return
	}
	class := string(retry.Classify(err))
	span.SetAttributes(attrErrorCode.String(class), attrErrorType.String(class))
	span.SetStatus(codes.Error, class)
}
