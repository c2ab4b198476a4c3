package holdfastotel_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

var otlp = flag.String("otlp", "", "send the one trace to this collector, as http://127.0.0.1:4318: for the picture in docs")

// The messages of OTLP over HTTP in JSON, as far as spans need them: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding.
type (
	otlpValue     map[string]any
	otlpAttribute struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpEvent struct {
		Time       string          `json:"timeUnixNano"`
		Name       string          `json:"name"`
		Attributes []otlpAttribute `json:"attributes"`
	}
	otlpLink struct {
		Trace string `json:"traceId"`
		Span  string `json:"spanId"`
	}
	otlpSpan struct {
		Trace      string          `json:"traceId"`
		Span       string          `json:"spanId"`
		Parent     string          `json:"parentSpanId,omitempty"`
		Name       string          `json:"name"`
		Kind       int             `json:"kind"`
		Begin      string          `json:"startTimeUnixNano"`
		End        string          `json:"endTimeUnixNano"`
		Attributes []otlpAttribute `json:"attributes"`
		Events     []otlpEvent     `json:"events,omitempty"`
		Links      []otlpLink      `json:"links,omitempty"`
		Status     map[string]any  `json:"status"`
	}
)

// sendTrace posts the spans to the collector of the flag. rename gives topics of a test names for people.
func sendTrace(t *testing.T, spans tracetest.SpanStubs, rename *strings.Replacer) {
	t.Helper()
	attributes := func(all []attribute.KeyValue) (to []otlpAttribute) {
		for _, a := range all {
			value := otlpValue{"stringValue": rename.Replace(a.Value.String())}
			if a.Value.Type() == attribute.INT64 {
				value = otlpValue{"intValue": strconv.FormatInt(a.Value.AsInt64(), 10)}
			}
			to = append(to, otlpAttribute{string(a.Key), value})
		}
		return to
	}
	var resources []any
	for _, s := range spans {
		span := otlpSpan{Trace: s.SpanContext.TraceID().String(), Span: s.SpanContext.SpanID().String(), Name: rename.Replace(s.Name), Kind: int(s.SpanKind),
			Begin: fmt.Sprint(s.StartTime.UnixNano()), End: fmt.Sprint(s.EndTime.UnixNano()), Attributes: attributes(s.Attributes), Status: map[string]any{}}
		if s.Parent.SpanID().IsValid() {
			span.Parent = s.Parent.SpanID().String()
		}
		if s.Status.Code == codes.Error {
			span.Status = map[string]any{"code": 2, "message": rename.Replace(s.Status.Description)}
		}
		for _, e := range s.Events {
			span.Events = append(span.Events, otlpEvent{fmt.Sprint(e.Time.UnixNano()), e.Name, attributes(e.Attributes)})
		}
		for _, l := range s.Links {
			span.Links = append(span.Links, otlpLink{l.SpanContext.TraceID().String(), l.SpanContext.SpanID().String()})
		}
		resources = append(resources, map[string]any{"resource": map[string]any{"attributes": attributes(s.Resource.Attributes())},
			"scopeSpans": []any{map[string]any{"scope": map[string]any{"name": s.InstrumentationScope.Name}, "spans": []otlpSpan{span}}}})
	}
	body, err := json.Marshal(map[string]any{"resourceSpans": resources})
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, *otlp+"/v1/traces", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("the collector answers %s", answer.Status)
	}
	t.Logf("sent trace %s", spans[0].SpanContext.TraceID())
}
