package webhook

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/webhook/internal/signing"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

const (
	macSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	publicKey    = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
	stripeSecret = "whsec_test_secret"
	slackSecret  = "8f742231b10e8888abcd99yyyzzz85a5"
	githubSecret = "It's a Secret to Everybody"
	slackBody    = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&" +
		"user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2F" +
		"T1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)

// must is a verifier that cannot fail to be made.
func must(v Verifier, err error) Verifier {
	if err != nil {
		panic(err)
	}
	return v
}

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// vector is a request as a provider published it, or as another library checks it.
type vector struct {
	name string
	v    Verifier
	h    http.Header
	body string
	at   int64
	want Delivery
}

func vectors() []vector {
	at := func(s int64) time.Time { return time.Unix(s, 0).UTC() }
	standard := func(signature string) http.Header {
		return headers("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp", "1614265330", "webhook-signature", signature)
	}
	const v1, v1a = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
	return []vector{
		// W3: the specification's libraries, https://github.com/standard-webhooks/standard-webhooks.
		{"standard v1", must(Standard(macSecret)), standard(v1), `{"test": 2432232314}`, 1614265330,
			Delivery{ID: "msg_p5jXN8AQM9LWM0D4loKWxJek", IDSigned: true, Timestamp: at(1614265330), Scheme: "v1"}},
		{"standard v1, the secret without its prefix", must(Standard(strings.TrimPrefix(macSecret, "whsec_"))), standard(v1), `{"test": 2432232314}`, 1614265330,
			Delivery{ID: "msg_p5jXN8AQM9LWM0D4loKWxJek", IDSigned: true, Timestamp: at(1614265330), Scheme: "v1"}},
		{"standard v1a", must(Standard(macSecret, publicKey)), standard(v1a), `{"test": 2432232314}`, 1614265330,
			Delivery{ID: "msg_p5jXN8AQM9LWM0D4loKWxJek", IDSigned: true, Timestamp: at(1614265330), Scheme: "v1a", Secret: 1}},
		{"standard, among others and unknown versions", must(Standard(macSecret)), standard("v2,AAAA v1,AAAA " + v1a + " nonsense v1 " + v1), `{"test": 2432232314}`, 1614265330,
			Delivery{ID: "msg_p5jXN8AQM9LWM0D4loKWxJek", IDSigned: true, Timestamp: at(1614265330), Scheme: "v1"}},
		{"standard, under the elder names", must(Standard(macSecret)),
			headers("svix-id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "svix-timestamp", "1614265330", "svix-signature", v1), `{"test": 2432232314}`, 1614265330,
			Delivery{ID: "msg_p5jXN8AQM9LWM0D4loKWxJek", IDSigned: true, Timestamp: at(1614265330), Scheme: "v1"}},
		// W7: stripe-go's fixture.
		{"stripe", must(Stripe(stripeSecret)), headers("Stripe-Signature", "t=12345,v1=2672d138c9a412830f3bfe2ecc5bfb3277cf6f5b49d0119d77dd6cb64da1257e"),
			"{\n  \"id\": \"evt_test_webhook\",\n  \"object\": \"event\"\n}", 12345,
			Delivery{ID: "evt_test_webhook", IDSigned: true, Timestamp: at(12345), Scheme: "v1"}},
		{"stripe, several signatures and one that is not hexadecimal", must(Stripe(stripeSecret)),
			headers("Stripe-Signature", "t=12345,v1=xyz,v0=00,v1="+strings.Repeat("0", 64)+",v1=2672d138c9a412830f3bfe2ecc5bfb3277cf6f5b49d0119d77dd6cb64da1257e"),
			"{\n  \"id\": \"evt_test_webhook\",\n  \"object\": \"event\"\n}", 12345,
			Delivery{ID: "evt_test_webhook", IDSigned: true, Timestamp: at(12345), Scheme: "v1"}},
		// W8: https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries. The header with SHA-1 is not looked at.
		{"github", must(GitHub(githubSecret)), headers("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
			"X-Hub-Signature", "sha1=00", "X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958", "X-GitHub-Event", "push"), "Hello, World!", 0,
			Delivery{ID: "72d3162e-cc78-11e3-81ab-4c9367dc0958", Type: "push", Scheme: "sha256"}},
		// W9: https://docs.slack.dev/authentication/verifying-requests-from-slack.
		{"slack", must(Slack(slackSecret)), headers("X-Slack-Request-Timestamp", "1531420618",
			"X-Slack-Signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"), slackBody, 1531420618,
			Delivery{Type: "slash_command", Timestamp: at(1531420618), Scheme: "v0"}},
	}
}

// W3, W7, W8, W9.
func TestVerifier_ThePublishedVectorsAreAccepted(t *testing.T) {
	for _, c := range vectors() {
		got, err := c.v.Verify(c.h, []byte(c.body), time.Unix(c.at, 0))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

// W2.
func TestVerifier_ABodyThatDiffersInOneByteIsNotTheOneThatWasSigned(t *testing.T) {
	for _, c := range vectors() {
		for _, body := range []string{c.body + "\n", " " + c.body, strings.Replace(c.body, "e", "E", 1), ""} {
			if _, err := c.v.Verify(c.h, []byte(body), time.Unix(c.at, 0)); reasonOf(err) != ReasonMismatch {
				t.Errorf("%s: another body gives %v", c.name, err)
			}
		}
		for name := range c.h {
			other := c.h.Clone()
			other.Del(name)
			if _, err := c.v.Verify(other, []byte(c.body), time.Unix(c.at, 0)); err == nil && !strings.HasPrefix(name, "X-Github") && name != "X-Hub-Signature" {
				t.Errorf("%s: accepted without %s", c.name, name)
			}
			other = c.h.Clone()
			other.Add(name, c.h.Get(name))
			if _, err := c.v.Verify(other, []byte(c.body), time.Unix(c.at, 0)); err == nil && name != "X-Hub-Signature" {
				t.Errorf("%s: accepted with %s twice", c.name, name)
			}
		}
	}
}

// schemes are the five providers with what signs for them.
var schemes = map[string]struct {
	v    Verifier
	sign func(at time.Time, body []byte) (http.Header, error)
	time bool // a time is signed
}{
	"standard": {must(Standard(macSecret)), func(at time.Time, body []byte) (http.Header, error) {
		return sign.Standard("msg_1", at, body, macSecret)
	}, true},
	"stripe": {must(Stripe(stripeSecret)), func(at time.Time, body []byte) (http.Header, error) { return sign.Stripe(at, body, stripeSecret) }, true},
	"slack":  {must(Slack(slackSecret)), func(at time.Time, body []byte) (http.Header, error) { return sign.Slack(at, body, slackSecret) }, true},
	"github": {must(GitHub(githubSecret)), func(_ time.Time, body []byte) (http.Header, error) {
		return sign.GitHub("d-1", "push", body, githubSecret)
	}, false},
	"shopify": {must(Shopify(slackSecret)), func(_ time.Time, body []byte) (http.Header, error) {
		return sign.Shopify("e-1", "orders/create", body, slackSecret)
	}, false},
}

var now = time.Unix(1_800_000_000, 999_999_999)

// W10, W24.
func TestVerifier_WhatIsSignedHereIsAcceptedAndFromNobodyElse(t *testing.T) {
	body := []byte(`{"id":"evt_1","event_id":"Ev1","type":"a"}`)
	for name, s := range schemes {
		h, err := s.sign(now, body)
		if err != nil {
			t.Fatal(name, err)
		}
		if _, err := s.v.Verify(h, body, now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for other, o := range schemes {
			if other == name {
				continue
			}
			if _, err := o.v.Verify(h, body, now); err == nil {
				t.Errorf("what %s signed is accepted as %s", name, other)
			}
		}
		// The HMAC of the body by hand, as the provider's pages describe it.
		if name == "shopify" && h.Get(signing.ShopifyHeader) != base64.StdEncoding.EncodeToString(signing.HMAC([]byte(slackSecret), body)) {
			t.Error("shopify's header is not the base64 of the HMAC")
		}
	}
}

// W24.
func TestVerifier_ARetryKeepsItsIdAndIsSignedAnew(t *testing.T) {
	seed := base64.StdEncoding.EncodeToString(slices.Repeat([]byte{7}, ed25519.SeedSize))
	private := ed25519.NewKeyFromSeed(slices.Repeat([]byte{7}, ed25519.SeedSize))
	public := "whpk_" + base64.StdEncoding.EncodeToString(private.Public().(ed25519.PublicKey))
	for _, sender := range []string{"whsk_" + seed, "whsk_" + base64.StdEncoding.EncodeToString(private)} {
		var signatures []string
		for _, at := range []time.Time{now, now.Add(time.Hour)} {
			h, err := sign.Standard("msg_1", at, []byte("body"), macSecret, sender)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range []Verifier{must(Standard(macSecret)), must(Standard(public))} {
				d, err := v.Verify(h, []byte("body"), at)
				if err != nil || d.ID != "msg_1" || d.Scheme != []string{"v1", "v1a"}[i] || !d.Timestamp.Equal(at.Truncate(time.Second)) {
					t.Errorf("%+v, %v", d, err)
				}
			}
			signatures = append(signatures, h.Get("webhook-signature"))
		}
		if signatures[0] == signatures[1] {
			t.Error("the second try has the signature of the first")
		}
	}
	for _, id := range []string{"", "a.1", "a 1", strings.Repeat("a", 129)} {
		if _, err := sign.Standard(id, now, nil, macSecret); err == nil {
			t.Errorf("the id %q is signed", id)
		}
	}
	if _, err := sign.Standard("msg_1", now, nil, public); err == nil || !strings.Contains(err.Error(), "whsk_") {
		t.Errorf("signing with a public key: %v", err)
	}
}

// W4.
func TestVerifier_ATimeIsFiveMinutesOffAtMostToEitherSide(t *testing.T) {
	body := []byte(`{"id":"evt_1"}`)
	for name, s := range schemes {
		for _, c := range []struct {
			off  time.Duration
			want Reason
		}{
			{-299 * time.Second, ""}, {-300 * time.Second, ""}, {-301 * time.Second, ReasonTooOld}, {-100 * 365 * 24 * time.Hour / 10, ReasonTooOld},
			{299 * time.Second, ""}, {300 * time.Second, ""}, {301 * time.Second, ReasonTooNew},
		} {
			h, err := s.sign(now.Add(c.off), body)
			if err != nil {
				t.Fatal(err)
			}
			want := c.want
			if !s.time {
				want = "" // There is none to be held against the clock.
			}
			_, err = s.v.Verify(h, body, now)
			if reasonOf(err) != want {
				t.Errorf("%s, %s off: %v, want %q", name, c.off, err, want)
			}
		}
	}
}

// W4.
func TestVerifier_ATimeThatIsNoneIsRefusedWithoutAnOverflow(t *testing.T) {
	for text, want := range map[string]Reason{
		strconv.FormatInt(1<<62, 10): ReasonTooNew, strconv.FormatInt(1<<63-1, 10): ReasonTooNew, "9223372036854775808": ReasonMalformed,
		"-1": ReasonMalformed, "+1800000000": ReasonMalformed, "1800000000.5": ReasonMalformed, "1800000000 ": ReasonMalformed, "0x6b49d200": ReasonMalformed,
		"": ReasonMalformed, "0": ReasonTooOld,
	} {
		if _, err := checkTime("t", text, now); reasonOf(err) != want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := checkTime("t", "1800000000", time.Unix(1<<62, 0)); reasonOf(err) != ReasonTooOld {
		t.Error(err)
	}
}

// W5.
func TestVerifier_AKeyIsTriedOnSignaturesOfItsKindOnly(t *testing.T) {
	// The public key is known to all: its bytes must not do as the key of an HMAC, nor a signature change its version.
	public := strings.TrimPrefix(publicKey, "whpk_")
	forged, err := sign.Standard("msg_1", now, []byte("x"), "whsec_"+public)
	if err != nil {
		t.Fatal(err)
	}
	v := must(Standard(publicKey))
	for _, signature := range []string{forged.Get("webhook-signature"), "v1a" + strings.TrimPrefix(forged.Get("webhook-signature"), "v1")} {
		forged.Set("webhook-signature", signature)
		if _, err := v.Verify(forged, []byte("x"), now); reasonOf(err) != ReasonMismatch {
			t.Errorf("%v", err)
		}
	}
	real, err := sign.Standard("msg_1", now, []byte("x"), macSecret)
	if err != nil {
		t.Fatal(err)
	}
	real.Set("webhook-signature", "v1a"+strings.TrimPrefix(real.Get("webhook-signature"), "v1"))
	if _, err := must(Standard(macSecret)).Verify(real, []byte("x"), now); reasonOf(err) != ReasonMismatch {
		t.Errorf("an HMAC that calls itself v1a: %v", err)
	}
	published := vectors()[2]
	if _, err := published.v.Verify(published.h, []byte(published.body), time.Unix(published.at, 0)); err != nil {
		t.Fatal(err)
	}
	published.h.Set("webhook-signature", strings.Replace(published.h.Get("webhook-signature"), "v1a", "v1", 1))
	if _, err := published.v.Verify(published.h, []byte(published.body), time.Unix(published.at, 0)); reasonOf(err) != ReasonMismatch {
		t.Errorf("a v1a that calls itself v1: %v", err)
	}
}

// W2.
func FuzzNothingIsAcceptedThatWasNotSigned(f *testing.F) {
	for name, s := range schemes {
		h, _ := s.sign(now, []byte(`{"id":"1"}`))
		for key := range h {
			f.Add(name, key, h.Get(key), []byte(`{"id":"1"}`))
		}
	}
	f.Fuzz(func(t *testing.T, name, key, value string, body []byte) {
		s, known := schemes[name]
		if !known {
			return
		}
		signed, err := s.sign(now, []byte("what was signed"))
		if err != nil {
			t.Fatal(err)
		}
		h := signed.Clone()
		h.Set(key, value)
		d, err := s.v.Verify(h, body, now)
		var refused *RefusedError
		switch {
		case err != nil && !errors.As(err, &refused):
			t.Errorf("the error is no RefusedError: %v", err)
		case err != nil && fmt.Sprint(d) != fmt.Sprint(Delivery{}):
			t.Error("a refused request has a delivery")
		case err == nil && string(body) != "what was signed" && string(body) != `{"id":"1"}`:
			t.Errorf("%q is accepted", body)
		}
	})
}
