package webhook

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

// Whoever finds the address of an endpoint could otherwise fill the disk with log.
func TestRefusals_ManyRefusedRequestsAreOneLineACauseAMinute(t *testing.T) {
	t.Parallel()
	var log logtest.Log
	synctest.Test(t, func(t *testing.T) {
		observed := 0
		c := Config{Logger: slog.New(slog.NewJSONHandler(&log, nil)), MaxBody: 1 << 20, NowFunc: time.Now, Observer: Observer{OnRefused: func(Refused) { observed++ }}}
		v, err := GitHub("CANARY-secret-of-the-account")
		if err != nil {
			t.Fatal(err)
		}
		r := &receiver{source: "github", v: v, c: c}
		send := func(method string, n int) {
			for range n {
				req := httptest.NewRequest(method, "/hooks", strings.NewReader(`{"CANARY":1}`))
				req.Header.Set("X-Hub-Signature-256", "sha256="+strings.Repeat("ab", 32))
				w := httptest.NewRecorder()
				r.ServeHTTP(w, req)
				if w.Code < 400 {
					t.Fatalf("answered %d", w.Code)
				}
			}
		}
		send(http.MethodPost, 500)
		send(http.MethodGet, 2)
		time.Sleep(30 * time.Second)
		send(http.MethodPost, 500)
		time.Sleep(31 * time.Second)
		send(http.MethodPost, 10)
		if observed != 1012 {
			t.Errorf("the observer heard of %d, want all 1012", observed)
		}
	})
	type line struct {
		Msg, Reason string
		Suppressed  int
	}
	lines := logtest.Lines[line](t, log.String())
	want := []line{{"webhook refused", string(ReasonMismatch), 0}, {"webhook refused", "method", 0}, {"webhook refused", string(ReasonMismatch), 999}}
	if len(lines) != len(want) {
		t.Fatalf("%d lines: %s", len(lines), log.String())
	}
	for i := range want {
		if lines[i] != want[i] {
			t.Errorf("line %d is %+v, want %+v", i, lines[i], want[i])
		}
	}
	if strings.Contains(log.String(), "CANARY") {
		t.Errorf("the log says %s", log.String())
	}
}
