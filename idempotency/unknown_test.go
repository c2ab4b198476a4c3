package idempotency

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// What is said of a request of which it is not known whether it was carried out.

// R28.
func TestUnknown_AnUnknownOutcomeWithoutAKeyIsNotToBeSentAgain(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	f := &faulty{t: t}
	h := b.service(b.guardOn(faultyPool(t, b.db.DSN, f)), func(w http.ResponseWriter, r *http.Request) {
		b.charge(w, r)
		f.deaf.Store(b.runs.Load() == 2) // The next reply is that to COMMIT.
	}, Route{Optional: true})
	b.is(b.send(h, sent{}), 201, "")
	w := b.send(h, sent{})
	b.is(w, 503, codeOutcomeUnknown)
	p := problemOf(t, w)
	if retry := w.Header().Values("Retry-After"); p["retryable"] != false || len(retry) != 0 || strings.Contains(p["detail"].(string), "once") {
		t.Errorf("the client is told to send it again: %s, %v", w.Body, retry)
	}
	b.kept(2, 2, 0) // and the second would be there a second time
}

// failing is a Store that stores no answer.
type failing struct{ *memory }

func (failing) Finish(context.Context, store.Key, int64, store.Answer, time.Duration) (time.Time, bool, error) {
	return time.Time{}, false, errors.New("planned")
}

// R28.
func TestUnknown_WithoutPostgresAnUnknownOutcomeIsNotPromisedOnce(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	g, err := NewEphemeral(failing{&memory{rows: map[store.Key]*memoryRow{}}}, b.config())
	if err != nil {
		t.Fatal(err)
	}
	w := b.send(b.service(g, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }), sent{key: "k"})
	b.is(w, 503, codeOutcomeUnknown)
	if p := problemOf(t, w); p["retryable"] != true || w.Header().Get("Retry-After") != "1" || strings.Contains(p["detail"].(string), "once") {
		t.Errorf("got %s, %v", w.Body, w.Header())
	}
}
