package inbox

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

func TestStructuredEventsAreHandledAndMalformedOnesSaid(t *testing.T) {
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
	var log []Record
	for i, value := range records {
		log = append(log, Record{Offset: int64(i), Key: []byte("k"), Value: []byte(value), Headers: []Header{{Key: "content-type", Value: []byte("application/cloudevents+json; charset=UTF-8")}}})
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
