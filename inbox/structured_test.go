package inbox

import (
	"context"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestStructured_StructuredEventsAreHandledAndMalformedOnesSaid(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox()
	type got struct{ source, key, payload, contentType, subject string }
	handled := map[string]got{}
	in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
		handled[e.ID] = got{e.Source, e.Key, string(e.Payload), e.Headers["content-type"], e.Headers["ce_subject"]}
		return nil
	})
	records := []string{
		`{"specversion":"1.0","id":"1","source":"/theirs","type":"order.placed","subject":"s","data":{"a":1}}`,
		`{"specversion":"1.0","id":"2","type":"order.placed"}`,
		`{"specversion":"1.0","id":"3","source":"/theirs","type":"order.placed","time":"yesterday"}`,
		`{"specversion":"1.0","id":"4","source":"/theirs"}`,
		`not JSON`,
		`{"specversion":"1.0","id":"5","source":"/theirs","type":"of.others","time":7}`,
		`{"specversion":"1.0","id":"1","source":"/theirs","type":"order.placed","subject":"s","data":{"a":1}}`,
	}
	var log []source.Record
	for i, value := range records {
		log = append(log, source.Record{Offset: int64(i), Key: []byte("k"), Value: []byte(value), Headers: []source.Header{{Key: "content-type", Value: []byte("application/cloudevents+json; charset=UTF-8")}}})
	}
	b.consumeFake(in, newFakeGeneration(log))
	b.awaitSettled(int64(len(log)))
	if want := (got{"/theirs", "k", `{"a":1}`, "application/json", "s"}); len(handled) != 1 || handled["1"] != want {
		t.Errorf("handled %+v, want %+v alone", handled, want)
	}
	for reason, payload := range map[string]string{
		`invalid record: cloudevent: attribute "source": it is missing`:          records[1],
		`invalid record: cloudevent: attribute "time": it is not as in RFC 3339`: records[2],
		`invalid record: cloudevent: attribute "type": it is missing`:            records[3],
		`invalid record: cloudevent: it is no JSON object`:                       records[4],
	} {
		if n := b.count("select count(*) from holdfast.letter where reason = $1 and convert_from(payload, 'utf8') = $2", reason, payload); n != 1 {
			t.Errorf("no letter says %q of %s", reason, payload)
		}
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 4 { // That of a type that nobody handles is skipped.
		t.Errorf("%d dead letters, want 4", n)
	}
	if n := b.count("select count(*) from holdfast.inbox where result = 'handled'"); n != 1 {
		t.Errorf("%d rows, want 1: the second copy is a duplicate", n)
	}
}

// The binding for Kafka lets a structured record have the headers of binary mode too, about the same event.
func TestStructured_ACloudEventInAnEventIsItsPayload(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox()
	payloads := map[string]string{}
	keep := func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
		payloads[e.ID] = string(e.Payload)
		return nil
	}
	in.Handle("hook.received", keep)
	in.Handle("order.placed", keep)
	const inner = `{"specversion":"1.0","id":"1","source":"/theirs","type":"order.placed","data":{"a":1}}`
	record := func(offset int64, id, src, kind, contentType, value string) source.Record {
		return source.Record{Offset: offset, Key: []byte("k"), Value: []byte(value), Headers: []source.Header{{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte(id)},
			{Key: "ce_source", Value: []byte(src)}, {Key: "ce_type", Value: []byte(kind)}, {Key: "content-type", Value: []byte(contentType)}}}
	}
	log := []source.Record{
		record(0, "outer", "hooks", "hook.received", "application/cloudevents+json", inner),
		record(1, "batch", "hooks", "hook.received", "application/cloudevents-batch+json", "["+inner+"]"),
		record(2, "1", "/theirs", "order.placed", "application/cloudevents+json", inner),
	}
	b.consumeFake(in, newFakeGeneration(log))
	b.awaitSettled(int64(len(log)))
	if want := map[string]string{"outer": inner, "batch": "[" + inner + "]", "1": `{"a":1}`}; !maps.Equal(payloads, want) {
		t.Errorf("handled %q, want %q", payloads, want)
	}
}
