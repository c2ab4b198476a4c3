package webhook

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/webhook/internal/signing"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// W7.
func TestSignature_StripesHeaderIsReadStrictly(t *testing.T) {
	v := must(Stripe(stripeSecret))
	signed, err := sign.Stripe(now, []byte(`{"id":"evt_1"}`), stripeSecret)
	if err != nil {
		t.Fatal(err)
	}
	good := signed.Get(signing.StripeHeader)
	timestamp, v1, _ := strings.Cut(good, ",")
	for value, want := range map[string]Reason{
		good: "", good + ",v0=abc": "", v1 + "," + timestamp: "",
		good + ",": ReasonMalformed, good + ",v1": ReasonMalformed, timestamp + "," + good: ReasonMalformed, "nonsense": ReasonMalformed,
		timestamp: ReasonMissing, v1: ReasonMissing, timestamp + ",v0=" + strings.TrimPrefix(v1, "v1="): ReasonMissing, timestamp + ",v1=": ReasonMismatch,
		timestamp + "," + v1[:len(v1)-2]: ReasonMismatch, "t=," + v1: ReasonMissing,
	} {
		_, err := v.Verify(headers(signing.StripeHeader, value), []byte(`{"id":"evt_1"}`), now)
		if reasonOf(err) != want {
			t.Errorf("%q: %v, want %q", value, err, want)
		}
	}
	// The secret is not decoded: what Standard makes of the same text is another key.
	asStandard, err := sign.Standard("1", now, nil, macSecret)
	if err != nil {
		t.Fatal(err)
	}
	asStripe, err := sign.Stripe(now, nil, macSecret)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := asStandard.Get("webhook-signature"), asStripe.Get(signing.StripeHeader); strings.Contains(b, a[3:]) || a == "" || b == "" {
		t.Error("the two schemes made the same signature")
	}
	for body, want := range map[string]Delivery{
		`{"id":"evt_1","type":"charge.paid","created":1700000000}`:                {ID: "evt_1", Type: "charge.paid", OccurredAt: time.Unix(1700000000, 0).UTC()},
		`{"id":"evt_2","type":"v2.core","created":"2026-11-21T01:02:03.5+01:00"}`: {ID: "evt_2", Type: "v2.core", OccurredAt: time.Date(2026, 11, 21, 0, 2, 3, 5e8, time.UTC)},
		`{"id":"evt_3","created":{}}`:                                             {ID: "evt_3"},
	} {
		h, _ := sign.Stripe(now, []byte(body), stripeSecret)
		d, err := v.Verify(h, []byte(body), now)
		if err != nil || d.ID != want.ID || d.Type != want.Type || !d.OccurredAt.Equal(want.OccurredAt) || !d.IDSigned {
			t.Errorf("%s: %+v, %v", body, d, err)
		}
	}
	for _, body := range []string{"", "[]", `{"type":"x"}`, "not JSON"} {
		h, _ := sign.Stripe(now, []byte(body), stripeSecret)
		if _, err := v.Verify(h, []byte(body), now); reasonOf(err) != ReasonContent {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// W9.
func TestSignature_SlacksRequestsAreToldApart(t *testing.T) {
	v := must(Slack(slackSecret))
	for body, want := range map[string]Delivery{
		`{"type":"event_callback","event_id":"Ev1","event_time":1700000000,"event":{"type":"app_mention"}}`: {ID: "Ev1", IDSigned: true, Type: "app_mention", OccurredAt: time.Unix(1700000000, 0).UTC()},
		`{"type":"app_rate_limited"}`:                         {Type: "app_rate_limited"},
		`{"type":"url_verification","challenge":"3eZbrw1aB"}`: {Type: "url_verification", Answer: []byte("3eZbrw1aB")},
		`payload=%7B%22type%22%3A%22block_actions%22%7D`:      {Type: "block_actions"},
		slackBody: {Type: "slash_command"},
	} {
		h, _ := sign.Slack(now, []byte(body), slackSecret)
		d, err := v.Verify(h, []byte(body), now)
		want.Timestamp, want.Scheme = now.Truncate(time.Second).UTC(), "v0"
		if err != nil || fmt.Sprint(d) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, %v; want %+v", body, d, err, want)
		}
		if _, err := v.Verify(headers(signing.SlackTimeHeader, h.Get(signing.SlackTimeHeader), signing.SlackHeader, "v1"+h.Get(signing.SlackHeader)[2:]), []byte(body), now); reasonOf(err) != ReasonMalformed {
			t.Errorf("another version: %v", err)
		}
	}
	for _, body := range []string{`{"type":`, `{"type":"url_verification","challenge":"` + strings.Repeat("x", 2000) + `"}`, "a=%zz"} {
		h, _ := sign.Slack(now, []byte(body), slackSecret)
		if d, err := v.Verify(h, []byte(body), now); reasonOf(err) != ReasonContent || d.Answer != nil {
			t.Errorf("%.40s: %v", body, err)
		}
	}
}

// W8, W9, W10.
func TestSignature_ASignatureThatIsNotWrittenAsItsProviderDoesIsRefused(t *testing.T) {
	for name, key := range map[string]string{"github": signing.GitHubHeader, "slack": signing.SlackHeader, "shopify": signing.ShopifyHeader} {
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

// W11.
func TestSignature_SixteenSignaturesAreExaminedAndNoMore(t *testing.T) {
	h, _ := sign.Standard("msg_1", now, []byte("x"), macSecret)
	good := h.Get("webhook-signature")
	s, _ := sign.Stripe(now, []byte(`{"id":"1"}`), stripeSecret)
	timestamp, v1, _ := strings.Cut(s.Get(signing.StripeHeader), ",")
	for before, want := range map[int]bool{0: true, 15: true, 16: false, 100: false} {
		h.Set("webhook-signature", strings.Repeat("v1,AAAA ", before)+good)
		if _, err := must(Standard(macSecret)).Verify(h, []byte("x"), now); (err == nil) != want {
			t.Errorf("standard: behind %d others: %v", before, err)
		}
		s.Set(signing.StripeHeader, timestamp+strings.Repeat(",v1=00", before)+","+v1)
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

// W11.
func TestSignature_PublicKeysAreTriedSixteenTimesInAll(t *testing.T) { // each costs a pass over the body
	var secrets []string
	for n := range signing.MaxSecrets {
		private := ed25519.NewKeyFromSeed(slices.Repeat([]byte{byte(n)}, ed25519.SeedSize))
		secrets = append(secrets, "whpk_"+base64.StdEncoding.EncodeToString(private.Public().(ed25519.PublicKey)))
	}
	sender := "whsk_" + base64.StdEncoding.EncodeToString(slices.Repeat([]byte{signing.MaxSecrets - 1}, ed25519.SeedSize))
	h, err := sign.Standard("msg_1", now, []byte("x"), sender)
	if err != nil {
		t.Fatal(err)
	}
	good, bad := h.Get("webhook-signature"), "v1a,"+base64.StdEncoding.EncodeToString(make([]byte, ed25519.SignatureSize))
	v := must(Standard(secrets...))
	if d, err := v.Verify(h, []byte("x"), now); err != nil || d.Secret != signing.MaxSecrets-1 {
		t.Errorf("the last of %d keys: %+v, %v", signing.MaxSecrets, d, err)
	}
	h.Set("webhook-signature", bad+" "+good)
	if _, err := v.Verify(h, []byte("x"), now); reasonOf(err) != ReasonMismatch {
		t.Errorf("behind another signature: %v", err)
	}
}

// W12.
func TestSignature_AnIdThatMakesTheSignedTextAmbiguousIsRefused(t *testing.T) {
	for id, want := range map[string]Reason{
		"a.1": ReasonMalformed, "a 1": ReasonMalformed, "a\t1": ReasonMalformed, "ä": ReasonMalformed, strings.Repeat("a", 129): ReasonMalformed,
		"": ReasonMissing, strings.Repeat("a", 128): "", "msg_~!1": "",
	} {
		// Signed as any sender would: id "a" with the time "1.…" must not pass for id "a.1".
		timestamp := strconv.FormatInt(now.Unix(), 10)
		key, err := signing.StandardSecret(macSecret)
		if err != nil {
			t.Fatal(err)
		}
		signature := "v1," + base64.StdEncoding.EncodeToString(signing.HMAC(key.MAC, []byte(id+"."+timestamp+"."), []byte("x")))
		_, err = must(Standard(macSecret)).Verify(headers("webhook-id", id, "webhook-timestamp", timestamp, "webhook-signature", signature), []byte("x"), now)
		if reasonOf(err) != want {
			t.Errorf("%q: %v, want %q", id, err, want)
		}
	}
	for _, id := range []string{"a b", "a\x01", strings.Repeat("a", 129)} { // These are not signed, and are bounded all the same.
		h, _ := sign.GitHub(id, "push", nil, githubSecret)
		if _, err := must(GitHub(githubSecret)).Verify(h, nil, now); reasonOf(err) != ReasonMalformed {
			t.Errorf("github: %q: %v", id, err)
		}
	}
}
