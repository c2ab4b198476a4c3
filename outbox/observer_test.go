package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

func TestObserver_AnObserverGivesTheEventsOfAWriteTheirTrace(t *testing.T) {
	t.Parallel()
	db := setup(t)
	var more map[string]string
	var told []string
	out, err := outbox.New(outbox.Config{Observer: outbox.Observer{OnWrite: func(ctx context.Context, events []holdfast.Event) (map[string]string, func(error)) {
		if ctx != t.Context() {
			t.Error("the context is not that of Write")
		}
		n := len(events)
		return more, func(err error) { told = append(told, fmt.Sprint(n, " ", err != nil)) }
	}}})
	if err != nil {
		t.Fatal(err)
	}
	trace := map[string]string{"traceparent": "00-4b-01", "tracestate": "a=b"}
	full := map[string]string{}
	for i := range 63 {
		full[fmt.Sprint("h", i)] = "x"
	}
	for name, c := range map[string]struct{ own, more, want map[string]string }{
		"an event without headers":                {nil, trace, trace},
		"nothing is given":                        {map[string]string{"a": "1"}, nil, map[string]string{"a": "1"}},
		"headers beside the event's own":          {map[string]string{"a": "1"}, trace, map[string]string{"a": "1", "traceparent": "00-4b-01", "tracestate": "a=b"}},
		"an event that has a trace":               {map[string]string{"Traceparent": "own"}, trace, map[string]string{"Traceparent": "own"}},
		"a reserved header":                       {nil, map[string]string{"ce_id": "x", "traceparent": "00-4b-01"}, nil},
		"a header that is not valid":              {map[string]string{"a": "1"}, map[string]string{"trace parent": "x"}, map[string]string{"a": "1"}},
		"more headers than an event may have":     {full, trace, full},
		"more bytes of headers than an event has": {map[string]string{"a": strings.Repeat("x", 8<<10-10)}, trace, map[string]string{"a": strings.Repeat("x", 8<<10-10)}},
	} {
		more = c.more
		kept := maps.Clone(c.own)
		e := good()
		e.ID, e.Headers = name, c.own
		if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return out.Write(t.Context(), tx, e) }); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := map[string]string(nil)
		if err := db.QueryRow(t.Context(), "select headers from holdfast.event where id = $1", name).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: it is written with %.200v, want %.200v", name, got, c.want)
		}
		if !maps.Equal(c.own, kept) {
			t.Errorf("%s: the caller's headers are changed", name)
		}
	}
	if len(trace) != 2 {
		t.Errorf("the observer's headers are changed: %v", trace)
	}
	told = nil
	bad := good()
	bad.Topic = ""
	err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return out.Write(t.Context(), tx, good(), bad) })
	if !errors.As(err, new(*outbox.LimitError)) || len(told) != 1 || told[0] != "2 true" {
		t.Errorf("a Write that fails with %v was told as %q", err, told)
	}
	// Queue has no context.
	batch := &pgx.Batch{}
	if err := out.Queue(batch, holdfast.Event{ID: "queued", Topic: "orders", Type: "x"}); err != nil || len(told) != 1 {
		t.Errorf("queue: %v, told %q", err, told)
	}
}
