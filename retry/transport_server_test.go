package retry

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// quick is a policy for real servers: its waits are too short to be noticed.
var quick = Policy{Base: time.Microsecond, Cap: time.Microsecond}

// realServer answers attempt n with handlers[n-1]; the last repeats. It counts connections and attempts.
func realServer(t *testing.T, handlers ...http.HandlerFunc) (s *httptest.Server, attempts, connections *atomic.Int32) {
	t.Helper()
	attempts, connections = new(atomic.Int32), new(atomic.Int32)
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers[min(int(attempts.Add(1)), len(handlers))-1](w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s, attempts, connections
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// reset ends the connection with a TCP reset instead of an answer.
func reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func TestTransportServer_APOSTSurvivesResetsAnd503AndReusesConnections(t *testing.T) {
	t.Parallel()
	s, attempts, connections := realServer(t, status(503, strings.Repeat("busy ", 1000)), reset,
		status(500, "oops"), func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.WriteHeader(201)
			_, _ = io.WriteString(w, r.Header.Get(keyHeader)+" "+string(body))
		})
	client := &http.Client{Transport: &Transport{
		Base: &http.Transport{}, Policy: quick, Key: func(*http.Request) string { return "k1" }}}
	defer client.CloseIdleConnections()
	resp, err := client.Post(s.URL, "application/json", strings.NewReader(`{"amount":1000}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != 201 || string(body) != `k1 {"amount":1000}` || err != nil {
		t.Errorf("got %d, %q, %v", resp.StatusCode, body, err)
	}
	// The 503 was drained, so the reset hit its connection; the 500 and the 201 share the second one.
	if attempts.Load() != 4 || connections.Load() != 2 {
		t.Errorf("%d attempts on %d connections, want 4 on 2", attempts.Load(), connections.Load())
	}
}

func TestTransportServer_ATimeOutOfTheBaseIsTriedAgain(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s, attempts, _ := realServer(t, func(http.ResponseWriter, *http.Request) { <-release }, status(200, "there"))
	t.Cleanup(func() { close(release) }) // before the server's own, which waits for its handlers
	client := &http.Client{Transport: &Transport{
		Base: &http.Transport{ResponseHeaderTimeout: time.Second}, Policy: quick}}
	defer client.CloseIdleConnections()
	resp, err := client.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	// The scheduler may make a second attempt late as well, so there may be more than two.
	if resp.StatusCode != 200 || attempts.Load() < 2 {
		t.Errorf("status %d after %d attempts", resp.StatusCode, attempts.Load())
	}
}

func TestTransportServer_ARealHangEndsWithTheBudgetAndTheClientCallsItATimeOut(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s, _, _ := realServer(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	client := &http.Client{Transport: &Transport{Base: &http.Transport{}, Policy: Policy{Budget: 50 * time.Millisecond}}}
	defer client.CloseIdleConnections()
	_, err := client.Get(s.URL)
	var asURL *url.Error
	var gaveUp *GaveUpError
	if !errors.As(err, &asURL) || !asURL.Timeout() || !errors.As(err, &gaveUp) || gaveUp.Attempts != 1 {
		t.Errorf("err = %v", err)
	}
}

func TestTransportServer_ARefusedConnectionIsTriedAgainAndTheCauseIsKept(t *testing.T) {
	t.Parallel()
	s, _, _ := realServer(t, status(200, ""))
	s.Close()
	client := &http.Client{Transport: &Transport{Base: &http.Transport{}, Policy: quick}}
	_, err := client.Get(s.URL)
	var gaveUp *GaveUpError
	var refused *net.OpError
	if !errors.As(err, &gaveUp) || gaveUp.Attempts != 5 || !errors.As(err, &refused) || Classify(err) != Unavailable {
		t.Errorf("err = %v", err)
	}
}

func TestTransportServer_ACertificateThatDoesNotVerifyIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(status(200, ""))
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	var dialled atomic.Int32
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{TLSHandshakeStart: func() { dialled.Add(1) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&http.Client{Transport: &Transport{Base: &http.Transport{}, Policy: quick}}).Do(req)
	if Classify(err) != Auth || dialled.Load() != 1 {
		t.Errorf("%d attempts, err = %v", dialled.Load(), err)
	}
}

func TestTransportServer_AProtocolSwitchedByA101CanBeWrittenTo(t *testing.T) {
	t.Parallel()
	s, _, _ := realServer(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("echo " + line)
		_ = rw.Flush()
	})
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := (&Transport{Base: &http.Transport{}}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatal("the body of a 101 cannot be written to")
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != "echo hello\n" {
		t.Errorf("read %q, %v", got, err)
	}
}
