package idempotency

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
)

// Paths of which something in front has taken a part away.

// R14.
func TestMount_TwoMountsOfOneGuardAreTwoOperations(t *testing.T) {
	for name, o := range map[string]Route{"named by patterns": {}, "named by the route": {Operation: "create"}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			guarded := b.guard().Route(o)(http.HandlerFunc(b.charge))
			mux := http.NewServeMux()
			for _, prefix := range []string{"/payments", "/refunds"} {
				inner := http.NewServeMux()
				inner.Handle("POST /{$}", guarded)
				inner.Handle("POST /{id}/lines", guarded)
				mux.Handle(prefix+"/", http.StripPrefix(prefix, inner))
			}
			mux.Handle("POST /v1/charges", http.StripPrefix("/v1", guarded)) // here the pattern has all of it
			first := b.send(mux, sent{key: "k", path: "/payments/"})
			b.is(first, 201, "")
			b.same(first, b.send(mux, sent{key: "k", path: "/payments/"}))
			if o.Operation != "" {
				b.is(b.send(mux, sent{key: "k", path: "/refunds/"}), 409, codePayloadMismatch)
				return
			}
			for _, path := range []string{"/refunds/", "/payments/7/lines", "/v1/charges"} {
				w := b.send(mux, sent{key: "k", path: path})
				if b.is(w, 201, ""); w.Header().Get(headerStatus) != "stored" {
					t.Errorf("%s got the answer of another operation: %v", path, w.Header())
				}
				b.same(w, b.send(mux, sent{key: "k", path: path}))
			}
			b.is(b.send(mux, sent{key: "k", path: "/payments/8/lines"}), 409, codePayloadMismatch)
			want := []string{"POST /payments/{$}", "POST /refunds/{$}", "POST /payments/{id}/lines", "POST /v1/charges"}
			if got := b.operations(); !slices.Equal(got, want) {
				t.Errorf("got operations %q, want %q", got, want)
			}
			b.kept(4, 4, 4)
		})
	}
}

// R14.
func TestMount_WhatWasTakenOffAPathIsFoundInTheRequestsTarget(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ target, strip, want string }{
		"nothing":                    {"/charges", "", ""},
		"a prefix":                   {"/payments/charges", "/payments", "/payments"},
		"before a slash":             {"/payments/", "/payments", "/payments"},
		"all of it":                  {"/payments", "/payments", "/payments"},
		"its slash too":              {"/payments/charges", "/payments/", "/payments/"},
		"twice the same":             {"/a/a", "/a", "/a"},
		"with a query":               {"/payments/charges?at=/charges", "/payments", "/payments"},
		"of a whole address":         {"http://shop.example/payments/charges?x=1", "/payments", "/payments"},
		"nothing of a whole address": {"http://shop.example/charges", "", ""},
		"with two slashes":           {"//payments/charges", "//payments", "//payments"},
		"before what is escaped":     {"/payments/a%2Fb", "/payments", "/payments"},
		"that is escaped":            {"/pay%20ments/a", "/pay ments", "/pay%20ments"},
		"of what is never as it is":  {"/payments/a\"b", "/payments", "/payments"},
	} {
		var got string
		h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = takenOff(r) })
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.RequestURI = c.target
		var err error
		if r.URL, err = r.URL.Parse(c.target); err != nil {
			t.Fatal(err)
		}
		if c.target[:2] == "//" { // as a server reads it
			r.URL.Host, r.URL.Path = "", c.target
		}
		http.StripPrefix(c.strip, h).ServeHTTP(w, r)
		if got != c.want || w.Code != 200 {
			t.Errorf("%s: got %q, %d, want %q", name, got, w.Code, c.want)
		}
	}
	for name, c := range map[string]struct{ target, path string }{
		"made by hand":             {"", "/charges"},
		"about the server itself":  {"*", "*"},
		"rewritten":                {"/old", "/new"},
		"rewritten to a longer":    {"/charges", "/v1/charges"},
		"of a target that is none": {"%zz/charges", "/charges"},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.RequestURI, r.URL.Path = c.target, c.path
		if got := takenOff(r); got != "" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// R14.
func TestMount_PatternsBelowAMountHaveItsPrefix(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pattern, prefix, path, want string }{
		{"POST /{$}", "/payments", "/payments/", "POST /payments/{$}"},
		{"/{id}", "/payments", "/payments/7", "/payments/{id}"},
		{"POST shop.example/{id}", "/payments", "/payments/7", "POST shop.example/payments/{id}"},
		{"POST /v1/charges", "/v1", "/v1/charges", "POST /v1/charges"}, // the router stands before what took the prefix off
		{"POST /{version}/charges", "/v1", "/v1/charges", "POST /{version}/charges"},
		{"POST /v1/charges", "/v1", "/v1/v1/charges", "POST /v1/v1/charges"},
		{"POST /charges", "", "/charges", "POST /charges"},
		{"", "/v1", "/v1/charges", ""},
	} {
		if got := below(c.prefix, c.pattern, c.path); got != c.want {
			t.Errorf("%q below %q: got %q, want %q", c.pattern, c.prefix, got, c.want)
		}
	}
}
