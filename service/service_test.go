package service_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/service"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var quiet = slog.New(slog.DiscardHandler)

// broker is a Publisher that takes everything.
type broker struct {
	mu     sync.Mutex
	events []holdfast.Event
	closed bool
}

func (b *broker) Publish(_ context.Context, events []holdfast.Event) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := make([]error, len(events))
	if b.closed {
		for i := range errs {
			errs[i] = errors.New("the publisher is closed")
		}
		return errs
	}
	b.events = append(b.events, events...)
	return errs
}

func (b *broker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}

func (b *broker) types() (types []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		types = append(types, e.Type)
	}
	return types
}

// run is a Service that runs.
type run struct {
	url  string
	stop func()
	done chan error
}

// start runs a Service that serves on a free port.
func start(t *testing.T, s *service.Service, h http.Handler) *run {
	t.Helper()
	r := &run{done: make(chan error, 1)}
	if h != nil {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if s.Server == nil {
			s.Server = &http.Server{ReadHeaderTimeout: time.Minute}
		}
		r.url, s.Server.Handler = "http://"+l.Addr().String(), h
		s.ServeFunc = func(server *http.Server) error { return server.Serve(l) }
	}
	if s.Logger == nil {
		s.Logger = quiet
	}
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(stop)
	return r
}

// ended waits for the end of Run, and returns its error.
func (r *run) ended(t *testing.T) (err error) {
	t.Helper()
	wait.Until(t, "the service ends", func() bool {
		select {
		case err = <-r.done:
			return true
		default:
			return false
		}
	})
	return err
}

// get returns status and body of an answer, 0 for none.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body)
}

func newRelay(t *testing.T, pool *pgxpool.Pool, b *broker) *relay.Relay {
	t.Helper()
	r, err := relay.New(pool, b, relay.Config{Logger: quiet, PollMin: time.Millisecond, PollMax: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newInbox(t *testing.T, pool *pgxpool.Pool, consumer string) *inbox.Inbox {
	t.Helper()
	in, err := inbox.New(pool, inbox.Config{Consumer: consumer, Logger: quiet, PollMin: 2 * time.Millisecond, PollMax: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// write writes an event of a type in a transaction of its own.
func write(ctx context.Context, pool *pgxpool.Pool, eventType string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Write(ctx, tx, holdfast.Event{Source: "shop", Topic: "orders", Type: eventType})
	})
}

// What a request, a handler and a loop write while the service stops is published before Run returns, and the publisher is closed after that.
func TestService_WhatIsWrittenInTheStopIsPublished(t *testing.T) {
	t.Parallel()
	db, b := migrated.New(t), &broker{}
	var log logtest.Log
	in := newInbox(t, db.Pool, "billing")
	handling, stopping := make(chan struct{}), make(chan struct{})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
		close(handling)
		<-stopping
		return outbox.Write(ctx, tx, holdfast.Event{Source: "shop", Topic: "orders", Type: "of the handler"})
	})
	asked := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-stopping
		if err := write(r.Context(), db.Pool, "of the request"); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	s := &service.Service{
		Pool: db.Pool, Relay: newRelay(t, db.Pool, b), Consumers: []service.Consumer{{Inbox: in}}, CloseFuncs: []func(){b.close, db.Pool.Close},
		RunFuncs: []func(context.Context) error{func(ctx context.Context) error {
			<-ctx.Done()
			close(stopping)
			return write(context.WithoutCancel(ctx), db.Pool, "of the loop")
		}},
		Logger: slog.New(slog.NewJSONHandler(&log, nil)),
	}
	r := start(t, s, h)
	if _, err := in.Store(t.Context(), holdfast.Event{ID: "1", Source: "shop", Topic: "orders", Type: "order.placed"}); err != nil {
		t.Fatal(err)
	}
	answered := make(chan int, 1)
	go func() {
		status, _ := get(t, r.url)
		answered <- status
	}()
	<-handling
	<-asked
	r.stop()
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
	if status := <-answered; status != http.StatusOK {
		t.Errorf("the request was answered with %d", status)
	}
	got := b.types()
	slices.Sort(got)
	if want := []string{"of the handler", "of the loop", "of the request"}; !slices.Equal(got, want) {
		t.Errorf("%q were published, want %q", got, want)
	}
	if db.Pool.Ping(t.Context()) == nil {
		t.Error("the pool is open")
	}
	var parts []string
	for _, line := range logtest.Lines[struct{ Msg, Part string }](t, log.String()) {
		if line.Msg == "part stopped" {
			parts = append(parts, line.Part)
		}
	}
	if len(parts) != 4 || parts[3] != "relay" {
		t.Errorf("they stopped in the order %q, want four with the relay as the last", parts)
	}
	slices.Sort(parts)
	if want := []string{"consumer billing", "relay", "requests", "run funcs[0]"}; !slices.Equal(parts, want) {
		t.Errorf("%q have stopped, want %q", parts, want)
	}
}

// A request that does not end, and has not read its body, is cut off: its context ends.
func TestService_ARequestThatDoesNotEndIsCutOff(t *testing.T) {
	t.Parallel()
	for name, base := range map[string]func(net.Listener) context.Context{
		"as it is":                           nil,
		"with a context of the server's own": func(net.Listener) context.Context { return context.Background() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, cut := make(chan struct{}), make(chan struct{})
			s := &service.Service{
				Pool: migrated.New(t).Pool, DrainTimeout: 20 * time.Millisecond,
				Server: &http.Server{ReadHeaderTimeout: time.Minute, BaseContext: base},
			}
			r := start(t, s, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(asked)
				<-r.Context().Done()
				close(cut)
			}))
			go func() {
				body := strings.NewReader(strings.Repeat("x", 1<<20))
				r, _ := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, r.url, body)
				if answer, err := http.DefaultClient.Do(r); err == nil {
					answer.Body.Close()
				}
			}()
			<-asked
			r.stop()
			if err := r.ended(t); err == nil || err.Error() != "requests: some took longer than 20ms to end, and were cut off" {
				t.Errorf("it ended with %v", err)
			}
			select {
			case <-cut:
			case <-time.After(wait.Limit()):
				t.Error("the context of the request has not ended")
			}
		})
	}
}

func TestService_APartThatEndsEndsTheOthers(t *testing.T) {
	t.Parallel()
	db, failure := migrated.New(t), errors.New("planned")
	var closed atomic.Bool
	s := &service.Service{
		Pool: db.Pool, Relay: newRelay(t, db.Pool, &broker{}),
		Consumers:  []service.Consumer{{Inbox: newInbox(t, db.Pool, "billing")}},
		RunFuncs:   []func(context.Context) error{func(context.Context) error { return failure }},
		CloseFuncs: []func(){func() { closed.Store(true) }, db.Pool.Close},
	}
	r := start(t, s, http.NotFoundHandler())
	if err := r.ended(t); !errors.Is(err, failure) || err.Error() != "run funcs[0]: planned" {
		t.Errorf("it ended with %v", err)
	}
	if !closed.Load() || db.Pool.Ping(t.Context()) == nil {
		t.Errorf("close funcs were called: %v", closed.Load())
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "has been run already") {
		t.Errorf("run again: %v", err)
	}
}

// A port that is taken is the error of Run, and nothing else waits.
func TestService_AServerThatCannotListenEndsIt(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &service.Service{Pool: db.Pool, Relay: newRelay(t, db.Pool, &broker{}), Server: &http.Server{Addr: l.Addr().String(), ReadHeaderTimeout: time.Minute}, Logger: quiet}
	if err := s.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "requests: listen tcp") {
		t.Errorf("it ended with %v", err)
	}
}

// A context of the server's own, with its values, is that of requests.
func TestService_RequestsKeepTheContextOfTheServer(t *testing.T) {
	t.Parallel()
	type mark struct{}
	db := migrated.New(t)
	base := func(net.Listener) context.Context { return context.WithValue(context.Background(), mark{}, true) }
	s := &service.Service{Pool: db.Pool, Server: &http.Server{ReadHeaderTimeout: time.Minute, BaseContext: base}}
	var found atomic.Bool
	r := start(t, s, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { found.Store(r.Context().Value(mark{}) != nil) }))
	wait.Until(t, "it answers", func() bool { status, _ := get(t, r.url); return status == http.StatusOK })
	if !found.Load() {
		t.Error("the request does not have the server's value")
	}
	r.stop()
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
}

func TestService_AConnectionThatIsNotGivenBackIsSaid(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pool, err := pgxpool.New(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &service.Service{
		Pool: pool, CloseTimeout: 20 * time.Millisecond, CloseFuncs: []func(){func() {}, pool.Close},
		RunFuncs: []func(context.Context) error{func(context.Context) error { return nil }},
	}
	if err := start(t, s, nil).ended(t); err == nil || err.Error() != "close funcs[1] has not returned within 20ms; 1 connections of the pool are in use" {
		t.Errorf("it ended with %v", err)
	}
	c.Release()
}

// A loop that has done its work ends nothing else, unless there is nothing else.
func TestService_ALoopMayEndBeforeTheOthers(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	once := func(context.Context) error { return nil }
	s := &service.Service{Pool: db.Pool, RunFuncs: []func(context.Context) error{once, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err() // it was told to
	}}}
	r := start(t, s, http.NotFoundHandler())
	wait.Until(t, "it answers", func() bool { status, _ := get(t, r.url); return status == http.StatusNotFound })
	select {
	case err := <-r.done:
		t.Fatalf("it has ended: %v", err)
	default:
	}
	r.stop()
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
	if err := start(t, &service.Service{Pool: db.Pool, RunFuncs: []func(context.Context) error{once, once}}, nil).ended(t); err != nil {
		t.Error(err)
	}
}

// A program that stops its server by itself does not cut off what the server has taken.
func TestService_AServerThatYourCodeShutsDownIsDrained(t *testing.T) {
	t.Parallel()
	db, b := migrated.New(t), &broker{}
	asked, over := make(chan struct{}), make(chan struct{})
	s := &service.Service{Pool: db.Pool, Relay: newRelay(t, db.Pool, b)}
	var failed atomic.Value
	r := start(t, s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-over
		if err := write(r.Context(), db.Pool, "of the request"); err != nil {
			failed.Store(err)
		}
	}))
	answered := make(chan int, 1)
	go func() {
		status, _ := get(t, r.url)
		answered <- status
	}()
	<-asked
	shut := make(chan error, 1)
	go func() { shut <- s.Server.Shutdown(context.WithoutCancel(t.Context())) }()
	wait.Until(t, "the service stops", func() bool {
		w := httptest.NewRecorder()
		s.Probes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
		return w.Code == http.StatusServiceUnavailable
	})
	close(over)
	if err := errors.Join(r.ended(t), <-shut); err != nil {
		t.Error(err)
	}
	if status := <-answered; status != http.StatusOK || failed.Load() != nil || !slices.Equal(b.types(), []string{"of the request"}) {
		t.Errorf("the request: %d, %v; published are %q", status, failed.Load(), b.types())
	}
}

func TestService_EveryProblemIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	s := &service.Service{
		ServeFunc: func(*http.Server) error { return nil }, Consumers: []service.Consumer{{}}, RunFuncs: []func(context.Context) error{nil},
		CloseFuncs: []func(){nil}, DrainTimeout: -1, CloseTimeout: -2,
	}
	want := `pool is nil: it must be the pool that the parts work on
serve func is set, but server is nil
consumers[0].inbox is nil
run funcs[0] is nil
close funcs[0] is nil
drain timeout is -1ns: it must be positive, or 0 for the default
close timeout is -2ns: it must be positive, or 0 for the default`
	if err := s.Run(t.Context()); err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	twice := newInbox(t, migrated.New(t).Pool, "billing")
	err := (&service.Service{Consumers: []service.Consumer{{Inbox: twice}, {Inbox: twice}}}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), `consumers[1].inbox has the name "billing", as another one`) {
		t.Errorf("one inbox twice: %v", err)
	}
	if err := (&service.Service{}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "there is no part") {
		t.Errorf("of nothing: %v", err)
	}
}

// meter counts what is observed, and what is observed no longer. It refuses the instruments that begin with refuse.
type meter struct {
	metrics.Meter
	refuse    string
	now, ever atomic.Int64
}

func (m *meter) Observe(is []metrics.Instrument, _ func(context.Context) ([]metrics.Reading, error)) (func() error, error) {
	if m.refuse != "" && strings.HasPrefix(is[0].Name, m.refuse) {
		return nil, errors.New("planned")
	}
	m.now.Add(1)
	m.ever.Add(1)
	return func() error { m.now.Add(-1); return nil }, nil
}

func TestService_TheDatabaseAndThePoolAreMeasuredUntilTheStop(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	loop := []func(context.Context) error{func(context.Context) error { return nil }}
	m := &meter{}
	if err := start(t, &service.Service{Pool: db.Pool, Meter: m, RunFuncs: loop}, nil).ended(t); err != nil || m.ever.Load() < 2 || m.now.Load() != 0 {
		t.Errorf("%d were observed, %d still are: %v", m.ever.Load(), m.now.Load(), err)
	}
	for _, refuse := range []string{"db.client", "holdfast.backlog"} {
		m := &meter{refuse: refuse}
		if err := start(t, &service.Service{Pool: db.Pool, Meter: m, RunFuncs: loop}, nil).ended(t); err == nil || m.now.Load() != 0 {
			t.Errorf("without %s: %d are still observed: %v", refuse, m.now.Load(), err)
		}
	}
}

// Each part alone has enough connections; who starts last says what they need together. What has ended needs none.
func TestService_APoolThatIsTooSmallForAllPartsIsSaidOnce(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	config := db.Pool.Config()
	config.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var log logtest.Log
	logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	newInbox := func() *inbox.Inbox {
		in, err := inbox.New(pool, inbox.Config{Consumer: "billing", Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	newRelay := func() *relay.Relay {
		r, err := relay.New(pool, &broker{}, relay.Config{Name: "a", Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := start(t, &service.Service{Pool: pool, Relay: newRelay(), Consumers: []service.Consumer{{Inbox: newInbox()}}}, nil)
	wait.Until(t, "it is said", func() bool { return log.String() != "" })
	r.stop()
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
	r = start(t, &service.Service{Pool: pool, Relay: newRelay()}, nil)
	wait.Until(t, "the relay has its lanes", func() bool {
		return pgtest.Count(t, db, "select count(*) from holdfast.lane where owner is not null") > 0
	})
	r.stop()
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
	in := newInbox()
	r = start(t, &service.Service{Pool: pool, Consumers: []service.Consumer{{Inbox: in}}}, nil)
	wait.Until(t, "the inbox runs", func() bool { return in.Health(t.Context()).Ready })
	r.stop()
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
	lines := logtest.Lines[struct {
		Msg, Parts          string
		Connections, Needed int
	}](t, log.String())
	if len(lines) != 1 || lines[0].Connections != 12 || lines[0].Needed != 14 || !strings.Contains(lines[0].Parts, "relay a: 4") || !strings.Contains(lines[0].Parts, "consumer billing: 10") {
		t.Errorf("got %+v", lines)
	}
}
