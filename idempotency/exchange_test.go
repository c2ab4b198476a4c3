package idempotency

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// TestExchange_TheExampleExchangeIsWhatIsReallyAnswered holds the exchange in docs/guides/idempotent-requests.md to a real one.
// R49.
func TestExchange_TheExampleExchangeIsWhatIsReallyAnswered(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	g := b.guard()
	mux := http.NewServeMux()
	mux.Handle("POST /refunds", g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/refunds/rf_123")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":"rf_123","charge_id":"ch_9ab","amount":1000}`))
	})))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	var exchange strings.Builder
	for _, body := range []string{`{"charge_id":"ch_9ab","amount":1000}`, `{"amount":1000.0, "charge_id":"ch_9ab"}`, `{"charge_id":"ch_9ab","amount":2000}`} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/refunds", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Account", "a")
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "refund:ch_9ab:1000:6f6c")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		answer, err := httputil.DumpResponse(res, true)
		if err != nil {
			t.Fatal(err)
		}
		text := regexp.MustCompile(`(?m)^Date: .*\n`).ReplaceAllString(strings.ReplaceAll(string(answer), "\r\n", "\n"), "")
		exchange.WriteString("POST /refunds HTTP/1.1\nContent-Type: application/json\nIdempotency-Key: refund:ch_9ab:1000:6f6c\n\n" + body + "\n\n" + text + "\n\n")
	}
	want := "```http\n" + strings.TrimSpace(exchange.String()) + "\n```"
	doc, err := os.ReadFile("../docs/guides/idempotent-requests.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), want) {
		t.Errorf("docs/guides/idempotent-requests.md should show:\n%s", want)
	}
}
