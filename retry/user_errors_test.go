package retry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/badly"
	"github.com/holdfast-go/holdfast/retry"
)

func TestUserErrors_AnErrorThatMayPanicHasAClassAndIsRetried(t *testing.T) {
	for _, bad := range badly.Errors() {
		t.Run(bad.Name, func(t *testing.T) {
			permanent := retry.IsPermanent(bad.Err)
			if class := retry.Classify(bad.Err); !permanent && class != retry.Transient || permanent && class != retry.Validation {
				t.Errorf("its class is %s", class)
			}
			if retry.Retryable(bad.Err) == permanent {
				t.Errorf("permanent: %v, and retryable as well", permanent)
			}
			if d, ok := retry.AfterOf(retry.After(bad.Err, time.Second)); !ok || d != time.Second {
				t.Errorf("marked with a second, it says %s, %v", d, ok)
			}
			calls, want := 0, 2
			if permanent {
				want = 1
			}
			err := retry.Do(t.Context(), retry.Policy{Attempts: 2, Base: time.Microsecond}, func(context.Context) error { calls++; return bad.Err })
			var gaveUp *retry.GaveUpError
			if !errors.As(err, &gaveUp) || calls != want || !strings.Contains(fmt.Sprint(err), bad.Says) {
				t.Errorf("after %d calls: %v; want %d and %q", calls, err, want, bad.Says)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

func TestUserErrors_AnErrorThatMayPanicIsAFailedRequest(t *testing.T) {
	for _, bad := range badly.Errors() {
		t.Run(bad.Name, func(t *testing.T) {
			var said []string
			client := retry.Client(retry.Transport{Base: failing{bad.Err}, Policy: retry.Policy{Attempts: 2, Base: time.Microsecond},
				Observer: retry.Observer{OnAttempt: func(a retry.Attempt) { said = append(said, a.Err.Error()) }}})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err == nil {
				resp.Body.Close()
			}
			if err == nil || !strings.Contains(err.Error(), bad.Says) || len(said) == 0 || !strings.Contains(said[0], bad.Says) {
				t.Errorf("got %v, attempts %q; want %q", err, said, bad.Says)
			}
		})
	}
}
