package retry

import (
	"context"
	"io"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// slowBody sends one byte an hour and stops when its request's context ends, as the bodies of http.Transport do.
type slowBody struct {
	ctx  context.Context
	left int
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	select {
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	case <-time.After(time.Hour):
		b.left--
		p[0] = 'x'
		return 1, nil
	}
}

func (b *slowBody) Close() error { return nil }

func TestResponse_ReadingTheAnswerMayOutlastTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var body *slowBody
		s := serve(func(req *http.Request) (*http.Response, error) {
			body = &slowBody{ctx: req.Context(), left: 3}
			return &http.Response{StatusCode: 200, Body: body}, nil
		})
		resp, err := (&Transport{Base: s}).RoundTrip(request(t, http.MethodGet, nil))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if string(got) != "xxx" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		if body.ctx.Err() != nil {
			t.Error("the attempt's context ended before its body was closed")
		}
		_ = resp.Body.Close()
		if body.ctx.Err() == nil {
			t.Error("closing the body left the attempt's context behind")
		}
	})
}

func TestResponse_ABodyThatTricklesIsDrainedForAShortTimeOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var body *slowBody
		s := serve(func(req *http.Request) (*http.Response, error) {
			body = &slowBody{ctx: req.Context(), left: 3}
			return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {"1"}}, Body: body}, nil
		}, answer(200))
		if _, err := (&Transport{Base: s, random: func() float64 { return 0 }}).RoundTrip(request(t, http.MethodGet, nil)); err != nil {
			t.Fatal(err)
		}
		if s.open.Load() != 1 { // the answer 200
			t.Errorf("%d bodies are open, want that of the last answer", s.open.Load())
		}
		if s.beganAt[1] != time.Second {
			t.Errorf("the second attempt began at %s, want 1s: draining is part of the wait", s.beganAt[1])
		}
	})
}

// endlessBody counts what is read of it.
type endlessBody struct{ read int }

func (b *endlessBody) Read(p []byte) (int, error) { b.read += len(p); return len(p), nil }
func (b *endlessBody) Close() error               { return nil }

func TestResponse_ABodyWithoutEndIsDrainedOfALittleOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body := &endlessBody{}
		s := serve(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, Body: body}, nil
		}, answer(200))
		if _, err := (&Transport{Base: s}).RoundTrip(request(t, http.MethodGet, nil)); err != nil {
			t.Fatal(err)
		}
		if body.read == 0 || body.read > 2*drainBytes {
			t.Errorf("%d bytes were read, want some, and about %d at most", body.read, drainBytes)
		}
	})
}

func TestResponse_AnAnswerWithoutABodyIsReadAsEmpty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serve(func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: 503}, nil })
		resp, err := (&Transport{Base: s}).RoundTrip(request(t, http.MethodGet, nil))
		if err != nil || len(s.beganAt) != 5 {
			t.Fatalf("%v, %d attempts", err, len(s.beganAt))
		}
		if body, err := io.ReadAll(resp.Body); len(body) != 0 || err != nil {
			t.Errorf("read %q, %v", body, err)
		}
	})
}

func TestResponse_RetryAfterInBothItsForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		name, value, date string
		want              time.Duration
		ok                bool
	}{
		{"absent", "", "", 0, false},
		{"seconds", "120", "", 2 * time.Minute, true},
		{"seconds with blanks around", " 1 ", "", time.Second, true},
		{"no seconds", "0", "", 0, true},
		{"more seconds than a duration holds", "9223372037", "", math.MaxInt64, true},
		{"more seconds than an integer holds", "99999999999999999999", "", math.MaxInt64, true},
		{"negative seconds", "-1", "", 0, false},
		{"a fraction", "1.5", "", 0, false},
		{"a date", "Sat, 21 Nov 2026 10:00:30 GMT", "", 30 * time.Second, true},
		{"a date in the old form", "Saturday, 21-Nov-26 10:00:30 GMT", "", 30 * time.Second, true},
		{"a date in C's form", "Sat Nov 21 10:00:30 2026", "", 30 * time.Second, true},
		{"a date that has passed", "Sat, 21 Nov 2026 09:00:00 GMT", "", 0, true},
		{"a date by the server's clock", "Sat, 21 Nov 2026 12:00:05 GMT", "Sat, 21 Nov 2026 12:00:00 GMT", 5 * time.Second, true},
		{"a date beside a clock that isn't one", "Sat, 21 Nov 2026 10:00:05 GMT", "noon", 5 * time.Second, true},
		{"no date", "tomorrow", "", 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			header.Set("Retry-After", row.value)
			header.Set("Date", row.date)
			if got, ok := retryAfter(header, now); got != row.want || ok != row.ok {
				t.Errorf("retryAfter(%q) = %s, %t, want %s, %t", row.value, got, ok, row.want, row.ok)
			}
		})
	}
}
