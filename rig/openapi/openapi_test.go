// Package openapi holds docs/openapi to what is answered. It has no code but tests.
package openapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/jackc/pgx/v5/pgxpool"
)

const repository = "../.."

// problems are those of problem.go: their statuses and codes, "400 idempotency.key_missing". A status that is decided by
// configuration is 0.
func problems(t *testing.T) (all []string, codes map[string]bool) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), repository+"/idempotency/problem.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]string{}
	statuses := map[string]int{"StatusBadRequest": 400, "StatusUnauthorized": 401, "StatusRequestEntityTooLarge": 413, "StatusConflict": 409,
		"StatusAccepted": 202, "StatusTooManyRequests": 429, "StatusServiceUnavailable": 503, "StatusInternalServerError": 500}
	codes = map[string]bool{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
			if text, ok := spec.Values[0].(*ast.BasicLit); ok {
				constants[spec.Names[0].Name], _ = strconv.Unquote(text.Value)
			}
		}
		literal, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if name, ok := literal.Type.(*ast.Ident); !ok || name.Name != "problem" {
			return true
		}
		status, code := 0, ""
		for _, field := range literal.Elts {
			pair := field.(*ast.KeyValueExpr)
			switch pair.Key.(*ast.Ident).Name {
			case "status":
				name := pair.Value.(*ast.SelectorExpr).Sel.Name
				if status = statuses[name]; status == 0 {
					t.Errorf("this test does not know http.%s", name)
				}
			case "code":
				code = constants[pair.Value.(*ast.Ident).Name]
			}
		}
		codes[code] = true
		all = append(all, fmt.Sprint(status, " ", code))
		return true
	})
	if len(all) < 13 {
		t.Fatalf("problem.go has only %v: the search has gone blind", all)
	}
	return all, codes
}

// description is docs/openapi/idempotency.yaml, which is valid.
func description(t *testing.T) (*openapi3.T, routers.Router) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile(repository + "/docs/openapi/idempotency.yaml")
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
func TestOpenAPI_TheDescriptionHasExactlyTheProblemsThatAreAnswered(t *testing.T) {
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
	all, codes := problems(t)
	answered := map[string]bool{}
	for _, p := range all {
		if p == "0 idempotency.payload_mismatch" { // by configuration
			answered["409 idempotency.payload_mismatch"], answered["422 idempotency.payload_mismatch"] = true, true
			continue
		}
		answered[p] = true
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
}

// R35.
func TestOpenAPI_EveryHeaderOfOursIsDescribedAndExposedToBrowsers(t *testing.T) {
	doc, _ := description(t)
	post := doc.Paths.Find("/refunds").Post
	key := post.Parameters.GetByInAndName("header", "Idempotency-Key")
	if key == nil || !key.Required || key.Name != "Idempotency-Key" {
		t.Errorf("the key is described as %+v", key)
	}
	exposed := strings.Split(doc.Components.Headers["Access-Control-Expose-Headers"].Value.Schema.Value.Const.(string), ", ")
	for _, name := range []string{"Idempotency-Key", "Idempotency-Status", "Idempotent-Replayed", "Idempotency-Body", "Idempotency-Key-Expires"} {
		if post.Responses.Status(http.StatusCreated).Value.Headers[name] == nil || !slices.Contains(exposed, name) {
			t.Errorf("%s is not described, or not exposed", name)
		}
	}
}

// R35.
func TestOpenAPI_WhatIsReallyAnsweredIsAsItIsDescribed(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	_, router := description(t)
	var cut atomic.Bool // the way to the server
	in, out := make(chan struct{}), make(chan struct{})
	refund := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte("slow")) {
			in <- struct{}{}
			<-out
		}
		if bytes.Contains(body, []byte("lost")) {
			cut.Store(true) // The next reply is that to COMMIT.
		}
		if bytes.Contains(body, []byte("broken")) {
			_, _ = idempotency.Tx(r.Context()).Exec(r.Context(), "select 1/0")
		}
		if bytes.Contains(body, []byte("late")) {
			<-r.Context().Done()
			return
		}
		if bytes.Contains(body, []byte("silent")) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/refunds/rf_123")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id": "rf_123"}`)
	}
	pool := db.PoolWith(t, func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if cut.Load() {
				return nil, errCut
			}
			conn, err := dial(ctx, network, address)
			return &cutConn{conn, &cut}, err
		}
	})
	config := idempotency.Config{
		Principal:      func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
		AcquireTimeout: time.Minute, // so that no request is turned away because a machine is busy
		Logger:         slog.New(slog.DiscardHandler),
		ShowExpiry:     true,
		DocsURL:        "https://shop.example/docs/keys",
	}
	g, err := idempotency.New(pool, config)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxKeys = 1
	limited, err := idempotency.New(pool, config)
	if err != nil {
		t.Fatal(err)
	}
	serve := func(o idempotency.Route) http.Handler {
		o.Operation = "POST /refunds"
		mux := http.NewServeMux()
		mux.Handle("POST /refunds", g.Route(o)(http.HandlerFunc(refund)))
		return mux
	}
	h := serve(idempotency.Route{})
	met := map[string]bool{}
	ask := func(h http.Handler, status int, s sent) *httptest.ResponseRecorder {
		t.Helper()
		if s.body == "" {
			s.body = `{"charge_id": "ch_9ab", "amount": 1000}`
		}
		w := s.send(t, h)
		if w.Code != status {
			t.Fatalf("got %d %s, want %d", w.Code, w.Body, status)
		}
		r := httptest.NewRequest(http.MethodPost, "/refunds", strings.NewReader(s.body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", s.key)
		route, parameters, err := router.FindRoute(r)
		if err != nil {
			t.Fatal(err)
		}
		input := &openapi3filter.RequestValidationInput{Request: r, PathParams: parameters, Route: route}
		if err := openapi3filter.ValidateRequest(t.Context(), input); !s.cut && (err == nil) != (status != http.StatusBadRequest && status != http.StatusRequestEntityTooLarge) {
			t.Errorf("a request that is answered %d: %v", status, err)
		}
		response := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: w.Code, Header: w.Header(), Options: &openapi3filter.Options{IncludeResponseStatus: true}}
		if err := openapi3filter.ValidateResponse(t.Context(), response.SetBodyBytes(w.Body.Bytes())); err != nil {
			t.Errorf("%d %s: %v", w.Code, w.Body, err)
		}
		if w.Code != http.StatusCreated {
			var p struct{ Code string }
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
				t.Fatalf("%s: %v", w.Body, err)
			}
			met[p.Code] = true
		}
		if linked := w.Code == http.StatusConflict || w.Code == http.StatusBadRequest && !s.cut; linked != (w.Header().Get("Link") != "") {
			t.Errorf("%d %s: the Link is %q", w.Code, w.Body, w.Header().Get("Link"))
		}
		return w
	}
	first := ask(h, 201, sent{key: "k"})
	second := ask(h, 201, sent{key: "k"})
	if first.Header().Get("Idempotency-Status") != "stored" || second.Header().Get("Idempotency-Status") != "replayed" {
		t.Errorf("got %v and %v", first.Header(), second.Header())
	}
	ask(h, 409, sent{key: "k", body: `{"charge_id": "ch_9ab", "amount": 2000}`})
	full := http.NewServeMux()
	full.Handle("POST /refunds", limited.Route(idempotency.Route{Operation: "POST /refunds"})(http.HandlerFunc(refund)))
	ask(full, 429, sent{key: "one-more"})
	ask(h, 400, sent{})
	ask(h, 400, sent{key: "a,b"})
	ask(h, 401, sent{key: "k", stranger: true})
	ask(serve(idempotency.Route{MaxRequest: 10}), 413, sent{key: "k", body: `{"charge_id": 7, "amount": 1000}`})
	ask(h, 500, sent{key: "broken", body: `{"charge_id": "broken", "amount": 1}`})
	ask(h, 503, sent{key: "silent", body: `{"charge_id": "silent", "amount": 1}`})
	ask(serve(idempotency.Route{Timeout: time.Second}), 503, sent{key: "late", body: `{"charge_id": "late", "amount": 1}`})
	ask(h, 503, sent{key: "lost", body: `{"charge_id": "lost", "amount": 1}`})
	if !met["idempotency.outcome_unknown"] {
		t.Error("a lost COMMIT is answered otherwise")
	}
	cut.Store(false)
	ask(h, 400, sent{key: "cut", body: `{"charge_id": "cut", "amount": 1000}`, cut: true})
	slow := sent{key: "slow", body: `{"charge_id": "slow", "amount": 1}`}
	ended := make(chan struct{})
	go func() { defer close(ended); slow.send(t, h) }()
	<-in
	ask(h, 409, slow)
	ask(serve(idempotency.Route{StatusURL: func(*http.Request, string) string { return "/refunds/by-key/slow" }}), 202, slow)
	close(out)
	<-ended
	if _, err := db.Exec(t.Context(), "update holdfast.idempotency set body_hash = ''"); err != nil {
		t.Fatal(err)
	}
	ask(h, 503, sent{key: "k"})
	if _, err := db.Exec(t.Context(), "drop table holdfast.idempotency cascade"); err != nil {
		t.Fatal(err)
	}
	ask(h, 503, sent{key: "k"})
	_, codes := problems(t)
	for code := range codes {
		if !met[code] {
			t.Errorf("%s was not answered", code)
		}
	}
}

// R36.
func TestOpenAPI_TheListOfIdempotentRoutesIsAsItIsDescribed(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	_, router := description(t)
	g, err := idempotency.New(migrated.New(t).Pool, idempotency.Config{Principal: func(*http.Request) (string, error) { return "a", nil }})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []idempotency.Route{{}, {Operation: "POST /refunds", Lease: time.Minute, Optional: true}} {
		g.Route(o)(http.NotFoundHandler())
	}
	body, err := json.Marshal(g.Routes())
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/idempotent-routes", nil)
	route, parameters, err := router.FindRoute(r)
	if err != nil {
		t.Fatal(err)
	}
	response := &openapi3filter.ResponseValidationInput{RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: parameters, Route: route},
		Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Options: &openapi3filter.Options{IncludeResponseStatus: true}}
	if err := openapi3filter.ValidateResponse(t.Context(), response.SetBodyBytes(body)); err != nil {
		t.Errorf("%s: %v", body, err)
	}
}

// sent is POST /refunds of account a, or of a stranger. The body of one that is cut ends early.
type sent struct {
	key, body     string
	stranger, cut bool
}

func (s sent) send(t *testing.T, h http.Handler) *httptest.ResponseRecorder {
	t.Helper()
	var body io.Reader = strings.NewReader(s.body)
	if s.cut {
		body = iotest.ErrReader(io.ErrUnexpectedEOF)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/refunds", body)
	r.Header.Set("Content-Type", "application/json")
	if !s.stranger {
		r.Header.Set("Account", "a")
	}
	if s.key != "" {
		r.Header.Set("Idempotency-Key", s.key)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// cutConn loses what the server says while the way to it is cut: what was sent is carried out.
type cutConn struct {
	net.Conn
	cut *atomic.Bool
}

var errCut = errors.New("planned: the network is cut")

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.cut.Load() {
		_ = c.Conn.Close()
		return 0, errCut
	}
	return n, err
}
