package retry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// roundTripFunc is what one attempt is answered with.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type answers = []roundTripFunc

// server is a fake http.RoundTripper under the virtual clock. Attempt n is answered by answers[n-1]; the last repeats.
type server struct {
	start   time.Time
	answers answers
	beganAt []time.Duration
	keys    []string // the Idempotency-Key of each attempt
	bodies  []string // the request body of each attempt
	open    atomic.Int32
}

func serve(a ...roundTripFunc) *server {
	return &server{start: time.Now(), answers: a}
}

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	s.beganAt = append(s.beganAt, time.Since(s.start))
	s.keys = append(s.keys, strings.Join(req.Header.Values(keyHeader), ","))
	sent := ""
	if req.Body != nil {
		raw, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		sent = string(raw)
		_ = req.Body.Close()
	}
	s.bodies = append(s.bodies, sent)
	resp, err := s.answers[min(len(s.beganAt), len(s.answers))-1](req)
	if resp != nil && resp.Body != nil {
		s.open.Add(1)
		resp.Body = &countedBody{ReadCloser: resp.Body, open: &s.open}
	}
	return resp, err
}

// countedBody tells how many bodies are open, and refuses to be read once closed.
type countedBody struct {
	io.ReadCloser
	open   *atomic.Int32
	closed bool
}

func (b *countedBody) Read(p []byte) (int, error) {
	if b.closed {
		return 0, errors.New("read of a closed body")
	}
	return b.ReadCloser.Read(p)
}

func (b *countedBody) Close() error {
	if !b.closed {
		b.closed = true
		b.open.Add(-1)
	}
	return nil
}

func answer(status int, header ...string) roundTripFunc {
	return func(*http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("body of " + strconv.Itoa(status)))}
		for i := 0; i < len(header); i += 2 {
			resp.Header.Set(header[i], header[i+1])
		}
		return resp, nil
	}
}

func fail(err error) roundTripFunc {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

// hang answers when the request's context ends, as http.Transport does.
func hang(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, context.Cause(req.Context())
}

func half() float64 { return 0.5 }

func request(t *testing.T, method string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://payments.example/refunds", body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestTransport_TheScheduleOfRequests(t *testing.T) {
	t.Parallel()
	date := func(afterStart time.Duration) string {
		// The virtual clock of a synctest bubble starts at midnight UTC, 2000-01-01.
		return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(afterStart).Format(http.TimeFormat)
	}
	for _, row := range []struct {
		name    string
		answers answers
		status  int // 0 = an error
		beganAt []time.Duration
	}{
		{"200 is an answer", answers{answer(200)}, 200, ms(0)},
		{"500 and 503 are tried again", answers{answer(500), answer(503), answer(201)}, 201, ms(0, 50, 150)},
		{"429 is tried again", answers{answer(429), answer(200)}, 200, ms(0, 50)},
		{"five attempts by default, and the last answer stays", answers{answer(502)}, 502, ms(0, 50, 150, 350, 750)},
		{"a reset is tried again", answers{fail(syscall.ECONNRESET), answer(200)}, 200, ms(0, 50)},
		{"a time-out is tried again", answers{fail(context.DeadlineExceeded), answer(200)}, 200, ms(0, 50)},
		{"an answer after errors stays", answers{fail(io.EOF), fail(io.EOF), answer(404)}, 404, ms(0, 50, 150)},
		{"an error after answers is an error", answers{answer(503), fail(Permanent(io.EOF))}, 0, ms(0, 50)},
		{"a permanent error isn't tried again", answers{fail(Permanent(io.EOF))}, 0, ms(0)},
		{"400 is an answer", answers{answer(400)}, 400, ms(0)},
		{"401 is an answer", answers{answer(401)}, 401, ms(0)},
		{"408 is an answer", answers{answer(408)}, 408, ms(0)},
		{"409 is an answer, Retry-After or not", answers{answer(409, "Retry-After", "1")}, 409, ms(0)},
		{"422 is an answer", answers{answer(422)}, 422, ms(0)},
		{"302 is an answer", answers{answer(302)}, 302, ms(0)},
		{"Retry-After in seconds, past the cap", answers{answer(503, "Retry-After", "7"), answer(200)}, 200, ms(0, 7875)},
		{"Retry-After as a date", answers{answer(429, "Retry-After", date(3*time.Second)), answer(200)}, 200, ms(0, 3375)},
		{"Retry-After as a date of another clock", answers{
			answer(429, "Retry-After", date(time.Hour+2*time.Second), "Date", date(time.Hour)), answer(200)}, 200, ms(0, 2250)},
		{"Retry-After of 0 is spread by the policy", answers{answer(503, "Retry-After", "0"), answer(429, "Retry-After", "0"), answer(200)}, 200, ms(0, 50, 150)},
		{"Retry-After as a date in the past is, too", answers{answer(503, "Retry-After", date(-time.Second)), answer(200)}, 200, ms(0, 50)},
		{"Retry-After on a single one of the answers", answers{answer(503, "Retry-After", "1"), answer(503), answer(200)}, 200, ms(0, 1125, 1225)},
		{"Retry-After past the budget leaves the answer", answers{answer(503, "Retry-After", "10")}, 503, ms(0)},
		{"Retry-After that is nonsense isn't honoured", answers{answer(503, "Retry-After", "soon"), answer(200)}, 200, ms(0, 50)},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := serve(row.answers...)
				resp, err := (&Transport{Base: s, random: half}).RoundTrip(request(t, http.MethodGet, nil))
				if diff := cmp.Diff(row.beganAt, s.beganAt); diff != "" {
					t.Errorf("attempts began at (-want +got):\n%s", diff)
				}
				if row.status == 0 {
					var gaveUp *GaveUpError
					if resp != nil || !errors.As(err, &gaveUp) || gaveUp.Attempts != len(row.beganAt) {
						t.Errorf("got %v, %v", resp, err)
					}
				} else {
					if err != nil {
						t.Fatalf("err = %v", err)
					}
					body, err := io.ReadAll(resp.Body)
					if resp.StatusCode != row.status || err != nil || string(body) != "body of "+strconv.Itoa(row.status) {
						t.Errorf("status %d, body %q, %v, want status %d and its body", resp.StatusCode, body, err, row.status)
					}
					_ = resp.Body.Close()
				}
				if open := s.open.Load(); open != 0 {
					t.Errorf("%d bodies were left open", open)
				}
			})
		})
	}
}

func TestTransport_OneKeyAndOneBodyOverAllAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, made := serve(answer(503), fail(syscall.ECONNRESET), answer(201)), 0
		transport := &Transport{Base: s, random: half, Key: func(*http.Request) string {
			made++
			return "key-" + strconv.Itoa(made)
		}}
		req := request(t, http.MethodPost, strings.NewReader(`{"amount":1000}`))
		resp, err := transport.RoundTrip(req)
		if err != nil || resp.StatusCode != 201 {
			t.Fatalf("got %v, %v", resp, err)
		}
		if diff := cmp.Diff([]string{"key-1", "key-1", "key-1"}, s.keys); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{`{"amount":1000}`, `{"amount":1000}`, `{"amount":1000}`}, s.bodies); diff != "" {
			t.Error(diff)
		}
		if _, changed := req.Header[keyHeader]; changed {
			t.Error("the caller's request was changed")
		}
		if _, err := transport.RoundTrip(request(t, http.MethodPost, nil)); err != nil || s.keys[3] != "key-2" {
			t.Errorf("another request was sent with %q, %v", s.keys[3], err)
		}
	})
}

func TestTransport_TheRequestsOwnKeyGoesBeforeTheTransports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serve(answer(503), answer(201))
		transport := &Transport{Base: s, random: half, Key: func(*http.Request) string {
			t.Error("Key was asked")
			return "other"
		}}
		req := request(t, http.MethodPost, nil)
		req.Header.Set(keyHeader, "refund:ch_1:1000")
		if _, err := transport.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"refund:ch_1:1000", "refund:ch_1:1000"}, s.keys); diff != "" {
			t.Error(diff)
		}
	})
}

func TestTransport_WhatMayNotArriveTwiceIsSentOnce(t *testing.T) {
	t.Parallel()
	oneWay := func() io.Reader { return io.MultiReader(strings.NewReader("x")) } // no GetBody
	replayed := func() io.Reader { return bytes.NewReader([]byte("x")) }
	for _, row := range []struct {
		name, method, key string
		body              func() io.Reader
		attempts          int
	}{
		{"GET is repeated", "GET", "", nil, 5},
		{"no method means GET", "", "", nil, 5},
		{"HEAD is repeated", "HEAD", "", nil, 5},
		{"OPTIONS is repeated", "OPTIONS", "", nil, 5},
		{"TRACE is repeated", "TRACE", "", nil, 5},
		{"PUT is repeated", "PUT", "", replayed, 5},
		{"DELETE is repeated", "DELETE", "", nil, 5},
		{"POST without a key isn't", "POST", "", replayed, 1},
		{"PATCH without a key isn't", "PATCH", "", replayed, 1},
		{"an unknown method without a key isn't", "PURGE", "", nil, 1},
		{"POST with a key is repeated", "POST", "k", replayed, 5},
		{"PATCH with a key is repeated", "PATCH", "k", replayed, 5},
		{"POST with an empty body is repeated", "POST", "k", func() io.Reader { return http.NoBody }, 5},
		{"POST with a key and a body that cannot be had again isn't", "POST", "k", oneWay, 1},
		{"PUT with a body that cannot be had again isn't", "PUT", "", oneWay, 1},
	} {
		for _, what := range []struct {
			name   string
			answer roundTripFunc
		}{{"after an answer", answer(503)}, {"after an error", fail(syscall.ECONNRESET)}} {
			t.Run(row.name+" "+what.name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := serve(what.answer)
					var body io.Reader
					if row.body != nil {
						body = row.body()
					}
					req := request(t, row.method, body)
					req.Method = row.method // NewRequest makes GET of ""
					if _, err := (&Transport{Base: s, Key: func(*http.Request) string { return row.key }}).RoundTrip(req); err != nil {
						var gaveUp *GaveUpError
						if !errors.As(err, &gaveUp) || gaveUp.Attempts != row.attempts || !errors.Is(err, syscall.ECONNRESET) {
							t.Errorf("err = %v", err)
						}
					}
					if len(s.beganAt) != row.attempts {
						t.Errorf("%d attempts, want %d", len(s.beganAt), row.attempts)
					}
				})
			})
		}
	}
}
