package main

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// described passes requests on to the service, and holds each answer to docs/openapi/refunds.yaml: status, headers and body.
// All tests of the example go through it.
type described struct {
	report  func(format string, args ...any)
	router  routers.Router
	service http.Handler
}

func description(t *testing.T) *openapi3.T {
	t.Helper()
	loader := openapi3.NewLoader()
	loader.IsExternalRefsAllowed = true
	doc, err := loader.LoadFromFile("../../docs/openapi/refunds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context(), openapi3.IsOpenAPI31OrLater()); err != nil {
		t.Fatal(err)
	}
	doc.Servers = nil // tests have another
	return doc
}

func describe(t *testing.T, service http.Handler) http.Handler {
	t.Helper()
	router, err := legacy.NewRouter(description(t))
	if err != nil {
		t.Fatal(err)
	}
	return described{t.Errorf, router, service}
}

func (d described) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got := httptest.NewRecorder()
	d.service.ServeHTTP(got, r)
	d.hold(r, got)
	maps.Copy(w.Header(), got.Header())
	w.WriteHeader(got.Code)
	_, _ = w.Write(got.Body.Bytes())
}

func (d described) hold(r *http.Request, got *httptest.ResponseRecorder) {
	asked := r.Clone(r.Context())
	asked.Body = io.NopCloser(strings.NewReader(""))
	route, parameters, err := d.router.FindRoute(asked)
	if err != nil {
		d.report("%s %s is not described: %v", r.Method, r.URL.Path, err)
		return
	}
	answer := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: asked, PathParams: parameters, Route: route},
		Status:                 got.Code, Header: got.Header(), Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	if err := openapi3filter.ValidateResponse(r.Context(), answer.SetBodyBytes(bytes.Clone(got.Body.Bytes()))); err != nil {
		d.report("%s %s is answered %d %v %s: %v", r.Method, r.URL.Path, got.Code, got.Header(), got.Body, err)
	}
}

// R35.
func TestOpenAPI_EveryRouteOfTheServiceIsDescribed(t *testing.T) {
	b := setup(t)
	want := []string{"POST /hooks/gateway"}
	for _, route := range b.service.guard.Routes() {
		want = append(want, route.Operations...)
	}
	var got []string
	for path, item := range description(t).Paths.Map() {
		for method, operation := range item.Operations() {
			got = append(got, method+" "+path)
			if key := operation.Parameters.GetByInAndName("header", "Idempotency-Key"); path != "/hooks/gateway" && (key == nil || !key.Required) {
				t.Errorf("%s %s does not require a key", method, path)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("described are %v, served %v", got, want)
	}
}

// An answer that differs from the description in a header, the body or the status is found.
func TestOpenAPI_AnAnswerOtherThanDescribedIsFound(t *testing.T) {
	t.Parallel()
	good := http.Header{"Content-Type": {"application/problem+json"}, "Error-Code": {"CONFLICT.payment_state"}}
	const body = `{"title":"Conflict","status":409,"code":"CONFLICT.payment_state","error_code":"CONFLICT.payment_state","detail":"the payment is voided"}`
	for name, c := range map[string]struct {
		status int
		header http.Header
		body   string
		wrong  bool
	}{
		"as described":      {409, good, body, false},
		"another status":    {418, good, body, true},
		"no Error-Code":     {409, http.Header{"Content-Type": good["Content-Type"]}, body, true},
		"no error_code":     {409, good, strings.Replace(body, "error_code", "err", 1), true},
		"another media":     {409, http.Header{"Content-Type": {"text/plain"}, "Error-Code": good["Error-Code"]}, body, true},
		"without a problem": {409, good, "{}", true},
	} {
		found := false
		router, err := legacy.NewRouter(description(t))
		if err != nil {
			t.Fatal(err)
		}
		got := httptest.NewRecorder()
		maps.Copy(got.Header(), c.header)
		got.WriteHeader(c.status)
		_, _ = got.WriteString(c.body)
		described{func(string, ...any) { found = true }, router, nil}.hold(httptest.NewRequest(http.MethodPost, "/refunds", nil), got)
		if found != c.wrong {
			t.Errorf("%s: found: %v", name, found)
		}
	}
}
