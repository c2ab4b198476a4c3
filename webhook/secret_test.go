package webhook

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/webhook/sign"
)

// W6.
func TestSecret_SecretsTakeEachOthersPlaceWithoutALoss(t *testing.T) {
	const other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	body := []byte("x")
	byOld, _ := sign.Standard("msg_1", now, body, macSecret)
	byNew, _ := sign.Standard("msg_1", now, body, other)
	byBoth, _ := sign.Standard("msg_1", now, body, macSecret, other)
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

// W6.
func TestSecret_SecretsAreLoadedWhileTheProcessRuns(t *testing.T) {
	var current atomic.Pointer[Verifier]
	v := VerifierFunc(func(h http.Header, body []byte, now time.Time) (Delivery, error) {
		return (*current.Load()).Verify(h, body, now)
	})
	h, _ := sign.GitHub("1", "push", nil, githubSecret)
	for _, secret := range []string{"a secret of another day", githubSecret} {
		loaded := must(GitHub(secret))
		current.Store(&loaded)
		if _, err := v.Verify(h, nil, now); (err == nil) != (secret == githubSecret) {
			t.Error(err)
		}
	}
}

// W12.
func TestSecret_ASecretThatIsNoneIsRefusedByItsRuleAndNeverShown(t *testing.T) {
	short := "whsec_" + base64.StdEncoding.EncodeToString([]byte("only 23 bytes of secret"))
	for _, c := range []struct {
		name    string
		make    func(...string) (Verifier, error)
		secrets []string
		want    string
	}{
		{"none", Standard, nil, "number of secrets is 0: it must be 1 to 16"},
		{"too many", GitHub, slices.Repeat([]string{githubSecret}, 17), "number of secrets is 17"},
		{"empty", Standard, []string{""}, "secret 1 of 1 is empty: it must not be"},
		{"empty beside a good one", Stripe, []string{stripeSecret, ""}, "secret 2 of 2 is empty"},
		{"empty", GitHub, []string{""}, "is empty: it must not be"}, {"empty", Slack, []string{""}, "is empty: it must not be"}, {"empty", Shopify, []string{""}, "is empty: it must not be"},
		{"short", Standard, []string{short}, "is 23 bytes long once decoded: it must be 24 to 64 (Standard Webhooks)"},
		{"short", GitHub, []string{"hunter2hunter2!"}, "is 15 bytes long: it must be at least 16"},
		{"short", Stripe, []string{"whsec_"}, "at least 16"}, {"short", Slack, []string{"x"}, "at least 16"}, {"short", Shopify, []string{"x"}, "at least 16"},
		{"long", Standard, []string{"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 65))}, "24 to 64"},
		{"a line break behind it", GitHub, []string{githubSecret + "\n"}, "white space"},
		{"Stripe's", Standard, []string{stripeSecret}, "not base64"},
		{"a private key", Standard, []string{"whsk_" + base64.StdEncoding.EncodeToString(make([]byte, 32))}, "it must be a public key (whpk_)"},
		{"another prefix", Standard, []string{"sk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, "it must begin with whsec_, whpk_ or whsk_"},
		{"a public key that is short", Standard, []string{"whpk_AAAA"}, "it must be 32, a public key of ed25519"},
		{"a private key that is short", Standard, []string{"whsk_AAAA"}, "it must be 64, a private key of ed25519"},
		{"two that are wrong", Standard, []string{"", short}, "secret 1 of 2 is empty: it must not be, or anyone could sign with it\nsecret 2 of 2 is 23"},
	} {
		v, err := c.make(c.secrets...)
		if err != nil {
			problems := strings.TrimPrefix(err.Error(), "webhook secrets of ")
			for _, problem := range strings.Split(problems[strings.Index(problems, ": ")+2:], "\n") {
				if !problemForm.MatchString(problem) {
					t.Errorf("%q: want field, value and rule", problem)
				}
			}
		}
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
	if _, err := sign.GitHub("1", "push", nil, ""); err == nil {
		t.Error("signing with an empty secret")
	}
}
