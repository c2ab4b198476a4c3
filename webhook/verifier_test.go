package webhook

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Rows W2 to W12 and W24 of the table in docs/webhooks.md: what is verified, without a database.

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

func TestThePublishedVectorsAreAccepted(t *testing.T) { // W3, W7, W8, W9
	for _, c := range vectors() {
		got, err := c.v.Verify(c.h, []byte(c.body), time.Unix(c.at, 0))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestABodyThatDiffersInOneByteIsNotTheOneThatWasSigned(t *testing.T) { // W2
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
		return SignStandard("msg_1", at, body, macSecret)
	}, true},
	"stripe": {must(Stripe(stripeSecret)), func(at time.Time, body []byte) (http.Header, error) { return SignStripe(at, body, stripeSecret) }, true},
	"slack":  {must(Slack(slackSecret)), func(at time.Time, body []byte) (http.Header, error) { return SignSlack(at, body, slackSecret) }, true},
	"github": {must(GitHub(githubSecret)), func(_ time.Time, body []byte) (http.Header, error) {
		return SignGitHub("d-1", "push", body, githubSecret)
	}, false},
	"shopify": {must(Shopify(slackSecret)), func(_ time.Time, body []byte) (http.Header, error) {
		return SignShopify("e-1", "orders/create", body, slackSecret)
	}, false},
}

var now = time.Unix(1_800_000_000, 999_999_999)

func TestWhatIsSignedHereIsAcceptedAndFromNobodyElse(t *testing.T) { // W10, W24
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
		if name == "shopify" && h.Get(shopifyHeader) != base64.StdEncoding.EncodeToString(hmacSHA256([]byte(slackSecret), body)) {
			t.Error("shopify's header is not the base64 of the HMAC")
		}
	}
}

func TestARetryKeepsItsIdAndIsSignedAnew(t *testing.T) { // W24
	seed := base64.StdEncoding.EncodeToString(slices.Repeat([]byte{7}, ed25519.SeedSize))
	private := ed25519.NewKeyFromSeed(slices.Repeat([]byte{7}, ed25519.SeedSize))
	public := "whpk_" + base64.StdEncoding.EncodeToString(private.Public().(ed25519.PublicKey))
	for _, sender := range []string{"whsk_" + seed, "whsk_" + base64.StdEncoding.EncodeToString(private)} {
		var signatures []string
		for _, at := range []time.Time{now, now.Add(time.Hour)} {
			h, err := SignStandard("msg_1", at, []byte("body"), macSecret, sender)
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
		if _, err := SignStandard(id, now, nil, macSecret); err == nil {
			t.Errorf("the id %q is signed", id)
		}
	}
	if _, err := SignStandard("msg_1", now, nil, public); err == nil || !strings.Contains(err.Error(), "whsk_") {
		t.Errorf("signing with a public key: %v", err)
	}
}

func TestATimeIsFiveMinutesOffAtMostToEitherSide(t *testing.T) { // W4
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

func TestATimeThatIsNoneIsRefusedWithoutAnOverflow(t *testing.T) { // W4
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

func TestAKeyIsTriedOnSignaturesOfItsKindOnly(t *testing.T) { // W5
	// The public key is known to all: its bytes must not do as the key of an HMAC, nor a signature change its version.
	public := strings.TrimPrefix(publicKey, "whpk_")
	forged, err := SignStandard("msg_1", now, []byte("x"), "whsec_"+public)
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
	real, err := SignStandard("msg_1", now, []byte("x"), macSecret)
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

func TestSecretsTakeEachOthersPlaceWithoutALoss(t *testing.T) { // W6
	const other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	body := []byte("x")
	byOld, _ := SignStandard("msg_1", now, body, macSecret)
	byNew, _ := SignStandard("msg_1", now, body, other)
	byBoth, _ := SignStandard("msg_1", now, body, macSecret, other)
	end := now.Add(time.Hour)
	dated := AnyOf(must(Standard(other)), Until(end, must(Standard(macSecret))))
	for _, c := range []struct {
		name   string
		v      Verifier
		h      http.Header
		now    time.Time
		secret int
		want   Reason
	}{
		{"the current of two", must(Standard(other, macSecret)), byNew, now, 0, ""},
		{"the one before", must(Standard(other, macSecret)), byOld, now, 1, ""},
		{"a sender that signs with both, read by the old", must(Standard(macSecret)), byBoth, now, 0, ""},
		{"and by the new", must(Standard(other)), byBoth, now, 0, ""},
		{"the old one that is out", must(Standard(other)), byOld, now, 0, ReasonMismatch},
		{"the old one before its end", dated, byOld, now, 1, ""},
		{"the current one beside it", dated, byNew, now, 0, ""},
		{"the old one at its end", AnyOf(must(Standard(other)), Until(now, must(Standard(macSecret)))), byOld, now, 0, ReasonExpired},
		{"no one's", AnyOf(), byOld, now, 0, ReasonMismatch},
		{"the third of three in two", AnyOf(AnyOf(must(Standard(publicKey, other))), Until(end, must(Standard(macSecret)))), byOld, now, 2, ""},
	} {
		d, err := c.v.Verify(c.h, body, c.now)
		if reasonOf(err) != c.want || d.Secret != c.secret {
			t.Errorf("%s: secret %d, %v; want %d, %q", c.name, d.Secret, err, c.secret, c.want)
		}
	}
	for name, s := range schemes { // The others take several too.
		v := map[string]func(...string) (Verifier, error){"standard": Standard, "stripe": Stripe, "slack": Slack, "github": GitHub, "shopify": Shopify}[name]
		secrets := map[string]string{"standard": macSecret, "stripe": stripeSecret, "slack": slackSecret, "github": githubSecret, "shopify": slackSecret}
		h, _ := s.sign(now, []byte(`{"id":"1"}`))
		if d, err := must(v(base64.StdEncoding.EncodeToString(slices.Repeat([]byte{1}, 24)), secrets[name])).Verify(h, []byte(`{"id":"1"}`), now); err != nil || d.Secret != 1 {
			t.Errorf("%s: secret %d, %v", name, d.Secret, err)
		}
	}
}

func TestSecretsAreLoadedWhileTheProcessRuns(t *testing.T) { // W6
	var current atomic.Pointer[Verifier]
	v := VerifierFunc(func(h http.Header, body []byte, now time.Time) (Delivery, error) {
		return (*current.Load()).Verify(h, body, now)
	})
	h, _ := SignGitHub("1", "push", nil, githubSecret)
	for _, secret := range []string{"a secret of another day", githubSecret} {
		loaded := must(GitHub(secret))
		current.Store(&loaded)
		if _, err := v.Verify(h, nil, now); (err == nil) != (secret == githubSecret) {
			t.Error(err)
		}
	}
}

func TestStripesHeaderIsReadStrictly(t *testing.T) { // W7
	v := must(Stripe(stripeSecret))
	signed, err := SignStripe(now, []byte(`{"id":"evt_1"}`), stripeSecret)
	if err != nil {
		t.Fatal(err)
	}
	good := signed.Get(stripeHeader)
	timestamp, v1, _ := strings.Cut(good, ",")
	for value, want := range map[string]Reason{
		good: "", good + ",v0=abc": "", v1 + "," + timestamp: "",
		good + ",": ReasonMalformed, good + ",v1": ReasonMalformed, timestamp + "," + good: ReasonMalformed, "nonsense": ReasonMalformed,
		timestamp: ReasonMissing, v1: ReasonMissing, timestamp + ",v0=" + strings.TrimPrefix(v1, "v1="): ReasonMissing, timestamp + ",v1=": ReasonMismatch,
		timestamp + "," + v1[:len(v1)-2]: ReasonMismatch, "t=," + v1: ReasonMissing,
	} {
		_, err := v.Verify(headers(stripeHeader, value), []byte(`{"id":"evt_1"}`), now)
		if reasonOf(err) != want {
			t.Errorf("%q: %v, want %q", value, err, want)
		}
	}
	// The secret is not decoded: what Standard makes of the same text is another key.
	asStandard, err := SignStandard("1", now, nil, macSecret)
	if err != nil {
		t.Fatal(err)
	}
	asStripe, err := SignStripe(now, nil, macSecret)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := asStandard.Get("webhook-signature"), asStripe.Get(stripeHeader); strings.Contains(b, a[3:]) || a == "" || b == "" {
		t.Error("the two schemes made the same signature")
	}
	for body, want := range map[string]Delivery{
		`{"id":"evt_1","type":"charge.paid","created":1700000000}`:                {ID: "evt_1", Type: "charge.paid", OccurredAt: time.Unix(1700000000, 0).UTC()},
		`{"id":"evt_2","type":"v2.core","created":"2026-11-21T01:02:03.5+01:00"}`: {ID: "evt_2", Type: "v2.core", OccurredAt: time.Date(2026, 11, 21, 0, 2, 3, 5e8, time.UTC)},
		`{"id":"evt_3","created":{}}`:                                             {ID: "evt_3"},
	} {
		h, _ := SignStripe(now, []byte(body), stripeSecret)
		d, err := v.Verify(h, []byte(body), now)
		if err != nil || d.ID != want.ID || d.Type != want.Type || !d.OccurredAt.Equal(want.OccurredAt) || !d.IDSigned {
			t.Errorf("%s: %+v, %v", body, d, err)
		}
	}
	for _, body := range []string{"", "[]", `{"type":"x"}`, "not JSON"} {
		h, _ := SignStripe(now, []byte(body), stripeSecret)
		if _, err := v.Verify(h, []byte(body), now); reasonOf(err) != ReasonContent {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func TestSlacksRequestsAreToldApart(t *testing.T) { // W9
	v := must(Slack(slackSecret))
	for body, want := range map[string]Delivery{
		`{"type":"event_callback","event_id":"Ev1","event_time":1700000000,"event":{"type":"app_mention"}}`: {ID: "Ev1", IDSigned: true, Type: "app_mention", OccurredAt: time.Unix(1700000000, 0).UTC()},
		`{"type":"app_rate_limited"}`:                         {Type: "app_rate_limited"},
		`{"type":"url_verification","challenge":"3eZbrw1aB"}`: {Type: "url_verification", Answer: []byte("3eZbrw1aB")},
		`payload=%7B%22type%22%3A%22block_actions%22%7D`:      {Type: "block_actions"},
		slackBody: {Type: "slash_command"},
	} {
		h, _ := SignSlack(now, []byte(body), slackSecret)
		d, err := v.Verify(h, []byte(body), now)
		want.Timestamp, want.Scheme = now.Truncate(time.Second).UTC(), "v0"
		if err != nil || fmt.Sprint(d) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, %v; want %+v", body, d, err, want)
		}
		if _, err := v.Verify(headers(slackTimestamp, h.Get(slackTimestamp), slackSignature, "v1"+h.Get(slackSignature)[2:]), []byte(body), now); reasonOf(err) != ReasonMalformed {
			t.Errorf("another version: %v", err)
		}
	}
	for _, body := range []string{`{"type":`, `{"type":"url_verification","challenge":"` + strings.Repeat("x", 2000) + `"}`, "a=%zz"} {
		h, _ := SignSlack(now, []byte(body), slackSecret)
		if d, err := v.Verify(h, []byte(body), now); reasonOf(err) != ReasonContent || d.Answer != nil {
			t.Errorf("%.40s: %v", body, err)
		}
	}
}

func TestASignatureThatIsNotWrittenAsItsProviderDoesIsRefused(t *testing.T) { // W8, W9, W10
	for name, key := range map[string]string{"github": githubHeader, "slack": slackSignature, "shopify": shopifyHeader} {
		h, err := schemes[name].sign(now, []byte(`{"id":"1"}`))
		if err != nil {
			t.Fatal(err)
		}
		good := h.Get(key)
		bare := good[strings.Index(good, "=")+1:]
		bad := map[string]Reason{"sha1=" + bare: ReasonMalformed, " " + good: ReasonMalformed, good + "zz": ReasonMalformed, "": ReasonMissing, good[:len(good)/2]: ""}
		if name != "shopify" {
			bad[bare], bad[strings.ToUpper(good)] = ReasonMalformed, ReasonMalformed
		}
		for value, want := range bad {
			h.Set(key, value)
			if _, err := schemes[name].v.Verify(h, []byte(`{"id":"1"}`), now); err == nil || want != "" && reasonOf(err) != want {
				t.Errorf("%s, %q: %v, want %q", name, value, err, want)
			}
		}
		h.Set(key, good)
		if _, err := schemes[name].v.Verify(h, []byte(`{"id":"1"}`), now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSixteenSignaturesAreExaminedAndNoMore(t *testing.T) { // W11
	h, _ := SignStandard("msg_1", now, []byte("x"), macSecret)
	good := h.Get("webhook-signature")
	s, _ := SignStripe(now, []byte(`{"id":"1"}`), stripeSecret)
	timestamp, v1, _ := strings.Cut(s.Get(stripeHeader), ",")
	for before, want := range map[int]bool{0: true, 15: true, 16: false, 100: false} {
		h.Set("webhook-signature", strings.Repeat("v1,AAAA ", before)+good)
		if _, err := must(Standard(macSecret)).Verify(h, []byte("x"), now); (err == nil) != want {
			t.Errorf("standard: behind %d others: %v", before, err)
		}
		s.Set(stripeHeader, timestamp+strings.Repeat(",v1=00", before)+","+v1)
		if _, err := must(Stripe(stripeSecret)).Verify(s, []byte(`{"id":"1"}`), now); (err == nil) != want {
			t.Errorf("stripe: behind %d others: %v", before, err)
		}
	}
	// Those of versions that nobody knows do not count: a sender may try new ones out.
	h.Set("webhook-signature", strings.Repeat("v9,AAAA ", 100)+good)
	if _, err := must(Standard(macSecret)).Verify(h, []byte("x"), now); err != nil {
		t.Errorf("behind 100 of another version: %v", err)
	}
	// However many are sent, or of whatever kind.
	long := strings.Repeat("v1,AAAA ", 10_000) + good
	h.Set("webhook-signature", long)
	if _, err := must(Standard(macSecret)).Verify(h, []byte("x"), now); reasonOf(err) != ReasonMalformed {
		t.Errorf("10,000 signatures: %v", err)
	}
	for name, scheme := range schemes {
		signed, _ := scheme.sign(now, []byte(`{"id":"1"}`))
		for key := range signed {
			h := maps.Clone(signed)
			h[key] = []string{strings.Repeat("1", maxHeader+1)}
			if _, err := scheme.v.Verify(h, []byte(`{"id":"1"}`), now); reasonOf(err) != ReasonMalformed {
				t.Errorf("%s, a long %s: %v", name, key, err)
			}
		}
	}
}

func TestPublicKeysAreTriedSixteenTimesInAll(t *testing.T) { // W11: each costs a pass over the body
	var secrets []string
	for n := range maxSecrets {
		private := ed25519.NewKeyFromSeed(slices.Repeat([]byte{byte(n)}, ed25519.SeedSize))
		secrets = append(secrets, "whpk_"+base64.StdEncoding.EncodeToString(private.Public().(ed25519.PublicKey)))
	}
	sender := "whsk_" + base64.StdEncoding.EncodeToString(slices.Repeat([]byte{maxSecrets - 1}, ed25519.SeedSize))
	h, err := SignStandard("msg_1", now, []byte("x"), sender)
	if err != nil {
		t.Fatal(err)
	}
	good, bad := h.Get("webhook-signature"), "v1a,"+base64.StdEncoding.EncodeToString(make([]byte, ed25519.SignatureSize))
	v := must(Standard(secrets...))
	if d, err := v.Verify(h, []byte("x"), now); err != nil || d.Secret != maxSecrets-1 {
		t.Errorf("the last of %d keys: %+v, %v", maxSecrets, d, err)
	}
	h.Set("webhook-signature", bad+" "+good)
	if _, err := v.Verify(h, []byte("x"), now); reasonOf(err) != ReasonMismatch {
		t.Errorf("behind another signature: %v", err)
	}
}

func TestASecretThatIsNoneIsRefusedByItsRuleAndNeverShown(t *testing.T) { // W12
	short := "whsec_" + base64.StdEncoding.EncodeToString([]byte("only 23 bytes of secret"))
	for _, c := range []struct {
		name    string
		make    func(...string) (Verifier, error)
		secrets []string
		want    string
	}{
		{"none", Standard, nil, "there are 0 secrets"},
		{"too many", GitHub, slices.Repeat([]string{githubSecret}, 17), "there are 17 secrets"},
		{"empty", Standard, []string{""}, "secret 1 of 1: it is empty"},
		{"empty beside a good one", Stripe, []string{stripeSecret, ""}, "secret 2 of 2: it is empty"},
		{"empty", GitHub, []string{""}, "it is empty"}, {"empty", Slack, []string{""}, "it is empty"}, {"empty", Shopify, []string{""}, "it is empty"},
		{"short", Standard, []string{short}, "has 23 bytes once decoded: Standard Webhooks has 24 to 64"},
		{"short", GitHub, []string{"hunter2hunter2!"}, "it has 15 bytes: it must have at least 16"},
		{"short", Stripe, []string{"whsec_"}, "at least 16"}, {"short", Slack, []string{"x"}, "at least 16"}, {"short", Shopify, []string{"x"}, "at least 16"},
		{"long", Standard, []string{"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 65))}, "24 to 64"},
		{"a line break behind it", GitHub, []string{githubSecret + "\n"}, "white space"},
		{"Stripe's", Standard, []string{stripeSecret}, "not base64"},
		{"a private key", Standard, []string{"whsk_" + base64.StdEncoding.EncodeToString(make([]byte, 32))}, "whpk_"},
		{"another prefix", Standard, []string{"sk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, "its prefix is not"},
		{"a public key that is short", Standard, []string{"whpk_AAAA"}, "ed25519 has 32"},
		{"a private key that is short", Standard, []string{"whsk_AAAA"}, "ed25519 has 64"},
		{"two that are wrong", Standard, []string{"", short}, "it is empty: anyone could sign with it\nsecret 2 of 2: it has 23"},
	} {
		v, err := c.make(c.secrets...)
		if v != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
			continue
		}
		for _, secret := range c.secrets {
			if len(secret) > 6 && strings.Contains(err.Error(), strings.TrimSpace(secret)) {
				t.Errorf("%s: the error shows the secret", c.name)
			}
		}
	}
	if _, err := SignGitHub("1", "push", nil, ""); err == nil {
		t.Error("signing with an empty secret")
	}
}

func TestAnIdThatMakesTheSignedTextAmbiguousIsRefused(t *testing.T) { // W12
	for id, want := range map[string]Reason{
		"a.1": ReasonMalformed, "a 1": ReasonMalformed, "a\t1": ReasonMalformed, "ä": ReasonMalformed, strings.Repeat("a", 129): ReasonMalformed,
		"": ReasonMissing, strings.Repeat("a", 128): "", "msg_~!1": "",
	} {
		// Signed as any sender would: id "a" with the time "1.…" must not pass for id "a.1".
		timestamp := strconv.FormatInt(now.Unix(), 10)
		key, err := readStandardKey(macSecret)
		if err != nil {
			t.Fatal(err)
		}
		signature := "v1," + base64.StdEncoding.EncodeToString(hmacSHA256(key.mac, []byte(id+"."+timestamp+"."), []byte("x")))
		_, err = must(Standard(macSecret)).Verify(headers("webhook-id", id, "webhook-timestamp", timestamp, "webhook-signature", signature), []byte("x"), now)
		if reasonOf(err) != want {
			t.Errorf("%q: %v, want %q", id, err, want)
		}
	}
	for _, id := range []string{"a b", "a\x01", strings.Repeat("a", 129)} { // These are not signed, and are bounded all the same.
		h, _ := SignGitHub(id, "push", nil, githubSecret)
		if _, err := must(GitHub(githubSecret)).Verify(h, nil, now); reasonOf(err) != ReasonMalformed {
			t.Errorf("github: %q: %v", id, err)
		}
	}
}

func FuzzNothingIsAcceptedThatWasNotSigned(f *testing.F) { // W2
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
