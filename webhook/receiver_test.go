package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/pgtest"
	"github.com/holdfast-go/holdfast/retry"
)

// Rows W1, W2, W9 and W13 to W25 of the table in docs/webhooks.md: what becomes of a delivery.

func TestOnlyAPostOfPlainBytesThatAreNotTooManyIsADelivery(t *testing.T) { // W1
	b := setup(t)
	s := b.shop(func(c *Config) { c.MaxBody = 100 })
	h, body := order("1")
	with := func(pairs ...string) http.Header {
		h := h.Clone()
		for name, values := range headers(pairs...) {
			h[name] = values
		}
		return h
	}
	for _, c := range []struct {
		name, method string
		h            http.Header
		body         io.Reader
		want         int
		header       string
		reason       Reason
	}{
		{"a GET", "GET", h, nil, 405, "Allow: POST", ReasonMethod},
		{"a PUT", "PUT", h, strings.NewReader(body), 405, "Allow: POST", ReasonMethod},
		{"an OPTIONS", "OPTIONS", h, nil, 405, "Allow: POST", ReasonMethod},
		{"a compressed body", "POST", with("Content-Encoding", "gzip"), strings.NewReader(body), 415, "Accept-Encoding: identity", ReasonEncoding},
		{"a body twice compressed", "POST", with("Content-Encoding", "identity", "Content-Encoding", "br"), strings.NewReader(body), 415, "", ReasonEncoding},
		{"a large body", "POST", h, strings.NewReader(strings.Repeat("x", 101)), 413, "", ReasonSize},
		{"a large body of unsaid length", "POST", h, io.MultiReader(strings.NewReader(strings.Repeat("x", 101))), 413, "", ReasonSize},
		{"a body that fits exactly, and is not signed", "POST", h, strings.NewReader(strings.Repeat("x", 100)), 401, "Www-Authenticate: Signature", ReasonMismatch},
		{"a body that is said to be as it is", "POST", with("Content-Encoding", "Identity"), strings.NewReader(body), 200, "", ""},
	} {
		r, err := send(t.Context(), s.URL, c.method, c.h, c.body)
		if err != nil || r.status != c.want {
			t.Errorf("%s: %d %s, %v; want %d", c.name, r.status, r.body, err, c.want)
		}
		if name, value, _ := strings.Cut(c.header, ": "); c.header != "" && r.header.Get(name) != value {
			t.Errorf("%s: %s is %q", c.name, name, r.header.Get(name))
		}
		if c.reason != "" && (b.lastRefusal().Reason != c.reason || b.lastRefusal().Status != c.want || b.lastRefusal().Source != "shop") {
			t.Errorf("%s: told %+v", c.name, b.lastRefusal())
		}
	}
	if b.effects() != 1 {
		t.Errorf("%d effects, want 1", b.effects())
	}
}

func TestABodyThatEndsEarlyIsNoDelivery(t *testing.T) { // W1
	b := setup(t)
	h, _ := order("1")
	rec, req := recorder(), request(h, io.MultiReader(strings.NewReader("{"), errReader{}))
	handler, err := New(b.in, "shop", must(Standard(macSecret)), Config{})
	if err != nil {
		t.Fatal(err)
	}
	if handler.ServeHTTP(rec, req); rec.Code != http.StatusBadRequest {
		t.Errorf("the answer is %d", rec.Code)
	}
}

func TestWhoeverForgesIsRefusedBeforeTheDatabaseIsAskedAndNotToldWhy(t *testing.T) { // W2
	b := setup(t)
	gone, err := pgxpool.NewWithConfig(t.Context(), b.db.Config())
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	in, err := inbox.New(gone, b.in.Config())
	if err != nil {
		t.Fatal(err)
	}
	s := b.receiverOf(in, "shop", must(Standard(macSecret)))
	h, body := order("1")
	without := h.Clone()
	without.Del("webhook-signature")
	old, err := SignStandard("1", now.Add(-time.Hour), []byte(body), macSecret)
	if err != nil {
		t.Fatal(err)
	}
	var answers []string
	for reason, c := range map[Reason]struct {
		h    http.Header
		body string
	}{
		ReasonMissing: {without, body}, ReasonTooOld: {old, body},
		ReasonMismatch:  {h, strings.Replace(body, ":", ": ", 1)}, // the same JSON, written anew
		ReasonMalformed: {headers("webhook-id", "a.b", "webhook-timestamp", "1", "webhook-signature", "x"), body},
	} {
		r := b.want(http.StatusUnauthorized, s, c.h, c.body)
		answers = append(answers, r.body)
		if got := b.lastRefusal(); got.Reason != reason || got.Err == nil {
			t.Errorf("told %+v, want %s", got, reason)
		}
		if !strings.Contains(b.log.String(), "reason="+string(reason)) {
			t.Errorf("the log does not say %s", reason)
		}
		if r.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("the answer is %s", r.header.Get("Content-Type"))
		}
	}
	if slices.Sort(answers); answers[0] != answers[3] || answers[0] != `{"type":"about:blank","title":"Unauthorized","status":401}` {
		t.Errorf("the answers are %q", answers)
	}
	// One that is not forged gets as far as the database.
	b.want(http.StatusServiceUnavailable, s, h, body)
}

func TestNothingThatIsSecretIsLoggedOrStored(t *testing.T) { // W2
	b := setup(t)
	s := b.shop(func(c *Config) { c.Headers = []string{"Content-Type", "X-Request-Id"} })
	h, body := order("1")
	h.Set("Authorization", "Bearer hush")
	h.Set("X-Request-Id", "r-1")
	h.Set("Content-Type", "application/json")
	b.want(200, s, h, body)
	b.failWith("2", retry.Permanent(errors.New("no")))
	h2, body2 := order("2")
	h2.Set("X-Request-Id", "r-2")
	h2.Set("Content-Type", "application/\xff")
	b.want(200, s, h2, body2)
	b.want(401, s, h, body+" ")
	conflicting := `{"type":"order.placed","note":"hush"}`
	other, _ := SignStandard("1", now, []byte(conflicting), macSecret)
	b.want(409, s, other, conflicting)
	for _, secret := range []string{macSecret[6:], h.Get("webhook-signature")[3:], "hush", `"order"`} {
		if strings.Contains(b.log.String(), secret) {
			t.Errorf("the log has %q:\n%s", secret, b.log)
		}
	}
	if b.count(`select count(*) from holdfast.letter where event_id = '2' and headers = '{"x-request-id": "r-2"}'`) != 1 {
		t.Error("the letter does not have the chosen headers, and no others")
	}
}

func TestADeliveryThatComesAgainIsAcknowledgedAndHandledOnce(t *testing.T) { // W13
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

func TestFiftyCopiesAtOnceAreHandledOnceAndNoneIsAcknowledgedBefore(t *testing.T) { // W13, W14
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

func TestACopyOfADeliveryThatIsBeingHandledIsToldToComeAgain(t *testing.T) { // W14
	b := setup(t)
	s := b.shop()
	open := b.gate("1")
	h, body := order("1")
	first := make(chan reply, 1)
	go func() {
		r, _ := send(context.Background(), s.URL, "POST", h, strings.NewReader(body))
		first <- r
	}()
	<-b.begun
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

func TestCopiesOfASlowDeliveryLeaveConnectionsForTheOthers(t *testing.T) { // W14
	b := setup(t)
	c := b.db.Config()
	c.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	small, err := inbox.New(pool, b.in.Config())
	if err != nil {
		t.Fatal(err)
	}
	small.Handle("order.placed", b.handle)
	s := b.receiverOf(small, "shop", must(Standard(macSecret)))
	open := b.gate("1")
	h, body := order("1")
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = send(t.Context(), s.URL, "POST", h, strings.NewReader(body)) })
	<-b.begun
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
	open()
	wg.Wait()
}

func TestAnIdThatComesWithOtherBytesIsAConflictAndALetter(t *testing.T) { // W15
	b := setup(t)
	for _, mode := range []Mode{Inline, StoreFirst} {
		s := b.shop(func(c *Config) { c.Mode = mode })
		h, body := order("1")
		b.post(s, h, body)
		other, err := SignStandard("1", now, []byte(`{"type":"order.placed","order":"another"}`), macSecret)
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

func TestWithAnUnsignedIdARepeatIsRecognisedByItsBody(t *testing.T) { // W16
	b := setup(t)
	github := func(id, body string) (http.Header, string) {
		h, err := SignGitHub(id, "push", []byte(body), githubSecret)
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
		h, err := SignShopify("e-1", topic, []byte(`{"id":1}`), slackSecret)
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

func TestADeliveryThatIsStoredIsAcknowledgedBeforeItsHandlerEnds(t *testing.T) { // W17
	b := setup(t)
	s := b.shop(func(c *Config) { c.Mode = StoreFirst })
	b.run()
	open := b.gate("1")
	h, body := order("1")
	b.want(202, s, h, body)
	<-b.begun // and goes on for as long as it likes
	if b.effects() != 0 || b.count("select count(*) from holdfast.stored where event_id = '1'") != 1 {
		t.Error("it is not stored, or has been handled")
	}
	b.want(200, s, h, body) // It is durable, so that a copy need not come again.
	open()
	b.await("1", inbox.Handled)
	b.want(200, s, h, body)
	if b.effects() != 1 {
		t.Errorf("%d effects, want 1", b.effects())
	}
}

func TestWhatKeepsFailingBecomesALetterAndCanBeReplayed(t *testing.T) { // W18: the rest is shown by package inbox
	for _, mode := range []Mode{Inline, StoreFirst} {
		t.Run(string(mode), func(t *testing.T) {
			b := setup(t)
			s := b.shop(func(c *Config) { c.Mode = mode; c.KeyFunc = func(d Delivery, _ []byte) string { return "customer-1" } })
			b.failWith("1", errors.New("not in stock"))
			h, body := order("1")
			b.want(202, s, h, body)
			b.run()
			b.await("1", inbox.Dead)
			if n := b.count("select count(*) from holdfast.letter where event_id = '1' and attempts = 3 and cardinality(errors) = 3 and state = 'open' and key = 'customer-1'"); n != 1 {
				t.Errorf("%d letters with three errors, want 1", n)
			}
			b.want(200, s, h, body) // It has been given up; sending it again changes nothing.
			b.failWith("1", nil)
			replay(b)
			b.await("1", inbox.Handled)
			if b.effects() != 1 {
				t.Errorf("%d effects, want 1", b.effects())
			}
		})
	}
}

func TestATypeThatNobodyHandlesIsAcknowledgedAndCounted(t *testing.T) { // W20
	b := setup(t)
	for _, mode := range []Mode{Inline, StoreFirst} {
		s := b.receiver("github", must(GitHub(githubSecret)), func(c *Config) { c.Mode = mode })
		h, err := SignGitHub("1", "ping", []byte("{}"), githubSecret)
		if err != nil {
			t.Fatal(err)
		}
		b.want(200, s, h, "{}")
		if a := b.lastAnswer(); a.Outcome != inbox.Skipped || a.Delivery.Type != "ping" {
			t.Errorf("%s: told %+v", mode, a)
		}
	}
	if n := b.count("select count(*) from holdfast.inbox") + b.count("select count(*) from holdfast.stored"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	// A body without a type has one all the same, for a handler that takes everything.
	h, _ := SignStandard("1", now, []byte("plain"), macSecret)
	b.want(200, b.shop(), h, "plain")
	b.await("1", inbox.Skipped)
	s := b.shop(func(c *Config) { c.TypeFunc = func(Delivery, []byte) string { return "order.placed" } })
	b.want(200, s, h, "plain")
	if b.effects() != 1 {
		t.Error("TypeFunc was not asked")
	}
}

func TestAHandlersFailureIsTheInboxesToMendAndNotTheSenders(t *testing.T) { // W21
	b := setup(t)
	s := b.shop()
	b.failWith("1", errors.New("not yet"))
	h, body := order("1")
	b.want(202, s, h, body) // durable, and tried again here
	b.failWith("2", retry.Permanent(errors.New("never")))
	h2, body2 := order("2")
	b.want(200, s, h2, body2) // a letter, and sending it again would not help
	if n := b.count("select count(*) from holdfast.letter where event_id = '2' and state = 'open'"); n != 1 {
		t.Errorf("%d letters, want 1", n)
	}
	b.failWith("1", nil)
	b.run()
	b.await("1", inbox.Handled)
	rec := recorder()
	Gone().ServeHTTP(rec, request(h, strings.NewReader(body)))
	if rec.Code != http.StatusGone || !strings.Contains(rec.Body.String(), `"status":410`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestWhatNothingWasDecidedOnIsToComeAgain(t *testing.T) { // W21
	t.Run("the queue is full", func(t *testing.T) {
		b := setup(t, func(c *inbox.Config) { c.MaxStoredKey = 1 })
		s := b.shop(func(c *Config) {
			c.Mode = StoreFirst
			c.KeyFunc = func(Delivery, []byte) string { return "k" }
			c.RetryAfter = 1500 * time.Millisecond
		})
		b.want(202, s, must2(order("1")), `{"type":"order.placed","order":"1"}`)
		r := b.want(503, s, must2(order("2")), `{"type":"order.placed","order":"2"}`)
		if !errors.Is(b.lastAnswer().Err, inbox.ErrFull) || r.header.Get("Retry-After") != "2" {
			t.Errorf("told %+v, Retry-After %q", b.lastAnswer(), r.header.Get("Retry-After"))
		}
	})
	t.Run("the table is locked away for a moment", func(t *testing.T) {
		b := setup(t, func(c *inbox.Config) { c.Timeout, c.Grace = 50*time.Millisecond, 50*time.Millisecond })
		s := b.shop()
		tx, err := b.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, tx, "lock table holdfast.inbox")
		h, body := order("1")
		b.want(503, s, h, body)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.want(200, s, h, body)
	})
	t.Run("too many are in hand", func(t *testing.T) {
		b := setup(t)
		s := b.shop(func(c *Config) { c.Workers, c.Wait = 1, -1 })
		open := b.gate("1")
		h, body := order("1")
		first := make(chan reply, 1)
		go func() {
			r, _ := send(context.Background(), s.URL, "POST", h, strings.NewReader(body))
			first <- r
		}()
		<-b.begun
		b.want(503, s, must2(order("2")), `{"type":"order.placed","order":"2"}`)
		if !errors.Is(b.lastAnswer().Err, errBusy) {
			t.Errorf("told %+v", b.lastAnswer())
		}
		b.want(401, s, must2(order("2")), "forged") // Who forges takes no turn, and is told nothing new.
		open()
		if r := <-first; r.status != 200 {
			t.Errorf("the first is answered %d", r.status)
		}
		b.want(200, s, must2(order("2")), `{"type":"order.placed","order":"2"}`)
	})
}

func TestASenderThatGoesAwayLeavesItsDeliveryToBeHandled(t *testing.T) { // W17: one that never waits for as long as that
	b := setup(t)
	s := b.shop()
	open := b.gate("1")
	h, body := order("1")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := send(ctx, s.URL, "POST", h, strings.NewReader(body))
		left <- err
	}()
	<-b.begun
	leave()
	if err := <-left; err == nil {
		t.Fatal("it was answered")
	}
	open()
	b.await("1", inbox.Handled)
	b.want(200, s, h, body)
	if b.effects() != 1 {
		t.Errorf("%d effects, want 1", b.effects())
	}
}

func TestTheHandshakeIsAnsweredOnlyOnceItsSignatureWasFoundGood(t *testing.T) { // W9
	b := setup(t)
	s := b.receiver("slack", must(Slack(slackSecret)))
	const body = `{"type":"url_verification","token":"t","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P<b>"}`
	forged, err := SignSlack(now, []byte(body), "not the secret of the app")
	if err != nil {
		t.Fatal(err)
	}
	if r := b.want(401, s, forged, body); strings.Contains(r.body, "3eZ") {
		t.Errorf("a forged handshake is answered: %s", r.body)
	}
	h, err := SignSlack(now, []byte(body), slackSecret)
	if err != nil {
		t.Fatal(err)
	}
	r := b.want(200, s, h, body)
	if r.body != "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P<b>" || !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") || r.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%+v", r)
	}
	if a := b.lastAnswer(); a.EventID != "" || a.Status != 200 || b.count("select count(*) from holdfast.inbox") != 0 {
		t.Errorf("the handshake became an event: %+v", a)
	}
	const event = `{"type":"event_callback","event_id":"Ev1","event":{"type":"app_mention"}}`
	h, _ = SignSlack(now, []byte(event), slackSecret)
	b.want(200, s, h, event)
	if b.effects() != 1 {
		t.Error("an event of Slack's was not handled")
	}
}

func TestARowOfTheInboxSaysWhatBecameOfADelivery(t *testing.T) { // W23
	b := setup(t)
	s := b.shop(func(c *Config) { c.KeyFunc = func(_ Delivery, body []byte) string { return "k" } })
	h, body := order("1")
	b.want(200, s, h, body)
	b.failWith("2", errors.New("not yet"))
	h2, body2 := order("2")
	b.want(202, s, h2, body2)
	for what, sql := range map[string]string{
		"of what was handled": `select count(*) from holdfast.inbox where consumer = 'shop' and source = 'shop' and event_id = '1' and topic = 'webhook.shop'
			and hash = sha256($1) and result = 'handled' and attempts = 1 and processed_at is not null and received_at is not null`,
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

func TestADeliveryAndAnEventOfAnotherWayAreOne(t *testing.T) { // W25
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

func TestEachTenantsSecretIsGoodAtItsOwnEndpointOnly(t *testing.T) { // W12: the URL chooses, never the body
	b := setup(t)
	secrets := map[string]string{"acme": macSecret, "umbrella": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"}
	mux := http.NewServeMux()
	for tenant, secret := range secrets {
		h, err := New(b.in, tenant, must(Standard(secret)), Config{NowFunc: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		mux.Handle("/hooks/"+tenant, h)
	}
	for signer, secret := range secrets {
		for endpoint := range secrets {
			// The body says what it likes about whose it is.
			body := fmt.Sprintf(`{"type":"order.placed","tenant":%q}`, endpoint)
			h, err := SignStandard("msg_1", now, []byte(body), secret) // Tenants do not know each other's ids.
			if err != nil {
				t.Fatal(err)
			}
			req, rec := request(h, strings.NewReader(body)), recorder()
			req.URL.Path = "/hooks/" + endpoint
			mux.ServeHTTP(rec, req)
			if want := map[bool]int{true: 200, false: 401}[signer == endpoint]; rec.Code != want {
				t.Errorf("what %s signed is answered %d at the endpoint of %s, want %d", signer, rec.Code, endpoint, want)
			}
		}
	}
	if b.count("select count(distinct source) from effect") != 2 || b.effects() != 2 {
		t.Errorf("%d effects, want one of each tenant", b.effects())
	}
}

func TestWhatIsSignedButMakesNoEventIsRefused(t *testing.T) {
	b := setup(t)
	for name, c := range map[string]func(*Config){
		"a type that is too long": func(c *Config) { c.TypeFunc = func(Delivery, []byte) string { return strings.Repeat("t", 256) } },
		"no type":                 func(c *Config) { c.TypeFunc = func(Delivery, []byte) string { return "" } },
		"a key with NUL":          func(c *Config) { c.KeyFunc = func(Delivery, []byte) string { return "a\x00" } },
	} {
		h, body := order("1")
		if b.want(400, b.shop(c), h, body); b.lastRefusal().Reason != ReasonContent {
			t.Errorf("%s: told %+v", name, b.lastRefusal())
		}
	}
	v := VerifierFunc(func(http.Header, []byte, time.Time) (Delivery, error) {
		return Delivery{ID: "\xff", IDSigned: true}, nil
	})
	b.want(400, b.receiver("own", v), nil, "")
	v = func(http.Header, []byte, time.Time) (Delivery, error) { return Delivery{}, errors.New("of my own") }
	b.want(401, b.receiver("own", v), nil, "")
}

func TestEveryProblemOfTheConfigurationIsNamedAtOnce(t *testing.T) { // W12, W22
	b := setup(t)
	_, err := New(b.in, "shop/orders", nil, Config{
		Mode: "later", Unsigned: "luck", Headers: []string{"Authorization", "X-Hub-Signature-256", "ce_id", "a b", ""},
		MaxBody: 1 << 30, Workers: -1, Wait: 2 * time.Hour, RetryAfter: time.Millisecond, Horizon: 30 * 24 * time.Hour,
	})
	if err == nil {
		t.Fatal("nothing is wrong")
	}
	for _, want := range []string{"webhook config: ", "verifier is nil", `topic is "webhook.shop/orders"`, `mode is "later"`, `unsigned is "luck"`,
		`header "Authorization"`, `header "X-Hub-Signature-256"`, `header "ce_id": the name is reserved`, `header "a b"`, `header ""`, "max body is", "workers is -1", "wait is 2h", "retry after is 1ms",
		"horizon is 720h0m0s, but the inbox's window is 168h0m0s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said:\n%v", want, err)
		}
	}
	if _, err := New(nil, "shop", must(Standard(macSecret)), Config{}); err == nil || !strings.Contains(err.Error(), "inbox is nil") {
		t.Error(err)
	}
	if _, err := New(b.in, "", must(Standard(macSecret)), Config{Topic: "t"}); err == nil || !strings.Contains(err.Error(), "source is") {
		t.Error(err)
	}
	// W22: what is forgotten before the provider has stopped repeating it would be handled again.
	short := b.inbox(func(c *inbox.Config) { c.Window = 75 * time.Hour })
	if _, err := New(short, "shop", must(Standard(macSecret)), Config{}); err == nil || !strings.Contains(err.Error(), "lengthen inbox.Config.Window") {
		t.Error(err)
	}
	if _, err := New(short, "shop", must(Standard(macSecret)), Config{Horizon: 4 * time.Hour}); err != nil {
		t.Error(err)
	}
}

func TestTheAnswerToEachOutcome(t *testing.T) {
	for out, want := range map[inbox.Outcome]int{inbox.Handled: 200, inbox.Duplicate: 200, inbox.Skipped: 200, inbox.Dead: 200,
		inbox.Stored: 202, inbox.Retrying: 202, inbox.Conflict: 409} {
		if got := statusOf(out, nil); got != want {
			t.Errorf("%s is answered %d, want %d", out, got, want)
		}
	}
	for _, err := range []error{inbox.ErrInFlight, inbox.ErrFull, inbox.ErrOutcomeUnknown, inbox.ErrHungHandlers, context.DeadlineExceeded} {
		if got := statusOf("", err); got != 503 {
			t.Errorf("%v is answered %d, want 503", err, got)
		}
	}
	var problem struct {
		Title  string
		Status int
	}
	rec := recorder()
	writeProblem(rec, 503, time.Nanosecond)
	if err := json.NewDecoder(bytes.NewReader(rec.Body.Bytes())).Decode(&problem); err != nil || problem.Status != 503 || rec.Header().Get("Retry-After") != "1" {
		t.Errorf("%s, %v, Retry-After %q", rec.Body, err, rec.Header().Get("Retry-After"))
	}
}
