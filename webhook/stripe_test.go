package webhook

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// stripeOrder is a delivery as Stripe sends it: pending is how many endpoints have not acknowledged the event yet.
func stripeOrder(id string, pending, cents int) (http.Header, string) {
	body := fmt.Sprintf("{\n  \"id\": %q,\n  \"object\": \"event\",\n  \"created\": 1614265330,\n  \"data\": {\"object\": {\"amount\": %d}},\n  \"pending_webhooks\": %d,\n  \"type\": \"order.placed\"\n}", id, cents, pending)
	h, err := sign.Stripe(now, []byte(body), stripeSecret)
	if err != nil {
		panic(err)
	}
	return h, body
}

// W15.
func TestStripe_WhatStripeCountsInAnEventMakesItNoOther(t *testing.T) {
	for _, mode := range []Mode{Inline, StoreFirst} {
		t.Run(string(mode), func(t *testing.T) {
			b := setup(t)
			s := b.receiver("stripe", AnyOf(must(Stripe(stripeSecret))), func(c *Config) { c.Mode = mode })
			h, first := stripeOrder("evt_1", 2, 100)
			b.want(map[Mode]int{Inline: 200, StoreFirst: 202}[mode], s, h, first)
			again := func(status, pending, cents int) {
				t.Helper()
				h, body := stripeOrder("evt_1", pending, cents)
				b.want(status, s, h, body)
			}
			again(200, 1, 100) // The other endpoint has acknowledged it.
			if out := b.lastAnswer().Outcome; out != inbox.Duplicate {
				t.Errorf("a try with another count is %s, want a duplicate", out)
			}
			b.run()
			b.await("evt_1", inbox.Handled)
			again(200, 0, 100)
			if n := b.count("select count(*) from holdfast.letter"); n != 0 {
				t.Errorf("%d letters, want none", n)
			}
			if n := b.count("select count(*) from effect where body = $1", []byte(first)); n != 1 || b.effects() != 1 {
				t.Errorf("%d effects, %d of them of the bytes that came first, want one", b.effects(), n)
			}
			for _, pending := range []int{2, 1} { // the same other payload, counted differently
				again(409, pending, 900)
			}
			if n := b.count("select count(*) from holdfast.letter where reason like 'conflict%'"); n != 1 || b.effects() != 1 {
				t.Errorf("%d letters and %d effects of another amount, want one letter and no effect", n, b.effects())
			}
		})
	}
}

// While its API version is upgraded, Stripe sends each event to two endpoints, in two versions: to one address, with two secrets.
func TestStripe_TwoVersionsOfStripesApiAreOneEvent(t *testing.T) {
	const other = "whsec_the-endpoint-of-the-new-version"
	for _, mode := range []Mode{Inline, StoreFirst} {
		t.Run(string(mode), func(t *testing.T) {
			b := setup(t)
			s := b.receiver("stripe", must(Stripe(stripeSecret, other)), func(c *Config) { c.Mode = mode })
			deliver := func(status int, secret, version, data string, pending int) {
				t.Helper()
				body := fmt.Sprintf(`{"id": "evt_1", "api_version": %q, "data": {"object": %s}, "pending_webhooks": %d, "type": "order.placed"}`, version, data, pending)
				h, err := sign.Stripe(now, []byte(body), secret)
				if err != nil {
					t.Fatal(err)
				}
				b.want(status, s, h, body)
			}
			const before, after = `{"amount": 100}`, `{"amount": {"value": 100}}`
			b.failWith("evt_1", retry.Permanent(errors.New("no such order")))
			b.run()
			deliver(map[Mode]int{Inline: 200, StoreFirst: 202}[mode], stripeSecret, "2024-06-20", before, 2)
			deliver(200, other, "2025-03-31.basil", after, 1)
			b.await("evt_1", inbox.Dead)
			letters, err := dlq.New(b.db.Pool, dlq.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if err := letters.Edit(t.Context(), 1, []byte(before), "ann", "it is known"); err != nil {
				t.Fatal(err)
			}
			deliver(200, other, "2025-03-31.basil", after, 0) // It was edited meanwhile.
			b.failWith("evt_1", nil)
			replay(b)
			b.await("evt_1", inbox.Handled)
			deliver(200, other, "2025-03-31.basil", after, 1)
			deliver(200, stripeSecret, "2024-06-20", before, 0)
			deliver(409, stripeSecret, "2024-06-20", `{"amount": 900}`, 0) // other content in the same version
			if n := b.count("select count(*) from holdfast.letter where reason like 'conflict%'"); n != 1 || b.effects() != 1 {
				t.Errorf("%d conflicts and %d effects, want one each", n, b.effects())
			}
		})
	}
}

// A row of before versions were compared knows its own version again.
func TestStripe_ARowWithoutAVersionOfStripesIsKnownAgain(t *testing.T) {
	b := setup(t)
	s := b.receiver("stripe", must(Stripe(stripeSecret)))
	body := `{"id": "evt_1", "api_version": "2024-06-20", "pending_webhooks": 2, "type": "order.placed"}`
	h, err := sign.Stripe(now, []byte(body), stripeSecret)
	if err != nil {
		t.Fatal(err)
	}
	b.want(200, s, h, body)
	if _, err := b.db.Exec(t.Context(), "update holdfast.inbox set hash = $1", stripeContent([]byte(body))); err != nil {
		t.Fatal(err)
	}
	b.want(200, s, h, body)
	if out := b.lastAnswer().Outcome; out != inbox.Duplicate {
		t.Errorf("it is %s, want a duplicate", out)
	}
}

// W15.
func TestStripe_ALetterOfStripesIsKnownByItsFirstPayloadAfterAnEdit(t *testing.T) {
	for _, mode := range []Mode{Inline, StoreFirst} {
		t.Run(string(mode), func(t *testing.T) {
			b := setup(t)
			s := b.receiver("stripe", must(Stripe(stripeSecret)), func(c *Config) { c.Mode = mode })
			deliver := func(status, pending, cents int) {
				t.Helper()
				h, body := stripeOrder("evt_1", pending, cents)
				b.want(status, s, h, body)
			}
			edited := func(cents int) []byte { _, body := stripeOrder("evt_1", 2, cents); return []byte(body) }
			b.failWith("evt_1", retry.Permanent(errors.New("no such order")))
			b.run()
			deliver(map[Mode]int{Inline: 200, StoreFirst: 202}[mode], 2, 100)
			b.await("evt_1", inbox.Dead)
			letters, err := dlq.New(b.db.Pool, dlq.Config{})
			if err != nil {
				t.Fatal(err)
			}
			for _, cents := range []int{200, 300} {
				if err := letters.Edit(t.Context(), 1, edited(cents), "ann", "the wrong amount"); err != nil {
					t.Fatal(err)
				}
			}
			deliver(200, 1, 100) // edited, not replayed yet
			b.failWith("evt_1", nil)
			replay(b)
			b.await("evt_1", inbox.Handled)
			deliver(200, 2, 100)
			deliver(200, 1, 100)
			deliver(200, 2, 200) // to the byte what the second edit took away
			deliver(200, 2, 300) // and what was handled
			deliver(409, 1, 400)
			if n := b.count("select count(*) from effect where body = $1", edited(300)); n != 1 || b.effects() != 1 {
				t.Errorf("%d effects, %d of them of what it was edited to, want one", b.effects(), n)
			}
		})
	}
}

func TestStripe_WhatIsTheSameOfAnEventAtEachTryOfStripes(t *testing.T) {
	const body = `{"id": "evt_1", "data": {"pending_webhooks": 7}, "pending_webhooks": 2, "type": "a"}`
	for _, c := range []struct {
		name, body string
		same       bool
	}{
		{"the count is lower", strings.Replace(body, ": 2,", ": 1,", 1), true},
		{"the count has more digits", strings.Replace(body, ": 2,", ": 10,", 1), true},
		{"the name is written with an escape", strings.Replace(body, `"pending_webhooks": 2`, `"pending\u005fwebhooks": 2`, 1), false},
		{"the object that it is about has another", strings.Replace(body, ": 7", ": 8", 1), false},
		{"it is no count, and may say anything", strings.Replace(body, ": 2,", `: {"amount": 2},`, 1), false},
		{"it is negative", strings.Replace(body, ": 2,", ": -2,", 1), false},
		{"it is not there", strings.Replace(body, `"pending_webhooks": 2, `, "", 1), false},
		{"another field", strings.Replace(body, "evt_1", "evt_2", 1), false},
		{"a space more", body + " ", false},
	} {
		if got := bytes.Equal(stripeContent([]byte(body)), stripeContent([]byte(c.body))); got != c.same {
			t.Errorf("%s: the same is %t, want %t", c.name, got, c.same)
		}
	}
	for _, none := range []string{"", "[]", "1", `{"id": "evt_1"}`, `{"pending_webhooks": "2"}`, `{"pending_webhooks": 2.5}`} {
		if got := stripeContent([]byte(none)); got != nil {
			t.Errorf("%q: %x, want the body itself to be compared", none, got)
		}
	}
}
