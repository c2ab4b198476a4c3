package retry

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

// problemAnswer is a 409 of a kind and a body.
func problemAnswer(kind, body string) roundTripFunc {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 409, Header: http.Header{"Content-Type": {kind}, "Retry-After": {"1"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

const (
	problemKind = "application/problem+json"
	runs        = `{"type":"urn:holdfast:idempotency.in_progress","status":409,"code":"idempotency.in_progress","retryable":true}`
)

func TestConflict_OnlyThe409ThatSaysTheOperationRunsIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, kind, body string
		attempts         int
	}{
		{"in progress", problemKind, runs, 5},
		{"in progress, with a charset", problemKind + "; charset=utf-8", runs, 5},
		{"in progress, in capitals", "Application/Problem+JSON", runs, 5},
		{"another payload", problemKind, `{"code":"idempotency.payload_mismatch","retryable":false}`, 1},
		{"a problem of the API's own", problemKind, `{"code":"seat_taken","retryable":true}`, 1},
		{"a problem without a code", problemKind, `{"status":409}`, 1},
		{"a code that is a number", problemKind, `{"code":7}`, 1},
		{"the same words in plain JSON", "application/json", runs, 1},
		{"a kind that cannot be read", ";", runs, 1},
		{"a problem that ends early", problemKind, runs[:40], 1},
		{"a problem without a body", problemKind, "", 1},
		{"a problem that is longer than any", problemKind, strings.Repeat(" ", problemBytes) + runs, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := serve(problemAnswer(row.kind, row.body))
				resp, err := (&Transport{Base: s}).RoundTrip(request(t, http.MethodGet, nil))
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				if string(body) != row.body || err != nil {
					t.Errorf("the answer has %d bytes, %v, want its %d", len(body), err, len(row.body))
				}
				_ = resp.Body.Close()
				if len(s.beganAt) != row.attempts || s.open.Load() != 0 {
					t.Errorf("%d attempts, want %d; %d bodies open", len(s.beganAt), row.attempts, s.open.Load())
				}
			})
		})
	}
}

func TestConflict_NoOther4xxIsTriedAgainWhateverItSays(t *testing.T) {
	t.Parallel()
	for status := 400; status < 500; status++ {
		if got, want := worthRepeating(status, "", ""), status == 429; got != want {
			t.Errorf("%d is worth repeating: %t, want %t", status, got, want)
		}
		if got, want := worthRepeating(status, codeInProgress, ""), status == 429 || status == 409; got != want {
			t.Errorf("%d in progress is worth repeating: %t, want %t", status, got, want)
		}
	}
}

// brokenBody is a body whose connection is lost in the middle.
type brokenBody struct{ io.Reader }

func (b brokenBody) Close() error { return nil }

func TestConflict_A409WhoseConnectionIsLostIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lost := func(*http.Request) (*http.Response, error) {
			body := io.MultiReader(strings.NewReader(runs[:9]), readError{syscall.ECONNRESET})
			return &http.Response{StatusCode: 409, Header: http.Header{"Content-Type": {problemKind}}, Body: brokenBody{body}}, nil
		}
		s := serve(lost, answer(201))
		resp, err := (&Transport{Base: s}).RoundTrip(request(t, http.MethodGet, nil))
		if err != nil || resp.StatusCode != 201 {
			t.Errorf("got %v, %v", resp, err)
		}
		s = serve(lost)
		if _, err = (&Transport{Base: s}).RoundTrip(request(t, http.MethodGet, nil)); !errors.Is(err, syscall.ECONNRESET) || s.open.Load() != 0 {
			t.Errorf("err = %v, %d bodies open", err, s.open.Load())
		}
	})
}

type readError struct{ err error }

func (r readError) Read([]byte) (int, error) { return 0, r.err }

func TestConflict_A409ThatTricklesEndsWithTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serve(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 409, Header: http.Header{"Content-Type": {problemKind}}, Body: &slowBody{ctx: req.Context(), left: 3}}, nil
		})
		_, err := (&Transport{Base: s}).RoundTrip(request(t, http.MethodGet, nil))
		if Classify(err) != Timeout || s.open.Load() != 0 {
			t.Errorf("err = %v, %d bodies open", err, s.open.Load())
		}
	})
}
