package idempotency

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// resetAfter answers nothing to what next has answered in the first n requests: the connection is reset instead.
func resetAfter(n int32, next http.Handler) http.Handler {
	var seen atomic.Int32
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1) > n {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(httptest.NewRecorder(), r)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	})
}

// customer is a client that retries, and the log of its attempts.
func customer(t *testing.T, observe func(retry.Attempt)) *http.Client {
	t.Helper()
	c := retry.Client(retry.Transport{
		Base:     withAccount{&http.Transport{}},
		Observer: retry.Observer{OnAttempt: observe},
	})
	t.Cleanup(c.CloseIdleConnections)
	return c
}

type withAccount struct{ *http.Transport }

func (a withAccount) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Account", "a1")
	return a.Transport.RoundTrip(r)
}

// R34.
func TestRetryingClient_AClientWhoseAnswersAreLostGetsTheOneAnswerOfTheOneEffect(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	server := httptest.NewServer(resetAfter(2, b.service(b.guard(), b.charge)))
	t.Cleanup(server.Close)
	var statuses []int
	resp, err := customer(t, func(a retry.Attempt) { statuses = append(statuses, a.Status) }).
		Post(server.URL+"/charges", "application/json", strings.NewReader(`{"amount":1000}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != 201 || string(body) != "{\"id\": 1}\n" || err != nil || resp.Header.Get("Idempotency-Status") != "replayed" {
		t.Errorf("got %d %q, %v, %v", resp.StatusCode, body, err, resp.Header)
	}
	if diff := cmp.Diff([]int{0, 0, 201}, statuses); diff != "" {
		t.Error(diff)
	}
	if b.kept(1, 1, 1); b.runs.Load() != 1 {
		t.Errorf("%d runs, want 1", b.runs.Load())
	}
}

// R34.
func TestRetryingClient_AClientWhoseKeyIsInUseComesAgainForTheAnswer(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	refused, entered := make(chan struct{}), make(chan struct{})
	g := b.guard()
	server := httptest.NewServer(g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-refused
		b.charge(w, r)
	})))
	t.Cleanup(server.Close)
	post := func(observe func(retry.Attempt)) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/charges", strings.NewReader("7"))
		if err != nil {
			t.Error(err)
			return nil
		}
		req.Header.Set("Idempotency-Key", "k1")
		resp, err := customer(t, observe).Do(req)
		if err != nil {
			t.Error(err)
			return nil
		}
		_ = resp.Body.Close()
		return resp
	}
	first := make(chan *http.Response, 1)
	go func() { first <- post(nil) }()
	<-entered
	var codes []string
	var one *http.Response
	second := post(func(a retry.Attempt) {
		if codes = append(codes, a.Code); len(codes) == 1 {
			close(refused) // the first one may go on, now that the second one was refused
			one = <-first  // and has its answer before that comes again
		}
	})
	if one == nil || one.StatusCode != 201 || one.Header.Get("Idempotency-Status") != "stored" {
		t.Errorf("the first got %v", one)
	}
	if second == nil || second.StatusCode != 201 || second.Header.Get("Idempotency-Status") != "replayed" {
		t.Errorf("the second got %v", second)
	}
	if diff := cmp.Diff([]string{codeInProgress, ""}, codes); diff != "" {
		t.Error(diff)
	}
	if b.runs.Load() != 1 {
		t.Errorf("%d runs, want 1", b.runs.Load())
	}
}
