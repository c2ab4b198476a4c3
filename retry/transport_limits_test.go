package retry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTransportLimits_AnAttemptThatHangsEndsWithTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, start := serve(answer(503), hang), time.Now()
		resp, err := (&Transport{Base: s, random: half}).RoundTrip(request(t, http.MethodGet, nil))
		if took := time.Since(start); resp != nil || took < 10*time.Second || took > 10*time.Second+time.Millisecond {
			t.Errorf("got %v after %s, want an error after 10s", resp, took)
		}
		want := "gave up after 2 attempts, budget spent: no answer within the budget of 10s: context deadline exceeded"
		if err == nil || err.Error() != want {
			t.Errorf("err = %v, want %s", err, want)
		}
		if Classify(err) != Timeout || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v isn't a time-out", err)
		}
	})
}

func TestTransportLimits_WithoutABudgetAnAttemptMayTakeAsLongAsItLikes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serve(func(*http.Request) (*http.Response, error) {
			time.Sleep(time.Hour) // virtual
			return answer(200)(nil)
		})
		resp, err := (&Transport{Base: s, Policy: Policy{Budget: -1}}).RoundTrip(request(t, http.MethodGet, nil))
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("got %v, %v", resp, err)
		}
	})
}

func TestTransportLimits_ACallersContextEndsARequestInEveryPhase(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]roundTripFunc{
		"while an attempt hangs":     hang,
		"while waiting after a 503":  answer(503, "Retry-After", "5"),
		"while waiting after errors": fail(After(io.EOF, 5*time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				s, start := serve(first), time.Now()
				resp, err := (&Transport{Base: s}).RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
				if took := time.Since(start); resp != nil || !errors.Is(err, context.Canceled) || took != time.Second {
					t.Errorf("got %v, %v after %s", resp, err, took)
				}
				if len(s.beganAt) != 1 || s.open.Load() != 0 {
					t.Errorf("%d attempts, %d bodies open", len(s.beganAt), s.open.Load())
				}
			})
		})
	}
}

type closeRecorder struct {
	io.Reader
	closed bool
}

func (c *closeRecorder) Close() error { c.closed = true; return nil }

func TestTransportLimits_ARequestThatIsNeverSentHasItsBodyClosed(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, row := range map[string]struct {
		transport Transport
		ctx       context.Context
	}{
		"because its context had ended":         {Transport{}, ended},
		"because the policy makes no sense":     {Transport{Policy: Policy{Attempts: -7}}, t.Context()},
		"because the policy contradicts itself": {Transport{Policy: Policy{Base: 2, Cap: 1}}, t.Context()},
	} {
		t.Run(name, func(t *testing.T) {
			s, body := serve(answer(200)), &closeRecorder{Reader: strings.NewReader("x")}
			row.transport.Base = s
			resp, err := row.transport.RoundTrip(request(t, http.MethodPost, body).WithContext(row.ctx))
			if resp != nil || err == nil || !body.closed || len(s.beganAt) != 0 {
				t.Errorf("got %v, %v, closed %t, %d attempts", resp, err, body.closed, len(s.beganAt))
			}
		})
	}
}

func TestTransportLimits_ABodyThatCannotBeHadAgainAfterAllIsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, gone := serve(answer(503)), errors.New("file is gone")
		req := request(t, http.MethodPut, strings.NewReader("x"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, gone }
		resp, err := (&Transport{Base: s}).RoundTrip(req)
		if resp != nil || !errors.Is(err, gone) || len(s.beganAt) != 1 || s.open.Load() != 0 {
			t.Errorf("got %v, %v, %d attempts, %d bodies open", resp, err, len(s.beganAt), s.open.Load())
		}
	})
}

func TestTransportLimits_OneTransportServesManyRequestsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent sync.Map // of key: attempts
		transport := &Transport{
			Key: func(req *http.Request) string { return req.Header.Get("X-Order") },
			Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
				n, _ := sent.LoadOrStore(req.Header.Get(keyHeader), new(atomic.Int32))
				if n.(*atomic.Int32).Add(1) < 3 {
					return answer(503)(req)
				}
				return answer(201)(req)
			}),
		}
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				req := request(t, http.MethodPost, strings.NewReader("x"))
				req.Header.Set("X-Order", string(rune('A'+i)))
				if resp, err := transport.RoundTrip(req); err != nil || resp.StatusCode != 201 {
					t.Errorf("got %v, %v", resp, err)
				}
			})
		}
		all.Wait()
		requests := 0
		sent.Range(func(key, n any) bool {
			requests++
			if got := n.(*atomic.Int32).Load(); got != 3 {
				t.Errorf("key %v was sent %d times, want 3", key, got)
			}
			return true
		})
		if requests != 50 {
			t.Errorf("%d keys, want 50", requests)
		}
	})
}
