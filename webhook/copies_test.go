package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// W13.
func TestCopies_ADeliveryThatComesAgainIsAcknowledgedAndHandledOnce(t *testing.T) {
	b := setup(t)
	s := b.shop()
	h, body := order("1")
	for range 3 {
		if r := b.want(200, s, h, body); r.body != "" {
			t.Errorf("the answer says %q", r.body)
		}
	}
	b.failWith("2", errors.New("no"))
	b.want(202, s, must2(order("2")), `{"type":"order.placed","order":"2"}`)
	if b.effects() != 1 || b.lastAnswer().Outcome != inbox.Retrying {
		t.Errorf("%d effects, want 1", b.effects())
	}
	// A second consumer of the same endpoint's events has its own.
	other := b.inbox(func(c *inbox.Config) { c.Consumer = "billing" })
	b.want(200, b.receiverOf(other, "shop", must(Standard(macSecret))), h, body)
	if b.effects() != 2 {
		t.Errorf("%d effects, want one for each consumer", b.effects())
	}
}

func must2(h http.Header, _ string) http.Header { return h }

// W13, W14.
func TestCopies_FiftyCopiesAtOnceAreHandledOnceAndThenAcknowledged(t *testing.T) {
	b := setup(t)
	for _, mode := range []Mode{Inline, StoreFirst} {
		s := b.shop(func(c *Config) { c.Mode = mode })
		h, body := order("at-once-" + string(mode))
		var taken atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for {
					r, err := send(t.Context(), s.URL, "POST", h, strings.NewReader(body))
					switch {
					case err != nil:
						t.Error(err)
					case r.status == 200 || r.status == 202:
						if n := b.count("select count(*) from holdfast.inbox where event_id = $1", h.Get("webhook-id")); n != 1 {
							t.Error("acknowledged before it was committed")
						}
						taken.Add(1)
					case r.status == 503:
						continue
					default:
						t.Errorf("the answer is %d", r.status)
					}
					return
				}
			})
		}
		wg.Wait()
		if taken.Load() != 50 {
			t.Errorf("%s: %d of 50 were acknowledged in the end", mode, taken.Load())
		}
	}
	b.run()
	b.await("at-once-store", inbox.Handled)
	if b.effects() != 2 {
		t.Errorf("%d effects, want one of each mode", b.effects())
	}
}

// W14.
func TestCopies_ACopyOfADeliveryInProgressMustComeAgain(t *testing.T) {
	b := setup(t)
	s := b.shop()
	open := b.gate("1")
	h, body := order("1")
	first := b.held(s, h, body)
	r := b.want(503, s, h, body)
	if r.header.Get("Retry-After") != "5" || !errors.Is(b.lastAnswer().Err, inbox.ErrInFlight) || b.lastAnswer().Outcome != "" {
		t.Errorf("Retry-After %q, told %+v", r.header.Get("Retry-After"), b.lastAnswer())
	}
	b.want(200, s, must2(order("2")), `{"type":"order.placed","order":"2"}`) // Others are not held up.
	// The first fails after all: had the copy been acknowledged on its word, nobody would have had it.
	b.failWith("1", errors.New("not yet"))
	open()
	if r := <-first; r.status != 202 {
		t.Errorf("the first is answered %d", r.status)
	}
	b.want(200, s, h, body)
	b.failWith("1", nil)
	b.run()
	b.await("1", inbox.Handled)
	if b.effects() != 2 {
		t.Errorf("%d effects, want 2", b.effects())
	}
}

// W14.
func TestCopies_CopiesOfASlowDeliveryLeaveConnectionsForTheOthers(t *testing.T) {
	b := setup(t)
	small, err := inbox.New(b.db.PoolOf(t, 2), b.in.Config())
	if err != nil {
		t.Fatal(err)
	}
	small.Handle("order.placed", b.handle)
	s := b.receiverOf(small, "shop", must(Standard(macSecret)))
	open := b.gate("1")
	h, body := order("1")
	first := b.held(s, h, body)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if r, err := send(t.Context(), s.URL, "POST", h, strings.NewReader(body)); err != nil || r.status != 503 {
				t.Errorf("a copy is answered %d, %v", r.status, err)
			}
		})
	}
	for n := range 5 {
		id := fmt.Sprint("other-", n)
		b.want(200, s, must2(order(id)), fmt.Sprintf(`{"type":"order.placed","order":%q}`, id))
	}
	wg.Wait()
	open()
	<-first
}

// W15.
func TestCopies_AnIdThatComesWithOtherBytesIsAConflictAndALetter(t *testing.T) {
	b := setup(t)
	for _, mode := range []Mode{Inline, StoreFirst} {
		s := b.shop(func(c *Config) { c.Mode = mode })
		h, body := order("1")
		b.post(s, h, body)
		other, err := sign.Standard("1", now, []byte(`{"type":"order.placed","order":"another"}`), macSecret)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			b.want(409, s, other, `{"type":"order.placed","order":"another"}`)
		}
		if b.lastAnswer().Outcome != inbox.Conflict {
			t.Errorf("told %+v", b.lastAnswer())
		}
		b.want(200, s, h, body)
	}
	if b.effects() != 1 || b.count("select count(*) from holdfast.letter where reason like 'conflict%' and state = 'open'") != 1 {
		t.Error("want one effect, and one letter of the other bytes")
	}
}

// W16.
func TestCopies_WithAnUnsignedIdARepeatIsRecognisedByItsBody(t *testing.T) {
	b := setup(t)
	github := func(id, body string) (http.Header, string) {
		h, err := sign.GitHub(id, "push", []byte(body), githubSecret)
		if err != nil {
			t.Fatal(err)
		}
		return h, body
	}
	deliver := func(c func(*Config), ids ...string) int64 {
		t.Helper()
		s, before := b.receiver("github-"+ids[0], must(GitHub(githubSecret)), c), b.effects()
		for _, id := range ids {
			h, body := github(id, `{"ref":"refs/heads/main"}`)
			if r := b.post(s, h, body); r.status != 200 {
				t.Errorf("%s is answered %d", id, r.status)
			}
		}
		return b.effects() - before
	}
	if n := deliver(func(*Config) {}, "a", "b", "a"); n != 1 {
		t.Errorf("by default %d effects of one body under two ids, want 1", n)
	}
	if n := deliver(func(c *Config) { c.Unsigned = ByID }, "c", "d", "c"); n != 2 {
		t.Errorf("by id %d effects of two ids, want 2", n)
	}
	// The id is not lost for it.
	if n := b.count("select count(*) from holdfast.inbox where event_id like 'sha256:%'"); n != 1 {
		t.Errorf("%d rows by body, want 1", n)
	}
	// Shopify tells of one order under two topics, with one body and one event id.
	shopify := b.receiver("shopify", must(Shopify(slackSecret)))
	byID := b.receiver("shopify-by-id", must(Shopify(slackSecret)), func(c *Config) { c.Unsigned = ByID })
	before := b.effects()
	for _, topic := range []string{"orders/create", "orders/paid", "orders/create"} {
		h, err := sign.Shopify("e-1", topic, []byte(`{"id":1}`), slackSecret)
		if err != nil {
			t.Fatal(err)
		}
		b.want(200, shopify, h, `{"id":1}`)
		b.want(200, byID, h, `{"id":1}`)
	}
	if n := b.effects() - before; n != 4 {
		t.Errorf("%d effects of two topics at two endpoints, want 4", n)
	}
	// A signed id is believed, whatever Unsigned says; none at all is made up for by the body.
	for _, unsigned := range []Identity{ByBody, ByID} {
		s := b.receiver("standard-"+string(unsigned), must(Standard(macSecret)), func(c *Config) { c.Unsigned = unsigned })
		b.want(200, s, must2(order("1")), `{"type":"order.placed","order":"1"}`)
		if b.lastAnswer().EventID != "1" {
			t.Errorf("%s: the event is %q", unsigned, b.lastAnswer().EventID)
		}
		h, body := github("", "{}")
		h.Del("X-GitHub-Delivery")
		g := b.receiver("github-"+string(unsigned), must(GitHub(githubSecret)), func(c *Config) { c.Unsigned = unsigned })
		b.want(200, g, h, body)
		if !strings.HasPrefix(b.lastAnswer().EventID, "sha256:") {
			t.Errorf("%s: an event without an id is %q", unsigned, b.lastAnswer().EventID)
		}
	}
}

// W23.
func TestCopies_ARowOfTheInboxSaysWhatBecameOfADelivery(t *testing.T) {
	b := setup(t)
	s := b.shop(func(c *Config) { c.KeyFunc = func(_ Delivery, body []byte) string { return "k" } })
	h, body := order("1")
	b.want(200, s, h, body)
	b.failWith("2", errors.New("not yet"))
	h2, body2 := order("2")
	b.want(202, s, h2, body2)
	for what, sql := range map[string]string{
		"of what was handled": `select count(*) from holdfast.inbox where consumer = 'shop' and source = 'shop' and event_id = '1' and topic = 'webhook.shop'
			and hash = sha256('order.placed\000'::bytea || $1) and result = 'handled' and attempts = 1 and processed_at is not null and received_at is not null`,
		"of what waits": `select count(*) from holdfast.inbox i join holdfast.stored s using (consumer, source, event_id)
			where event_id = '2' and i.result = 'stored' and i.processed_at is null and s.key = 'k' and s.attempts = 1 and s.errors = '{not yet}'
			and s.payload = convert_from($1, 'utf8')::text::bytea and s.type = 'order.placed' and s.time = to_timestamp(1800000000)`,
	} {
		payload := body
		if what == "of what waits" {
			payload = body2
		}
		if b.count(sql, []byte(payload)) != 1 {
			t.Errorf("the row %s does not say so", what)
		}
	}
}

// W25.
func TestCopies_ADeliveryAndAnEventOfAnotherWayAreOne(t *testing.T) {
	b := setup(t)
	h, body := order("1")
	b.want(200, b.shop(), h, body)
	e := holdfastEvent("1", body)
	if out, err := b.in.Receive(t.Context(), e); out != inbox.Duplicate || err != nil {
		t.Errorf("the same event by Receive is %q, %v", out, err)
	}
	e = holdfastEvent("2", `{"type":"order.placed","order":"2"}`)
	if out, err := b.in.Receive(t.Context(), e); out != inbox.Handled || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
	h2, body2 := order("2")
	b.want(200, b.shop(), h2, body2)
	if b.lastAnswer().Outcome != inbox.Duplicate || b.effects() != 2 {
		t.Errorf("told %+v, %d effects", b.lastAnswer(), b.effects())
	}
}
