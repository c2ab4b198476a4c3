package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/retry"
)

// story is what the chapters share.
type story struct {
	stories.Story
	config config

	gateway *gateway
	service *service
	http    *httptest.Server
	shop    *client
	charge  string // the payment that all refunds are for
	asked   []refund
	metrics *sdkmetric.ManualReader
	tracing *sdktrace.TracerProvider
}

func (s *story) start(ctx context.Context) (err error) {
	if err := s.Start(ctx, "refunds", s.config.DatabaseURL, tables); err != nil {
		return err
	}
	s.gateway = startGateway()
	s.AtEnd(s.gateway.http.Close)
	s.metrics, s.tracing = sdkmetric.NewManualReader(), sdktrace.NewTracerProvider()
	log := slog.New(slog.DiscardHandler)
	tel, err := newTelemetry(log, sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.metrics)), s.tracing)
	if err != nil {
		return err
	}
	s.service, err = newService(settings{pool: s.Pool, schema: s.Schema, gateway: s.gateway.http.URL, pace: hurried, telemetry: tel, log: log,
		forgetful: s.config.forgetful})
	if err != nil {
		return err
	}
	s.http = httptest.NewServer(s.service.mux)
	s.AtEnd(s.http.Close)
	s.shop = s.client()
	s.AtEnd(s.shop.close)
	s.Say("holdfast: a refund is paid and booked once, whatever fails and however often it is asked for\n\n%s\n", s.AboutPostgres)
	return nil
}

// client is a shop's, which asks the first of these nodes that is there, and then the one in this process.
func (s *story) client(before ...string) *client {
	return newClient("Bearer teashop-token", s.tracing.Tracer("shop"), retry.Policy{}, append(before, s.http.Listener.Addr().String())...)
}

// ask asks for an operation, and says how it was answered.
func (s *story) ask(ctx context.Context, what, path, key string, body any, want int) (answer, error) {
	a, err := s.shop.post(ctx, path, key, body)
	if err != nil {
		return a, err
	}
	said := strings.TrimSpace(a.id + " " + a.state)
	if a.code != "" {
		said = a.code
	}
	if a.attempts > 1 {
		said += fmt.Sprintf(", after %d attempts", a.attempts)
	}
	if a.replayed {
		said += ", replayed"
	}
	s.Say("    %d  %s: %s", a.status, what, said)
	if a.status != want {
		return a, stories.Broken("%s is answered %d, not %d: %s", what, a.status, want, a.body)
	}
	return a, nil
}

// refund asks for a refund that is to be made.
func (s *story) refund(ctx context.Context, what, key string, cents int64) (answer, error) {
	return s.ask(ctx, what, "/refunds", key, s.expected(cents), 201)
}

// expected is a refund that is to be made: the check counts on it.
func (s *story) expected(cents int64) refund {
	f := refund{Charge: s.charge, Cents: cents}
	s.asked = append(s.asked, f)
	return f
}

// key is made of what it stands for: what is refunded, how much, and something of its own.
func (s *story) key(cents int64) string { return newKey(fmt.Sprintf("refund:%s:%d", s.charge, cents)) }

// newKey is a key that says what it is for.
func newKey(what string) string { return what + ":" + strings.ToLower(rand.Text()[:8]) }

// same asks for what was asked for before, and wants the same answer to the byte.
func (s *story) same(ctx context.Context, path, key string, body any, first answer) error {
	a, err := s.ask(ctx, "the same", path, key, body, first.status)
	if err == nil && (a.body != first.body || !a.replayed) {
		err = stories.Broken("what is asked for once more is answered %q, not %q", a.body, first.body)
	}
	return err
}

func (s *story) refunded(ctx context.Context) error {
	s.Say("1. A customer pays 900.00 and gets 10.00 back. The answers are lost on their way: the shop asks again")
	cart := newKey("payment")
	paid, err := s.ask(ctx, "the payment", "/payments", cart, payment{Cents: 900_00}, 201)
	if err != nil {
		return err
	}
	s.charge = paid.id
	if err := s.same(ctx, "/payments", cart, payment{Cents: 900_00}, paid); err != nil {
		return err
	}
	key := s.key(10_00)
	first, err := s.refund(ctx, "the refund", key, 10_00)
	if err != nil {
		return err
	}
	if err := s.same(ctx, "/refunds", key, refund{Charge: s.charge, Cents: 10_00}, first); err != nil {
		return err
	}
	if _, err = s.ask(ctx, "another amount under its key", "/refunds", key, refund{Charge: s.charge, Cents: 20_00}, 409); err != nil {
		return err
	}
	if _, err = s.refund(ctx, "the same amount under another key", s.key(10_00), 10_00); err != nil {
		return err
	}
	_, err = s.ask(ctx, "more than was paid", "/refunds", s.key(900_00), refund{Charge: s.charge, Cents: 900_00}, 422)
	return err
}

func (s *story) troubled(ctx context.Context) error {
	s.Say("2. The gateway has its troubles")
	s.gateway.expect(hangsAfter, away, hangsBefore)
	before := s.gateway.asked()
	first, err := s.refund(ctx, "a refund that it pays without an answer, then 503, then nothing", s.key(11_00), 11_00)
	if err != nil {
		return err
	}
	s.Say("         it was asked %d times, and paid %d", s.gateway.asked()-before, len(s.gateway.of(first.id)))
	s.gateway.expect(declines)
	key := s.key(12_00)
	if first, err = s.ask(ctx, "one that it declines", "/refunds", key, refund{Charge: s.charge, Cents: 12_00}, 402); err != nil {
		return err
	}
	return s.same(ctx, "/refunds", key, refund{Charge: s.charge, Cents: 12_00}, first)
}

// copies is how many come at once.
const copies = 50

func (s *story) crowded(ctx context.Context) error {
	s.Say("3. %d copies of one refund come at once", copies)
	key, asked := s.key(13_00), s.expected(13_00)
	answers, errs := make([]answer, copies), make([]error, copies)
	var all sync.WaitGroup
	for i := range copies {
		all.Go(func() {
			answers[i], errs[i] = s.shop.post(ctx, "/refunds", key, asked)
		})
	}
	all.Wait()
	bodies := map[string]int{}
	for i, a := range answers {
		if errs[i] != nil {
			return errs[i]
		}
		bodies[fmt.Sprintf("%d  %s", a.status, a.id)]++
	}
	for said, n := range bodies {
		s.Say("    %s, %d times", said, n)
	}
	if len(bodies) != 1 {
		return stories.Broken("copies of one refund have %d answers", len(bodies))
	}
	return nil
}

// dying is a node of the service that ends when the gateway has paid.
func (s *story) dying() (*node, error) {
	return startNode(s.config.self(), s.Pool.Config().ConnString(), s.Pool.Config().ConnConfig.RuntimeParams["search_path"], s.Schema, s.gateway.http.URL)
}

func (s *story) crashed(ctx context.Context) error {
	s.Say("4. The service's process ends when the gateway has paid and nothing of that is recorded")
	n, err := s.dying()
	if err != nil {
		return err
	}
	shop := s.shop
	s.shop = s.client(n.address)
	_, err = s.refund(ctx, "the shop asks another node", s.key(14_00), 14_00)
	s.shop.close()
	s.shop = shop
	if status := n.wait(); err == nil && status != exitPaid {
		err = fmt.Errorf("the node ends with status %d, not %d", status, exitPaid)
	}
	return err
}

func (s *story) abandoned(ctx context.Context) error {
	s.Say("5. It ends again, and this time the shop does not come back")
	n, err := s.dying()
	if err != nil {
		return err
	}
	once := newClient(s.shop.token, s.tracing.Tracer("shop"), retry.Policy{Attempts: 1}, n.address)
	_, err = once.post(ctx, "/refunds", s.key(15_00), s.expected(15_00))
	once.close()
	if status := n.wait(); err == nil || status != exitPaid {
		return fmt.Errorf("the node ends with status %d, not %d, and answers %v", status, exitPaid, err)
	}
	if err := finish(ctx, s.service, "select count(*) = 1 from refunds where cents = 1500 and receipt is not null"); err != nil {
		return err
	}
	s.Say("         Run finishes it on another node: nobody has to ask")
	return nil
}

// finish runs what finishes abandoned requests until a query says that something is so.
func finish(ctx context.Context, s *service, query string) error {
	return stories.RunUntil(ctx, so(s.pool, query), s.guard.Run)
}

// so asks whether something is so.
func so(db stories.Database, query string, args ...any) func(context.Context) (bool, error) {
	return func(ctx context.Context) (yes bool, err error) {
		err = db.QueryRow(ctx, query, args...).Scan(&yes)
		return yes, err
	}
}

// deliver sends a payout's webhook, and wants it to be answered as said.
func (s *story) deliver(ctx context.Context, what string, m movement, want int) error {
	status, err := s.gateway.notify(ctx, s.http.URL+"/hooks/gateway", m)
	if err != nil {
		return err
	}
	if what != "" {
		s.Say("    %d  %s", status, what)
	}
	if status != want {
		return stories.Broken("the webhook of %s is answered %d, not %d", m.Reference, status, want)
	}
	return nil
}

func (s *story) notified(ctx context.Context) error {
	s.Say("6. The gateway reports by webhook that refunds have arrived")
	// One that the webhook reports while its request is still being carried out.
	var early error
	s.service.at = func(where place, reference string) {
		if where != whenPaid {
			return
		}
		early = s.deliver(ctx, "before the service has recorded that it was paid", s.gateway.of(reference)[0], 200)
	}
	_, err := s.refund(ctx, "the refund itself", s.key(16_00), 16_00)
	s.service.at = func(place, string) {}
	if err = errors.Join(err, early); err != nil {
		return err
	}
	n := 0
	for _, m := range s.gateway.statement() {
		if m.Kind != "payouts" {
			continue
		}
		for range 2 {
			if err := s.deliver(ctx, "", m, 200); err != nil {
				return err
			}
		}
		n++
	}
	s.Say("    200  each of the %d payouts, and each once more: the answer was lost on its way", n)
	return stories.Work(ctx, s.service.in, s.Pool, s.Schema)
}

func (s *story) voided(ctx context.Context) error {
	s.Say("7. Another payment is taken back as a whole, and its answer lost")
	paid, err := s.ask(ctx, "the payment", "/payments", newKey("payment"), payment{Cents: 70_00}, 201)
	if err != nil {
		return err
	}
	s.gateway.expect(hangsAfter)
	key := "void:" + paid.id
	void, err := s.ask(ctx, "the void, which the gateway makes without an answer", "/payments/"+paid.id+"/void", key, nil, 201)
	if err != nil {
		return err
	}
	if err := s.same(ctx, "/payments/"+paid.id+"/void", key, nil, void); err != nil {
		return err
	}
	_, err = s.ask(ctx, "a refund of it", "/refunds", s.key(1_00), refund{Charge: paid.id, Cents: 1_00}, 409)
	return err
}
