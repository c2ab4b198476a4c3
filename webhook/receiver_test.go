package webhook

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// W1.
func TestReceiver_OnlyAPostOfPlainBytesThatAreNotTooManyIsADelivery(t *testing.T) {
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
		{"a GET", "GET", h, nil, 405, "Allow: POST", "method"},
		{"a PUT", "PUT", h, strings.NewReader(body), 405, "Allow: POST", "method"},
		{"an OPTIONS", "OPTIONS", h, nil, 405, "Allow: POST", "method"},
		{"a compressed body", "POST", with("Content-Encoding", "gzip"), strings.NewReader(body), 415, "Accept-Encoding: identity", "encoding"},
		{"a body twice compressed", "POST", with("Content-Encoding", "identity", "Content-Encoding", "br"), strings.NewReader(body), 415, "", "encoding"},
		{"a large body", "POST", h, strings.NewReader(strings.Repeat("x", 101)), 413, "", "size"},
		{"a large body of unsaid length", "POST", h, io.MultiReader(strings.NewReader(strings.Repeat("x", 101))), 413, "", "size"},
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

// W1.
func TestReceiver_ABodyThatEndsEarlyIsNoDelivery(t *testing.T) {
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

// W2.
func TestReceiver_AForgeryIsRefusedBeforeTheDatabaseWithoutAReason(t *testing.T) {
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
	old, err := sign.Standard("1", now.Add(-time.Hour), []byte(body), macSecret)
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

// W2.
func TestReceiver_NothingThatIsSecretIsLoggedOrStored(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
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
	other, _ := sign.Standard("1", now, []byte(conflicting), macSecret)
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

// W9.
func TestReceiver_TheHandshakeIsAnsweredOnlyOnceItsSignatureWasFoundGood(t *testing.T) {
	b := setup(t)
	s := b.receiver("slack", must(Slack(slackSecret)))
	const body = `{"type":"url_verification","token":"t","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P<b>"}`
	forged, err := sign.Slack(now, []byte(body), "not the secret of the app")
	if err != nil {
		t.Fatal(err)
	}
	if r := b.want(401, s, forged, body); strings.Contains(r.body, "3eZ") {
		t.Errorf("a forged handshake is answered: %s", r.body)
	}
	h, err := sign.Slack(now, []byte(body), slackSecret)
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
	h, _ = sign.Slack(now, []byte(event), slackSecret)
	b.want(200, s, h, event)
	if b.effects() != 1 {
		t.Error("an event of Slack's was not handled")
	}
}

// W12.
func TestReceiver_EachTenantsSecretIsGoodAtItsOwnEndpointOnly(t *testing.T) { // the URL chooses, never the body
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
			h, err := sign.Standard("msg_1", now, []byte(body), secret) // Tenants do not know each other's ids.
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

func TestReceiver_WhatIsSignedButMakesNoEventIsRefused(t *testing.T) {
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

// problemForm is the one form of every problem of a configuration: field, value and rule.
var problemForm = regexp.MustCompile(`^[a-z][a-z0-9 ]* is [^:]*: it must `)

// W12, W22.
func TestReceiver_EveryProblemOfTheConfigurationIsNamedAtOnce(t *testing.T) {
	b := setup(t)
	_, err := New(b.in, "shop/orders", nil, Config{
		Mode: "later", Unsigned: "luck", Headers: []string{"Authorization", "X-Hub-Signature-256", "ce_id", "a b", ""},
		MaxBody: 1 << 30, Workers: -1, Wait: 2 * time.Hour, RetryAfter: time.Millisecond, Horizon: 30 * 24 * time.Hour,
	})
	if err == nil {
		t.Fatal("nothing is wrong")
	}
	for _, want := range []string{"webhook config: ", "verifier is nil", `topic is "webhook.shop/orders"`, `mode is "later"`, `unsigned is "luck"`,
		`header is "Authorization"`, `header is "X-Hub-Signature-256"`, `header is "ce_id": it must not be a reserved name`, `header is "a b"`, `header is ""`, "max body is", "workers is -1", "wait is 2h", "retry after is 1ms",
		"horizon is 720h0m0s: it must be at most the inbox's retention of this source, 168h0m0s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said:\n%v", want, err)
		}
	}
	for _, problem := range strings.Split(strings.TrimPrefix(err.Error(), "webhook config: "), "\n") {
		if !problemForm.MatchString(problem) {
			t.Errorf("%q: want field, value and rule", problem)
		}
	}
	if _, err := New(nil, "shop", must(Standard(macSecret)), Config{}); err == nil || !strings.Contains(err.Error(), "inbox is nil") {
		t.Error(err)
	}
	if _, err := New(b.in, "", must(Standard(macSecret)), Config{Topic: "t"}); err == nil || !strings.Contains(err.Error(), "source is") {
		t.Error(err)
	}
	// W22: what is forgotten before the provider has stopped repeating it would be handled again.
	short := b.inbox(func(c *inbox.Config) { c.Retention = 75 * time.Hour })
	if _, err := New(short, "shop", must(Standard(macSecret)), Config{}); err == nil || !strings.Contains(err.Error(), "horizon is 76h0m0s: it must be at most the inbox's retention of this source, 75h0m0s") {
		t.Error(err)
	}
	if _, err := New(short, "shop", must(Standard(macSecret)), Config{Horizon: 4 * time.Hour}); err != nil {
		t.Error(err)
	}
	// A source's own retention counts, not the inbox's.
	long := b.inbox(func(c *inbox.Config) {
		c.Retention = time.Hour
		c.SourceRetention = map[string]time.Duration{"shop": 76 * time.Hour, "bank": 75 * time.Hour}
	})
	if _, err := New(long, "shop", must(Standard(macSecret)), Config{}); err != nil {
		t.Error(err)
	}
	for _, source := range []string{"bank", "other"} {
		if _, err := New(long, source, must(Standard(macSecret)), Config{}); err == nil || !strings.Contains(err.Error(), "or a later repeat would be handled again") {
			t.Errorf("%s: %v", source, err)
		}
	}
}
