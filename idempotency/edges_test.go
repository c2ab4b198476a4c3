package idempotency

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// R16.
func TestEdges_AMethodInAnotherCaseIsGuardedToo(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	for _, method := range []string{"post", "Post", "patch"} {
		b.is(b.send(h, sent{method: method}), 400, codeKeyMissing)
		b.is(b.send(h, sent{method: method, key: "k-" + method}), 201, "")
		b.is(b.send(h, sent{method: method, key: "k-" + method}), 201, "")
	}
	b.kept(3, 3, 3)
}

// R29.
func TestEdges_ALimitInFrontIsReportedAsWhatItIs(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 100)
		h.ServeHTTP(w, r)
	})
	w := b.send(outer, sent{key: "k", body: strings.Repeat("x", 101)})
	b.is(w, 413, codeRequestTooLarge)
	if detail := problemOf(t, w)["detail"]; detail != "Its body must have at most 100 bytes." {
		t.Errorf("got %q", detail)
	}
}

// A middleware that unpacks bodies takes the header away and leaves the length of what was packed.
// R7.
func TestEdges_ADocumentThatWasUnpackedInFrontIsCompared(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	unpack := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		r.Body = z
		r.Header.Del("Content-Encoding")
		h.ServeHTTP(w, r)
	})
	for _, c := range []struct {
		body string
		want int
	}{{`{"amount": 10}`, 201}, {`{"amount":10}`, 201}, {`{"amount": 11}`, 409}} {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := io.WriteString(z, c.body); err != nil || z.Close() != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", &packed)
		r.Header = http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}, "Account": {"a"}, "Idempotency-Key": {"k"}}
		if w := b.through(unpack, r); w.Code != c.want {
			t.Errorf("%s of %d bytes, packed %d: got %d %s", c.body, len(c.body), r.ContentLength, w.Code, w.Body)
		}
	}
	b.kept(1, 1, 1)
}

func TestEdges_TheRestOfADocumentIsNoDocument(t *testing.T) {
	t.Parallel()
	for _, whole := range []string{`{"a": {"b": [1, 2, {}]}, "c": "{}"}`, `[[1], [], [{}]]`, ` [{"a": "[]"}]`} {
		if !wholeJSON([]byte(whole)) {
			t.Errorf("%s is a document", whole)
		}
		for i := range whole {
			if rest := whole[i+1:]; wholeJSON([]byte(rest)) && strings.TrimSpace(whole) != strings.TrimSpace(rest) {
				t.Errorf("%q of %q is taken for a document", rest, whole)
			}
		}
	}
	for _, other := range []string{"12", `"a"`, "true", "null", "", " ", "{} {}"} {
		if wholeJSON([]byte(other)) {
			t.Errorf("%q is taken for a document", other)
		}
	}
}

func TestEdges_PathsThatNobodyServesAreNoRoutes(t *testing.T) {
	b := setup(t)
	g := b.guard(func(c *Config) { c.OperationFunc = func(*http.Request) string { return "" } })
	h := g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/charges" {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	for _, path := range []string{"/wp-login.php", "/.env", "/charges", "/etc/passwd"} {
		b.send(h, sent{key: "k", path: path})
	}
	if got := g.Routes()[0].Operations; !slices.Equal(got, []string{"POST /charges"}) {
		t.Errorf("got %q", got)
	}
	text, err := json.Marshal(RouteInfo{Operations: []string{"refund"}, Methods: []string{"POST"}, Required: true, Scope: ScopeGlobal, TTL: 24 * time.Hour, Lease: time.Minute})
	if want := `{"operations":["refund"],"methods":["POST"],"required":true,"scope":"global","ttl":"24h0m0s","lease":"1m0s"}`; err != nil || string(text) != want {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestEdges_TheErrorCodeIsTheSameInHeaderBodyAndLog(t *testing.T) {
	b := setup(t)
	var log bytes.Buffer
	h := b.service(b.guard(func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}), b.charge)
	w := b.send(h, sent{})
	const want = "VALIDATION.idempotency.key_missing"
	if header, body := w.Header().Get("Error-Code"), problemOf(t, w)["error_code"]; header != want || body != want || !strings.Contains(log.String(), " error_code="+want+" ") && !strings.Contains(log.String(), " error_code="+want+"\n") {
		t.Errorf("header %q, body %q, log %s", header, body, &log)
	}
}
