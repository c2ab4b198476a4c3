package retry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// heard is what a real server was sent.
type heard struct {
	mu   sync.Mutex
	reqs []*http.Request
	sent []string // bodies
}

func (h *heard) note(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.mu.Lock()
		h.reqs, h.sent = append(h.reqs, r), append(h.sent, string(body))
		h.mu.Unlock()
		next(w, r)
	}
}

func (h *heard) headers(name string) (values []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.reqs {
		values = append(values, strings.Join(r.Header.Values(name), ","))
	}
	return values
}

// client is a Client on connections of its own, whose waits are too short to be noticed.
func client(t *testing.T, change ...func(*Transport)) *http.Client {
	transport := Transport{Base: &http.Transport{}, Policy: quick}
	for _, f := range change {
		f(&transport)
	}
	c := Client(transport)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func post(t *testing.T, c *http.Client, url, body string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// R34.
func TestClient_AClientSendsOneKeyOverAllAttempts(t *testing.T) {
	t.Parallel()
	var h heard
	s, _, _ := realServer(t, h.note(status(503, "busy")), h.note(status(503, "busy")), h.note(status(201, "made")), h.note(status(422, "no")))
	c := client(t)
	if resp := post(t, c, s.URL, "x"); resp.StatusCode != 201 {
		t.Errorf("status %d, want 201", resp.StatusCode)
	}
	if resp := post(t, c, s.URL, "y"); resp.StatusCode != 422 {
		t.Errorf("status %d, want 422", resp.StatusCode)
	}
	if diff := cmp.Diff([]string{"x", "x", "x", "y"}, h.sent); diff != "" {
		t.Error(diff)
	}
	keys := h.headers(keyHeader)
	if keys[0] != keys[1] || keys[1] != keys[2] || keys[2] == keys[3] {
		t.Errorf("keys %q: want one for the first three, another for the last", keys)
	}
	for _, key := range keys {
		if id, err := uuid.Parse(key); err != nil || id.Version() != 7 {
			t.Errorf("key %q is no UUID of version 7: %v", key, err)
		}
	}
}

func TestClient_AClientMakesKeysForUnsafeMethodsAndKeepsTheCallersOwn(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]bool{
		"": false, "GET": false, "HEAD": false, "OPTIONS": false, "TRACE": false, "POST": true, "PATCH": true, "PUT": true, "DELETE": true, "PURGE": true,
	} {
		if made := newKey(&http.Request{Method: method}) != ""; made != want {
			t.Errorf("%q has a key: %t, want %t", method, made, want)
		}
	}
	var h heard
	s, _, _ := realServer(t, h.note(status(503, "")), h.note(status(201, "")))
	post(t, client(t), s.URL, "x", keyHeader, "refund:ch_1:1000")
	if diff := cmp.Diff([]string{"refund:ch_1:1000", "refund:ch_1:1000"}, h.headers(keyHeader)); diff != "" {
		t.Error(diff)
	}
}

func TestClient_ARedirectGoesOnUnderTheSameKey(t *testing.T) {
	t.Parallel()
	var h heard
	moved := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", code) }
	}
	s, _, _ := realServer(t, h.note(status(503, "")), h.note(moved(307)), h.note(status(503, "")), h.note(moved(308)), h.note(status(201, "")),
		h.note(moved(303)), h.note(status(200, "")))
	c := client(t)
	if resp := post(t, c, s.URL, "x"); resp.StatusCode != 201 {
		t.Errorf("status %d, want 201", resp.StatusCode)
	}
	keys := h.headers(keyHeader)
	if diff := cmp.Diff([]string{keys[0], keys[0], keys[0], keys[0], keys[0]}, keys); diff != "" || keys[0] == "" {
		t.Errorf("keys of a request, its attempts and its redirects:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"x", "x", "x", "x", "x"}, h.sent); diff != "" {
		t.Error(diff)
	}
	if resp := post(t, c, s.URL, "y"); resp.StatusCode != 200 {
		t.Errorf("status %d, want 200", resp.StatusCode)
	}
	if keys := h.headers(keyHeader); keys[5] == "" || keys[5] == keys[0] || keys[6] != "" {
		t.Errorf("keys %q of a POST and the GET it became: want a new one and none", keys[5:])
	}
}

func TestClient_ARedirectGoesOnWithinTheSameBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serve(func(req *http.Request) (*http.Response, error) {
			time.Sleep(4 * time.Second) // virtual
			return &http.Response{StatusCode: 307, Header: http.Header{"Location": {"/elsewhere"}}, Request: req}, nil
		}, hang)
		start := time.Now()
		_, err := Client(Transport{Base: s}).Do(request(t, http.MethodPost, strings.NewReader("x")))
		// 4 s, 5 s of an attempt, a wait of up to 100 ms, and what is left of 10 s.
		if took := time.Since(start); Classify(err) != Timeout || took != 10*time.Second || len(s.beganAt) != 3 {
			t.Errorf("%v after %s and %d attempts, want a time-out after 10s and 3", err, took, len(s.beganAt))
		}
	})
}

func TestClient_ARedirectThatComesWithTheEndOfTheBudgetIsNotFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serve(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 307, Header: http.Header{"Location": {"/elsewhere"}}, Request: req, Body: io.NopCloser(strings.NewReader("x"))}, nil
		}, answer(200))
		c := Client(Transport{Base: s})
		c.CheckRedirect = func(*http.Request, []*http.Request) error {
			time.Sleep(10 * time.Second) // virtual
			return nil
		}
		_, err := c.Do(request(t, http.MethodPost, strings.NewReader("x")))
		if Classify(err) != Timeout || len(s.beganAt) != 1 {
			t.Errorf("%v after %d attempts", err, len(s.beganAt))
		}
	})
}

func TestClient_AnAttemptThatHangsLeavesTimeForAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serve(hang, answer(201))
		resp, err := Client(Transport{Base: s, random: half}).Do(request(t, http.MethodPost, strings.NewReader("x")))
		if err != nil || resp.StatusCode != 201 {
			t.Fatalf("got %v, %v", resp, err)
		}
		if diff := cmp.Diff(ms(0, 5050), s.beganAt); diff != "" {
			t.Error(diff)
		}
	})
}

func TestClient_AnAttemptThatIsTheOnlyOneHasTheWholeBudget(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		policy Policy
		body   io.Reader
	}{
		"because of its body": {Policy{}, io.MultiReader(strings.NewReader("x"))},
		"by the policy":       {Policy{Attempts: 1}, strings.NewReader("x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, start := serve(hang), time.Now()
				_, err := Client(Transport{Base: s, Policy: row.policy}).Do(request(t, http.MethodPost, row.body))
				if took := time.Since(start); Classify(err) != Timeout || took != 10*time.Second || len(s.beganAt) != 1 {
					t.Errorf("%v after %s and %d attempts", err, took, len(s.beganAt))
				}
			})
		})
	}
}

func TestClient_EachAttemptSaysHowLongItWillBeWaitedFor(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name      string
		transport Transport
		deadline  time.Duration // of the request's context, 0 = none
		own       []string      // the request's header
		want      []string
	}{
		{"what is left of the budget", Transport{}, 0, nil, []string{"10", "9.95", "9.85"}},
		{"the same, where an attempt has no limit of its own", Transport{AttemptTimeout: -1}, 0, nil, []string{"10", "9.95", "9.85"}},
		{"an attempt's time-out, while it is less", Transport{AttemptTimeout: 9900 * time.Millisecond}, 0, nil, []string{"9.9", "9.9", "9.85"}},
		{"the time until the caller's deadline, where that is less", Transport{}, time.Second, nil, []string{"1", "0.95", "0.85"}},
		{"nothing, without a limit", Transport{Policy: Policy{Budget: -1}}, 0, nil, []string{"", "", ""}},
		{"the deadline, without another limit", Transport{Policy: Policy{Budget: -1}}, time.Second, nil, []string{"1", "0.95", "0.85"}},
		{"what the caller says", Transport{}, 0, []string{"30s"}, []string{"30s", "30s", "30s"}},
		{"nothing, where the caller wants it so", Transport{}, 0, []string{}, []string{"", "", ""}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var got []string
				s := serve(answer(503), answer(503), answer(200))
				row.transport.random = half
				row.transport.Base = roundTripFunc(func(req *http.Request) (*http.Response, error) {
					got = append(got, strings.Join(req.Header.Values(timeoutHeader), ","))
					return s.RoundTrip(req)
				})
				req := request(t, http.MethodGet, nil)
				if row.deadline > 0 {
					ctx, cancel := context.WithTimeout(t.Context(), row.deadline)
					defer cancel()
					req = req.WithContext(ctx)
				}
				if row.own != nil {
					req.Header[timeoutHeader] = row.own
				}
				if _, err := row.transport.RoundTrip(req); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(row.want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestClient_ATimeOutIsWrittenInMillisecondsAndNeverAsNothing(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		1: "0.001", time.Millisecond: "0.001", 1999 * time.Microsecond: "0.001", 10 * time.Second: "10", 9999999 * time.Microsecond: "9.999", 24 * time.Hour: "86400",
	} {
		if got := seconds(d); got != want {
			t.Errorf("%s is written %q, want %q", d, got, want)
		}
	}
}

func TestClient_AnInvalidAttemptTimeoutIsRefusedWithTheOtherProblems(t *testing.T) {
	t.Parallel()
	_, err := Client(Transport{AttemptTimeout: -2, Policy: Policy{Attempts: -7}}).Do(request(t, http.MethodGet, nil))
	for _, want := range []string{"attempt timeout is -2ns: it must be", "policy attempts is -7: it must be"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want it to have %q", err, want)
		}
	}
}

func TestClient_AClientWithoutABudgetLimitsNoAttempt(t *testing.T) {
	t.Parallel()
	if got := Client(Transport{Policy: Policy{Budget: -1}}).Transport.(*Transport).AttemptTimeout; got != noLimit {
		t.Errorf("an attempt may take %s, want no limit", got)
	}
	if got := Client(Transport{Policy: Policy{Budget: time.Minute}}).Transport.(*Transport).AttemptTimeout; got != 30*time.Second {
		t.Errorf("an attempt may take %s, want half a minute", got)
	}
	if got := Client(Transport{AttemptTimeout: -1}).Transport.(*Transport).AttemptTimeout; got != noLimit {
		t.Errorf("an attempt may take %s, want no limit, as it was said", got)
	}
}

func TestClient_TheCallersContextEndsAClientsRequestOnARealConnection(t *testing.T) {
	t.Parallel()
	release, ctx := make(chan struct{}), t.Context()
	ctx, cancel := context.WithCancel(ctx)
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel(); <-release }))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(release) })
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client(t).Do(req)
	var gaveUp *GaveUpError
	if !errors.Is(err, context.Canceled) || !errors.As(err, &gaveUp) || gaveUp.Attempts != 1 {
		t.Errorf("err = %v", err)
	}
}
