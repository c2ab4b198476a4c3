package webhook

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// bundle is what a test has: a database with a table for effects, an inbox that writes them, and what was told.
type bundle struct {
	*testing.T
	db  *pgtest.DB
	in  *inbox.Inbox
	log *logtest.Log

	mu       sync.Mutex
	fail     map[string]error // what the handler of an event returns
	begun    chan string      // an event whose handler waits
	gates    map[string]chan struct{}
	outcomes chan inbox.Received
	answered []Answered
	refusals []Refused
}

func setup(t *testing.T, change ...func(*inbox.Config)) *bundle {
	t.Helper()
	t.Parallel()
	b := &bundle{T: t, db: migrated.New(t), log: &logtest.Log{}, fail: map[string]error{}, begun: make(chan string, 100),
		gates: map[string]chan struct{}{}, outcomes: make(chan inbox.Received, 1000)}
	pgtest.Exec(t, b.db, "create table effect (n bigint generated always as identity, id text, source text, body bytea)")
	b.in = b.inbox(change...)
	return b
}

// inbox makes one whose handler of "order.placed" and "push" writes an effect.
func (b *bundle) inbox(change ...func(*inbox.Config)) *inbox.Inbox {
	b.Helper()
	c := inbox.Config{
		Consumer:         "shop",
		Retry:            retry.Policy{Attempts: 3, Base: time.Millisecond, Cap: 5 * time.Millisecond},
		ImmediateRetries: -1,
		Timeout:          20 * time.Second,
		PollMin:          2 * time.Millisecond, PollMax: 20 * time.Millisecond,
		Observer: inbox.Observer{OnReceive: func(r inbox.Received) { b.outcomes <- r }},
		Logger:   slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&c)
	}
	in, err := inbox.New(b.db.Pool, c)
	if err != nil {
		b.Fatal(err)
	}
	for _, eventType := range []string{"order.placed", "push", "orders/create", "orders/paid", "app_mention"} {
		in.Handle(eventType, b.handle)
	}
	return in
}

func (b *bundle) handle(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	b.mu.Lock()
	gate, err := b.gates[e.ID], b.fail[e.ID]
	b.mu.Unlock()
	if gate != nil {
		b.begun <- e.ID
		<-gate
		b.mu.Lock()
		err = b.fail[e.ID]
		b.mu.Unlock()
	}
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "insert into effect (id, source, body) values ($1, $2, $3)", e.ID, e.Source, e.Payload)
	return err
}

// gate makes the handler of an event wait until open is called.
func (b *bundle) gate(id string) (open func()) {
	gate := make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gates[id] = gate
	open = sync.OnceFunc(func() { close(gate) })
	b.Cleanup(open)
	return open
}

// held sends a delivery whose handler waits at its gate, and returns once it does. Its answer comes when the gate is open.
func (b *bundle) held(s *httptest.Server, h http.Header, body string) (answer <-chan reply) {
	b.Helper()
	answered := make(chan reply, 1)
	go func() {
		r, _ := send(context.Background(), s.URL, "POST", h, strings.NewReader(body))
		answered <- r
	}()
	<-b.begun
	return answered
}

func (b *bundle) failWith(id string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail[id] = err
}

func (b *bundle) count(sql string, args ...any) int64 {
	b.Helper()
	return pgtest.Count(b, b.db, sql, args...)
}

func (b *bundle) effects() int64 { b.Helper(); return b.count("select count(*) from effect") }

// receiver is a server with one endpoint.
func (b *bundle) receiver(source string, v Verifier, change ...func(*Config)) *httptest.Server {
	b.Helper()
	return b.receiverOf(b.in, source, v, change...)
}

func (b *bundle) receiverOf(in *inbox.Inbox, source string, v Verifier, change ...func(*Config)) *httptest.Server {
	b.Helper()
	c := Config{SharedSource: true, NowFunc: func() time.Time { return now }, Observer: Observer{
		OnRefused:  func(r Refused) { b.mu.Lock(); defer b.mu.Unlock(); b.refusals = append(b.refusals, r) },
		OnDelivery: func(a Answered) { b.mu.Lock(); defer b.mu.Unlock(); b.answered = append(b.answered, a) },
	}}
	for _, f := range change {
		f(&c)
	}
	h, err := New(in, source, v, c)
	if err != nil {
		b.Fatal(err)
	}
	s := httptest.NewServer(h)
	b.Cleanup(s.Close)
	return s
}

// reply is an answer, read to its end.
type reply struct {
	status int
	header http.Header
	body   string
}

func (b *bundle) post(s *httptest.Server, h http.Header, body string) reply {
	b.Helper()
	r, err := send(b.Context(), s.URL, http.MethodPost, h, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	return r
}

func send(ctx context.Context, url, method string, h http.Header, body io.Reader) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return reply{}, err
	}
	for name, values := range h {
		req.Header[name] = values
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(text)}, err
}

// want posts a delivery and wants a status.
func (b *bundle) want(status int, s *httptest.Server, h http.Header, body string) reply {
	b.Helper()
	r := b.post(s, h, body)
	if r.status != status {
		b.Fatalf("the answer is %d %s, want %d", r.status, r.body, status)
	}
	if retryAfter := r.header.Get("Retry-After"); (status == http.StatusServiceUnavailable) != (retryAfter != "") {
		b.Errorf("the answer %d has Retry-After %q", status, retryAfter)
	}
	return r
}

// order is a delivery of Standard Webhooks, signed.
func order(id string) (http.Header, string) {
	body := fmt.Sprintf(`{"type":"order.placed","order":%q}`, id)
	h, err := sign.Standard(id, now, []byte(body), macSecret)
	if err != nil {
		panic(err)
	}
	return h, body
}

func (b *bundle) shop(change ...func(*Config)) *httptest.Server {
	b.Helper()
	return b.receiver("shop", must(Standard(macSecret)), change...)
}

// run runs the inbox's worker until the test ends.
func (b *bundle) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done, in := make(chan error, 1), b.in
	go func() { done <- in.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Errorf("Run returned %v", err)
		}
	})
}

func (b *bundle) await(id string, want inbox.Outcome) {
	b.Helper()
	deadline := time.After(wait.Limit())
	for {
		select {
		case r := <-b.outcomes:
			if r.Event.ID == id && r.Outcome == want {
				return
			}
		case <-deadline:
			b.Fatalf("waited %v for %s of %s", wait.Limit(), want, id)
		}
	}
}

func (b *bundle) lastRefusal() Refused {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.refusals) == 0 {
		return Refused{}
	}
	return b.refusals[len(b.refusals)-1]
}

func (b *bundle) lastAnswer() Answered {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.answered) == 0 {
		return Answered{}
	}
	return b.answered[len(b.answered)-1]
}
