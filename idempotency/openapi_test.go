package idempotency

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// problems are all that problem.go has; a test counts them there.
var problems = []problem{keyMissing, keyInvalid, principalUnknown, requestTooLarge, requestUnread, requestUnfit, payloadMismatch, inProgress, accepted,
	storeUnavailable, outcomeUnknown, answerUnusable, handlerFault}

// description is docs/openapi/idempotency.yaml, which is valid.
func description(t *testing.T) (*openapi3.T, routers.Router) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../docs/openapi/idempotency.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !doc.IsOpenAPI31OrLater() {
		t.Fatal("it is not of OpenAPI 3.1")
	}
	if err := doc.Validate(t.Context(), openapi3.IsOpenAPI31OrLater()); err != nil {
		t.Fatal(err)
	}
	doc.Servers = nil // tests have another
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return doc, router
}

// R35.
func TestTheDescriptionHasExactlyTheProblemsThatAreAnswered(t *testing.T) {
	doc, _ := description(t)
	described := map[string]bool{}
	for name, response := range doc.Components.Responses {
		for media, content := range response.Value.Content {
			if media != "application/problem+json" {
				t.Errorf("%s answers %s", name, media)
			}
			own := content.Schema.Value.AllOf
			properties := own[len(own)-1].Value.Properties
			for _, code := range properties["code"].Value.Enum {
				described[fmt.Sprint(properties["status"].Value.Const, " ", code)] = true
			}
		}
	}
	answered := map[string]bool{}
	codes := map[string]bool{}
	for _, p := range problems {
		codes[p.code] = true
		if p.code == CodePayloadMismatch { // by configuration
			answered["409 "+p.code], answered["422 "+p.code] = true, true
			continue
		}
		answered[fmt.Sprint(p.status, " ", p.code)] = true
	}
	if !maps.Equal(described, answered) {
		t.Errorf("described are %v, answered %v", slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(answered)))
	}
	listed := map[string]bool{}
	for _, code := range doc.Components.Schemas["Problem"].Value.Properties["code"].Value.Enum {
		listed[code.(string)] = true
	}
	if !maps.Equal(listed, codes) {
		t.Errorf("listed are %v, known %v", slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(codes)))
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), "problem.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(parsed, func(n ast.Node) bool {
		if literal, ok := n.(*ast.CompositeLit); ok {
			if name, ok := literal.Type.(*ast.Ident); ok && name.Name == "problem" {
				found++
			}
		}
		return true
	})
	if found != len(problems) {
		t.Errorf("problem.go has %d problems, this test %d", found, len(problems))
	}
}

// R35.
func TestEveryHeaderOfOursIsDescribedAndExposedToBrowsers(t *testing.T) {
	doc, _ := description(t)
	post := doc.Paths.Find("/refunds").Post
	key := post.Parameters.GetByInAndName("header", "Idempotency-Key")
	if key == nil || !key.Required || slices.Index(defaultHeaders, key.Name) != 0 {
		t.Errorf("the key is described as %+v", key)
	}
	exposed := strings.Split(doc.Components.Headers["Access-Control-Expose-Headers"].Value.Schema.Value.Const.(string), ", ")
	for _, name := range []string{"Idempotency-Key", headerStatus, headerReplayed, headerBody, headerExpires} {
		if post.Responses.Status(http.StatusCreated).Value.Headers[name] == nil || !slices.Contains(exposed, name) {
			t.Errorf("%s is not described, or not exposed", name)
		}
	}
}

// R35.
func TestWhatIsReallyAnsweredIsAsItIsDescribed(t *testing.T) {
	b := setup(t)
	_, router := description(t)
	in, out := make(chan struct{}), make(chan struct{})
	refund := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte("slow")) {
			in <- struct{}{}
			<-out
		}
		if bytes.Contains(body, []byte("broken")) {
			_, _ = Tx(r.Context()).Exec(r.Context(), "select 1/0")
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/refunds/rf_123")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id": "rf_123"}`)
	}
	g := b.guard(func(c *Config) { c.ShowExpiry = true })
	serve := func(o Route) http.Handler {
		o.Operation = "POST /refunds"
		mux := http.NewServeMux()
		mux.Handle("POST /refunds", g.Route(o)(http.HandlerFunc(refund)))
		return mux
	}
	h := serve(Route{})
	met := map[string]bool{}
	ask := func(h http.Handler, status int, s sent) *httptest.ResponseRecorder {
		t.Helper()
		s.path, s.body = "/refunds", or(s.body, `{"charge_id": "ch_9ab", "amount": 1000}`)
		w := b.send(h, s)
		b.is(w, status, "")
		r := httptest.NewRequest(http.MethodPost, "/refunds", strings.NewReader(s.body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", s.key)
		route, parameters, err := router.FindRoute(r)
		if err != nil {
			t.Fatal(err)
		}
		input := &openapi3filter.RequestValidationInput{Request: r, PathParams: parameters, Route: route}
		if err := openapi3filter.ValidateRequest(t.Context(), input); (err == nil) != (status != http.StatusBadRequest && status != http.StatusRequestEntityTooLarge) {
			t.Errorf("a request that is answered %d: %v", status, err)
		}
		response := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: w.Code, Header: w.Header(), Options: &openapi3filter.Options{IncludeResponseStatus: true}}
		if err := openapi3filter.ValidateResponse(t.Context(), response.SetBodyBytes(w.Body.Bytes())); err != nil {
			t.Errorf("%d %s: %v", w.Code, w.Body, err)
		}
		if w.Code != http.StatusCreated {
			met[problemOf(t, w)["code"].(string)] = true
		}
		return w
	}
	first := ask(h, 201, sent{key: "k"})
	second := ask(h, 201, sent{key: "k"})
	if first.Header().Get(headerStatus) != "stored" || second.Header().Get(headerStatus) != "replayed" {
		t.Errorf("got %v and %v", first.Header(), second.Header())
	}
	ask(h, 409, sent{key: "k", body: `{"charge_id": "ch_9ab", "amount": 2000}`})
	ask(h, 400, sent{})
	ask(h, 400, sent{key: "a,b"})
	ask(h, 401, sent{key: "k", header: http.Header{"Account": {""}}})
	ask(serve(Route{MaxRequest: 10}), 413, sent{key: "k", body: `{"charge_id": 7, "amount": 1000}`})
	ask(h, 500, sent{key: "broken", body: `{"charge_id": "broken", "amount": 1}`})
	slow := sent{key: "slow", body: `{"charge_id": "slow", "amount": 1}`}
	ended := make(chan struct{})
	go func() { defer close(ended); b.send(h, sent{key: slow.key, body: slow.body, path: "/refunds"}) }()
	<-in
	ask(h, 409, slow)
	ask(serve(Route{StatusURL: func(*http.Request, string) string { return "/refunds/by-key/slow" }}), 202, slow)
	close(out)
	<-ended
	if _, err := b.db.Exec(t.Context(), "update holdfast.idempotency set body_hash = ''"); err != nil {
		t.Fatal(err)
	}
	ask(h, 503, sent{key: "k"})
	if _, err := b.db.Exec(t.Context(), "drop table holdfast.idempotency cascade"); err != nil {
		t.Fatal(err)
	}
	ask(h, 503, sent{key: "k"})
	for _, p := range problems {
		if !met[p.code] && p.code != CodeRequestUnread && p.code != CodeOutcomeUnknown { // those take a broken connection: see rows_test.go and table_test.go
			t.Errorf("%s was not answered", p.code)
		}
	}
	for _, p := range []problem{requestUnread, outcomeUnknown} {
		w := httptest.NewRecorder()
		p.write(w, "")
		route, _, err := router.FindRoute(httptest.NewRequest(http.MethodPost, "/refunds", nil))
		if err != nil {
			t.Fatal(err)
		}
		response := &openapi3filter.ResponseValidationInput{RequestValidationInput: &openapi3filter.RequestValidationInput{Request: httptest.NewRequest(http.MethodPost, "/refunds", nil), Route: route}, Status: w.Code, Header: w.Header()}
		if err := openapi3filter.ValidateResponse(t.Context(), response.SetBodyBytes(w.Body.Bytes())); err != nil {
			t.Errorf("%s: %v", strconv.Quote(p.code), err)
		}
	}
}
