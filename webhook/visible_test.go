package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

type spanKey struct{}

// deliveryLine is what a line of the log says about a delivery.
type deliveryLine struct {
	Level, Msg, Outcome, Source, Type string
	EventID                           string `json:"event_id"`
	Correlation                       string `json:"correlation_id"`
	From                              string `json:"from_state"`
	To                                string `json:"to_state"`
	ErrorCode                         string `json:"error_code"`
	Status                            int
}

// Document 004 asks for event_id, from_state and to_state, and correlation_id.
func TestVisible_ALineAboutADeliverySaysWhatBecameOfIt(t *testing.T) {
	b := setup(t, func(c *inbox.Config) { c.CorrelationHeader = "x-request-id" })
	log := &logtest.Log{}
	shop := b.shop(func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Workers, c.Wait, c.Headers = 1, -1, []string{"X-Request-Id"}
	})
	line := func() deliveryLine {
		t.Helper()
		lines := logtest.Lines[deliveryLine](t, log.Take())
		if len(lines) != 1 {
			t.Fatalf("got %d lines: %+v", len(lines), lines)
		}
		return lines[0]
	}
	deliver := func(status int, id string) {
		t.Helper()
		h, body := order(id)
		h.Set("X-Request-Id", "request-"+id)
		b.want(status, shop, h, body)
	}
	deliver(200, "evt_1")
	if l := line(); l.Level != "DEBUG" || l.Msg != "webhook answered" || l.EventID != "evt_1" || l.Outcome != "handled" || l.From != "none" || l.To != "handled" ||
		l.Correlation != "request-evt_1" || l.Source != "shop" || l.Type != "order.placed" || l.Status != 200 {
		t.Errorf("got %+v", l)
	}
	if b.lastAnswer().CorrelationID != "request-evt_1" {
		t.Errorf("the observer got %+v", b.lastAnswer())
	}
	deliver(200, "evt_1")
	if l := line(); l.Level != "INFO" || l.Outcome != "duplicate" || l.From != "known" || l.To != "known" {
		t.Errorf("got %+v", l)
	}
	b.failWith("evt_2", errors.New("planned"))
	deliver(202, "evt_2")
	if l := line(); l.Outcome != "retrying" || l.From != "none" || l.To != "stored" || l.Status != 202 {
		t.Errorf("got %+v", l)
	}
	if text := b.log.String(); !strings.Contains(text, "event_id=evt_2 correlation_id=request-evt_2") {
		t.Errorf("the inbox does not know the request:\n%s", text)
	}
	open := b.gate("evt_3")
	h, body := order("evt_3")
	answer := b.held(shop, h, body)
	deliver(503, "evt_4")
	if l := line(); l.Level != "WARN" || l.Msg != "webhook not accepted" || l.EventID != "evt_4" || l.From != "unknown" || l.To != "unknown" || l.ErrorCode != "TRANSIENT" || l.Correlation == "" {
		t.Errorf("got %+v", l)
	}
	open()
	<-answer
	log.Take()
	h, body = order("evt_5")
	h.Set("X-Request-Id", "request-5")
	b.want(401, shop, h, body+" ")
	if l := line(); l.Level != "WARN" || l.Msg != "webhook refused" || l.ErrorCode != "AUTH" || l.Correlation != "request-5" || l.Status != 401 {
		t.Errorf("got %+v", l)
	}
}

func TestVisible_AnObserverOfDeliveriesHasTheContextOfTheRequest(t *testing.T) {
	b := setup(t)
	var answered, refused, handled any
	in := b.inbox(func(c *inbox.Config) {
		c.Observer.OnHandle = func(ctx context.Context, _ inbox.Handling) (context.Context, func(error)) {
			handled = ctx.Value(spanKey{})
			return ctx, func(error) {}
		}
	})
	h, err := New(in, "shop", must(Standard(macSecret)), Config{NowFunc: func() time.Time { return now }, Observer: Observer{
		OnDelivery: func(a Answered) { answered = a.Context.Value(spanKey{}) },
		OnRefused:  func(r Refused) { refused = r.Context.Value(spanKey{}) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), spanKey{}, "span")))
	}))
	defer s.Close()
	header, body := order("evt_1")
	b.want(200, s, header, body)
	b.want(401, s, header, body+" ")
	if answered != "span" || refused != "span" || handled != "span" {
		t.Errorf("got %v, %v and %v", answered, refused, handled)
	}
}

func TestVisible_AnObserverGivesAWebhooksEventItsTrace(t *testing.T) {
	b := setup(t)
	var handled map[string]string
	in := b.inbox(func(c *inbox.Config) {
		c.Observer.OnHandle = func(ctx context.Context, h inbox.Handling) (context.Context, func(error)) {
			handled = h.Events[0].Headers
			return ctx, func(error) {}
		}
	})
	var more map[string]string
	ended := 0
	h, err := New(in, "shop", must(Standard(macSecret)), Config{NowFunc: func() time.Time { return now }, Headers: []string{"X-A", "Traceparent"},
		Observer: Observer{OnRequest: func(ctx context.Context, source string, r *http.Request) (context.Context, map[string]string, func()) {
			if source != "shop" || r.Method != http.MethodPost {
				t.Errorf("got %s of %s", r.Method, source)
			}
			return ctx, more, func() { ended++ }
		}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ more, want map[string]string }{
		{nil, map[string]string{"x-a": "1", "traceparent": "theirs"}},
		{map[string]string{"traceparent": "ours", "tracestate": "a=b"}, map[string]string{"x-a": "1", "traceparent": "ours", "tracestate": "a=b"}},
		{map[string]string{"ce_id": "forged", "tracestate": "a=b"}, map[string]string{"x-a": "1", "traceparent": "theirs"}},
		{map[string]string{"a b": "x"}, map[string]string{"x-a": "1", "traceparent": "theirs"}},
		{map[string]string{"tracestate": "\xff"}, map[string]string{"x-a": "1", "traceparent": "theirs"}},
	} {
		more = c.more
		header, body := order(fmt.Sprint("evt_", i))
		header.Set("X-A", "1")
		header.Set("Traceparent", "theirs")
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		r.Header = header
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code/100 != 2 || !maps.Equal(handled, c.want) || ended != i+1 {
			t.Errorf("with %v: %d, the handler got %v, want %v; %d requests ended", c.more, w.Code, handled, c.want, ended)
		}
	}
}
