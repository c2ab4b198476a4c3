package idempotency

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// What a handler, a client or a function of a route may do that nobody thought of.

// R18.
func TestHostile_AReferenceThatIsNoTextDoesNotCostTheEffect(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	for name, ref := range map[string]string{"not UTF-8": "/charges/\xe9", "NUL": "/charges/\x00", "long": "/charges/" + string(make([]byte, 100_000)), "cut": "/charges/" + strings.Repeat("é", 1000)} {
		for how, handler := range map[string]http.HandlerFunc{
			"Location":  func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Location", ref); w.WriteHeader(201) },
			"SetResult": func(w http.ResponseWriter, r *http.Request) { SetResult(r.Context(), ref); w.WriteHeader(201) },
		} {
			h := b.service(b.guard(), handler, Route{Operation: how + name})
			b.is(b.send(h, sent{key: "k"}), 201, "")
			if w := b.send(h, sent{key: "k"}); w.Header().Get("Idempotency-Status") != "replayed" {
				t.Errorf("%s, %s: got %d %v", how, name, w.Code, w.Header())
			}
		}
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where result_ref like '/charges/%' and octet_length(result_ref) <= 1024"); n != 8 {
		t.Errorf("%d references are kept", n)
	}
}

// R7.
func TestHostile_FunctionsOfARouteMayReadTheFormAndTheHandlerHasItsBody(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	account := func(r *http.Request) string { return r.FormValue("account") }
	for name, o := range map[string]Route{
		"key func":    {KeyFunc: func(r *http.Request, _ []byte) (string, error) { return account(r), nil }},
		"fingerprint": {Fingerprint: func(r *http.Request, _ []byte) ([]byte, error) { return []byte(account(r)), nil }},
	} {
		o.Operation = name
		h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); string(body) != "account=a1" || err != nil { // nobody has parsed it before
				t.Errorf("%s: the handler's body is %q, %v", name, body, err)
			}
			w.WriteHeader(201)
		}, o)
		form := url.Values{"account": {"a1"}}.Encode()
		header := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
		b.is(b.send(h, sent{key: "k", body: form, header: header}), 201, "")
		w := b.send(h, sent{key: "k", body: form, header: header})
		if b.is(w, 201, ""); w.Header().Get("Idempotency-Status") != "replayed" {
			t.Errorf("%s: got %v", name, w.Header())
		}
	}
}

// R10.
func TestHostile_ARequestWithoutWhatAFingerprintNeedsIsNotRetryable(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	h := b.service(b.guard(), b.charge, Route{Fingerprint: func(*http.Request, []byte) ([]byte, error) { return nil, errors.New("there is no amount") }})
	w := b.send(h, sent{key: "k"})
	b.is(w, 400, codeRequestUnread)
	if problemOf(t, w)["retryable"] != false || problemOf(t, w)["detail"] != "there is no amount" {
		t.Errorf("got %s", w.Body)
	}
	b.kept(0, 0, 0)
}

// R14.
func TestHostile_APrincipalThatIsNoTextIsNobody(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	for _, account := range []string{"a\xff", "a\x00", string(make([]byte, 513))} {
		b.is(b.send(h, sent{key: "k", header: http.Header{"Account": {account}}}), 401, codePrincipalUnknown)
	}
	b.kept(0, 0, 0)
}

// R45.
func TestHostile_AClientWhoseWaitIsOverLearnsThatItsRequestRuns(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	handler, entered, letGo := b.slow()
	defer letGo()
	g := b.guard()
	first := make(chan int, 1)
	h := b.service(g, handler, Route{Operation: "charge", Wait: 10_000_000_000})
	go func() { first <- b.send(h, sent{key: "k"}).Code }()
	<-entered
	for try := 1; ; try++ {
		w := b.send(h, sent{key: "k", header: http.Header{"X-Request-Timeout": {"1"}}})
		if w.Code == 503 && try < 10 { // Its time was over while the database was asked.
			continue
		}
		b.is(w, 409, codeInProgress)
		break
	}
	letGo()
	if code := <-first; code != 201 {
		t.Errorf("the first got %d", code)
	}
}
