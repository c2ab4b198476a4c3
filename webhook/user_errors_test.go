package webhook

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/badly"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

func TestUserErrors_AVerifierWhoseErrorMayPanicRefuses(t *testing.T) {
	b := setup(t)
	for _, bad := range append(badly.Errors(), badly.Behaved{Name: "a nil pointer of this package", Err: (*RefusedError)(nil), Says: "the Error method of a nil *webhook.RefusedError panicked"}) {
		var log logtest.Log
		v := VerifierFunc(func(http.Header, []byte, time.Time) (Delivery, error) { return Delivery{}, bad.Err })
		for name, v := range map[string]Verifier{"alone": v, "one of several": AnyOf(v, v), "until": Until(time.Now().Add(time.Hour), v)} {
			source := strings.NewReplacer(" ", "-", ",", "").Replace(bad.Name + " " + name)
			h, err := New(b.in, source, v, Config{Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Observer: Observer{OnRefused: func(r Refused) {
					if text := r.Err.Error(); !strings.Contains(text, bad.Says) {
						t.Errorf("%s: an observer was told %q, want %q", bad.Name, text, bad.Says)
					}
				}}})
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("{}")))
			if said := log.Take(); w.Code != http.StatusUnauthorized || !strings.Contains(said, bad.Says) {
				t.Errorf("%s, %s: got %d and the log %q; want 401 and %q", bad.Name, name, w.Code, said, bad.Says)
			}
		}
	}
}
