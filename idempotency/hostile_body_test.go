package idempotency

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Bodies that were read before the middleware, and bodies made to cost more than they look.

// formOf is a handler that charges what the form says, as handlers of forms do: they do not look at the body.
func (b *bundle) chargeForm(w http.ResponseWriter, r *http.Request) {
	b.runs.Add(1)
	if _, err := insertCharge(r.Context(), r.FormValue("amount")); err != nil {
		http.Error(w, err.Error(), 500)
		return
	}
	w.WriteHeader(201)
	_, _ = io.WriteString(w, r.FormValue("amount"))
}

// overTheWire sends a request to a real server, and returns status and body.
func (b *bundle) overTheWire(h http.Handler, key, contentType string, body io.Reader) (int, string) {
	b.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.URL+"/charges", body)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Account", "a")
	r.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode, readAll(b.T, res)
}

// R7.
func TestHostileBody_AFormThatWasParsedInFrontIsPartOfTheFingerprint(t *testing.T) {
	b := setup(t)
	const form = "application/x-www-form-urlencoded"
	for name, parse := range map[string]func(h http.Handler) http.Handler{
		"by a middleware": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_ = r.FormValue("csrf_token")
				h.ServeHTTP(w, r)
			})
		},
		"by the principal": nil,
	} {
		g := b.guard(func(c *Config) {
			if parse == nil {
				c.Principal = func(r *http.Request) (string, error) { return r.PostFormValue("account"), nil }
			}
		})
		h := b.service(g, b.chargeForm, Route{Operation: name})
		if parse != nil {
			h = parse(h)
		}
		for how, body := range map[string]func(amount string) io.Reader{
			"with its length": func(amount string) io.Reader {
				return strings.NewReader(url.Values{"account": {"a"}, "amount": {amount}}.Encode())
			},
			"in chunks": func(amount string) io.Reader {
				return io.MultiReader(strings.NewReader(url.Values{"account": {"a"}, "amount": {amount}}.Encode()))
			},
		} {
			key := strings.ReplaceAll(name+how, " ", "-")
			if code, text := b.overTheWire(h, key, form, body("10")); code != 201 || text != "10" {
				t.Errorf("%s, %s: got %d %s", name, how, code, text)
			}
			if code, text := b.overTheWire(h, key, form, body("10")); code != 201 || text != "10" {
				t.Errorf("%s, %s: a repeat got %d %s", name, how, code, text)
			}
			if code, text := b.overTheWire(h, key, form, body("9999")); code != 409 || !strings.Contains(text, codePayloadMismatch) {
				t.Errorf("%s, %s: another amount under the same key got %d %s", name, how, code, text)
			}
		}
	}
	b.kept(4, 4, 4)
}

// R7.
func TestHostileBody_ABodyThatSomebodyReadInFrontIsRefusedAndNotTakenForEmpty(t *testing.T) {
	b := setup(t)
	multi := func(amount string) (string, []byte) {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		_ = w.WriteField("amount", amount)
		_ = w.Close()
		return w.FormDataContentType(), body.Bytes()
	}
	for name, read := range map[string]func(r *http.Request){
		"read to its end": func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"parsed in parts": func(r *http.Request) { _ = r.ParseMultipartForm(1 << 20) },
	} {
		inner := b.service(b.guard(), b.chargeForm, Route{Operation: name})
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			read(r)
			inner.ServeHTTP(w, r)
		})
		contentType, body := multi("10")
		if code, text := b.overTheWire(h, "k", contentType, bytes.NewReader(body)); code != 500 || !strings.Contains(text, codeHandlerFault) {
			t.Errorf("%s: got %d %s", name, code, text)
		}
		if name == "parsed in parts" {
			if code, text := b.overTheWire(h, "k", contentType, io.MultiReader(bytes.NewReader(body))); code != 500 || !strings.Contains(text, codeHandlerFault) {
				t.Errorf("%s, in chunks: got %d %s", name, code, text)
			}
		}
		// A route that says itself what counts may do that.
		own := b.service(b.guard(), b.chargeForm, Route{Operation: "own " + name, Fingerprint: func(r *http.Request, _ []byte) ([]byte, error) { return []byte("own"), nil }})
		h = func(w http.ResponseWriter, r *http.Request) {
			read(r)
			own.ServeHTTP(w, r)
		}
		if code, text := b.overTheWire(h, "k", contentType, bytes.NewReader(body)); code != 201 {
			t.Errorf("%s, with a fingerprint of its own: got %d %s", name, code, text)
		}
	}
	if n := b.runs.Load(); n != 2 {
		t.Errorf("%d ran", n)
	}
}

func TestHostileBody_ARequestWithoutABodyIsOneWithAnEmptyBody(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	for range 2 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", nil) // its Body is nil
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Account", "a")
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		b.is(w, 201, "")
	}
	b.kept(1, 1, 1)
}

// R20.
func TestHostileBody_ARequestGuardedTwiceWithOneKeyIsAFaultAndKeepsNothing(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			g := b.guard()
			o.Operation = "charge"
			h := g.Route(o)(b.service(g, b.charge, o))
			for range 2 {
				w := b.send(h, sent{key: "k"})
				b.is(w, 500, codeHandlerFault)
			}
			b.kept(0, 0, map[bool]int64{true: 1}[o.Lease > 0]) // under a lease its row stays, without an answer
			// A handler that passes work on under keys of its own is not guarded twice.
			inner := b.service(g, b.charge)
			outer := g.Route(Route{Lease: o.Lease, Operation: "batch"})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(b.send(inner, sent{key: "k2", ctx: r.Context()}).Code)
			}))
			b.is(b.send(outer, sent{key: "k2"}), 201, "")
		})
	}
}
