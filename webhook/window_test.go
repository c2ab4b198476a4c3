package webhook

import (
	"maps"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// W22.
func TestWindow_AShortWindowForWebhooksWithoutASignedTimeIsWarnedOfOnce(t *testing.T) {
	b := setup(t)
	gh, timed := must(GitHub(githubSecret)), must(Standard(macSecret))
	hidden := func(v Verifier) Verifier { return VerifierFunc(v.Verify) } // does not say what it is
	deliver := func(s *httptest.Server) {
		t.Helper()
		h, body := order("1")
		signed, err := sign.GitHub("1", "push", []byte(body), githubSecret)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(h, signed)
		b.post(s, h, body)
	}
	for _, c := range []struct {
		name            string
		v               Verifier
		window          time.Duration
		atOnce, atFirst int // warnings, of New and with the first delivery
	}{
		{"GitHub's, in the default window", gh, 0, 1, 1},
		{"Shopify's", must(Shopify(githubSecret)), 0, 1, 1},
		{"an old secret of GitHub's", AnyOf(timed, Until(now.Add(time.Hour), gh)), 0, 1, 1},
		{"GitHub's, in a window that is a little too short", gh, 30*24*time.Hour - time.Second, 1, 1},
		{"GitHub's, in 30 days", gh, 30 * 24 * time.Hour, 0, 0},
		{"those of a function that does not say", hidden(gh), 0, 0, 1},
		{"those of a function, in 30 days", hidden(gh), 30 * 24 * time.Hour, 0, 0},
		{"those that sign a time", AnyOf(timed, must(Slack(slackSecret))), 0, 0, 0},
		{"those of a function that sign a time", hidden(timed), 0, 0, 0},
	} {
		in := b.inbox(func(ic *inbox.Config) { ic.Retention = c.window })
		b.log.Take()
		s := b.receiverOf(in, "hooks", c.v)
		warnings := func() int { return strings.Count(b.log.String(), "level=WARN") }
		if n := warnings(); n != c.atOnce {
			t.Errorf("%s: New gave %d warnings, want %d:\n%s", c.name, n, c.atOnce, b.log)
		}
		if c.name == "Shopify's" {
			continue // Its delivery would be refused.
		}
		for range 2 {
			deliver(s)
		}
		if n := warnings(); n != c.atFirst {
			t.Errorf("%s: %d warnings after two deliveries, want %d:\n%s", c.name, n, c.atFirst, b.log)
		}
	}
}

// Stripe's events can be sent again by hand for 30 days.
// W22.
func TestWindow_AWindowShorterThanPeopleSendEventsAgainIsWarnedOf(t *testing.T) {
	b := setup(t)
	s, timed := must(Stripe(stripeSecret)), must(Standard(macSecret))
	const month = 30 * 24 * time.Hour
	for _, c := range []struct {
		name            string
		v               Verifier
		window, horizon time.Duration
		warnings        int
		own             time.Duration // the retention of the source
	}{
		{"Stripe's, in the default window", s, 0, 0, 1, 0},
		{"an old secret of Stripe's", AnyOf(timed, Until(now.Add(time.Hour), s)), 0, 0, 1, 0},
		{"Stripe's, in a window that is a little too short", s, month - time.Second, 0, 1, 0},
		{"Stripe's, in 30 days", s, month, 0, 0, 0},
		{"Stripe's, where nobody does that", s, 0, 76 * time.Hour, 0, 0},
		{"those of others", timed, 0, 0, 0, 0},
		{"Stripe's, in 30 days of the source", s, 0, 0, 0, month},
		{"Stripe's, in less than 30 days of the source", s, 0, 0, 1, month - time.Second},
	} {
		in := b.inbox(func(ic *inbox.Config) { ic.Retention = c.window })
		if c.own > 0 {
			in = b.inbox(func(ic *inbox.Config) { ic.SourceRetention = map[string]time.Duration{"hooks": c.own} })
		}
		b.log.Take()
		if _, err := New(in, "hooks", c.v, Config{Horizon: c.horizon}); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.log.String(), "level=WARN"); n != c.warnings {
			t.Errorf("%s: %d warnings, want %d:\n%s", c.name, n, c.warnings, b.log)
		}
	}
}
