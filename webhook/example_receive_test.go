package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
	"github.com/holdfast-go/holdfast/webhook"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// A delivery is verified and handled once, however often the provider sends it.
func ExampleNew() {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	v, err := webhook.Standard(secret)
	if err != nil {
		log.Fatal(err)
	}
	endpoint, err := webhook.New(newInbox("invoice.paid"), "billing", v, webhook.Config{})
	if err != nil {
		log.Fatal(err)
	}

	body := []byte(`{"type": "invoice.paid"}`)
	h, err := sign.Standard("msg_1", time.Now(), body, secret)
	if err != nil {
		log.Fatal(err)
	}
	post(endpoint, h, body)
	post(endpoint, h, body)                        // again: nothing happens
	post(endpoint, h, []byte(`{"type": "other"}`)) // forged
	// Output:
	// invoice.paid from billing: {"type": "invoice.paid"}
	// 200
	// 200
	// 401
}

// A handler that is slower than the provider waits is left to Inbox.Run.
func ExampleMode() {
	ctx, stop := context.WithCancel(context.Background())
	v, err := webhook.GitHub("a secret of sixteen bytes")
	if err != nil {
		log.Fatal(err)
	}
	in := newInbox()
	in.Handle("push", func(context.Context, pgx.Tx, holdfast.Event) error {
		defer stop()
		fmt.Println("handler runs")
		return nil
	})
	endpoint, err := webhook.New(in, "github", v, webhook.Config{Mode: webhook.StoreFirst})
	if err != nil {
		log.Fatal(err)
	}
	h, err := sign.GitHub("d-1", "push", []byte(`{}`), "a secret of sixteen bytes")
	if err != nil {
		log.Fatal(err)
	}
	post(endpoint, h, []byte(`{}`)) // stored
	fmt.Println(in.Run(ctx))
	// Output:
	// 202
	// handler runs
	// <nil>
}

// GitHub signs the body alone. Its id and type can be read, and are not to be believed.
func ExampleGitHub() {
	v, err := webhook.GitHub("It's a Secret to Everybody")
	if err != nil {
		log.Fatal(err)
	}
	d, err := v.Verify(http.Header{ // the example of GitHub's documentation
		"X-Github-Delivery":   {"72d3162e"},
		"X-Github-Event":      {"ping"},
		"X-Hub-Signature-256": {"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
	}, []byte("Hello, World!"), time.Now())
	fmt.Println(d.ID, d.Type, "signed:", d.IDSigned, err)
	// Output: 72d3162e ping signed: false <nil>
}

// Stripe signs the time too, so an old request cannot be sent again.
func ExampleStripe() {
	v, err := webhook.Stripe("whsec_test_secret_of_stripe")
	if err != nil {
		log.Fatal(err)
	}
	body, at := []byte(`{"id": "evt_1", "type": "charge.refunded", "created": 1700000000}`), time.Unix(1_700_000_000, 0)
	h, err := sign.Stripe(at, body, "whsec_test_secret_of_stripe")
	if err != nil {
		log.Fatal(err)
	}
	d, err := v.Verify(h, body, at.Add(time.Minute))
	fmt.Println(d.ID, d.Type, "signed:", d.IDSigned, err)

	_, err = v.Verify(h, body, at.Add(time.Hour))
	var refused *webhook.RefusedError
	fmt.Println(errors.As(err, &refused), refused.Reason)
	// Output:
	// evt_1 charge.refunded signed: true <nil>
	// true too_old
}

// A secret is replaced: the old one is accepted until a moment.
func ExampleUntil() {
	end := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	current, err := webhook.Slack("the current signing secret")
	if err != nil {
		log.Fatal(err)
	}
	old, err := webhook.Slack("the old signing secret")
	if err != nil {
		log.Fatal(err)
	}
	v := webhook.AnyOf(current, webhook.Until(end, old))

	body := []byte(`{"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}`)
	for _, now := range []time.Time{end.Add(-time.Minute), end} {
		h, err := sign.Slack(now, body, "the old signing secret")
		if err != nil {
			log.Fatal(err)
		}
		d, err := v.Verify(h, body, now)
		fmt.Println("accepted:", err == nil, d.Type)
	}
	// Output:
	// accepted: true app_mention
	// accepted: false
}

// Providers promise no order. A handler that writes state asks first.
func ExampleInOrder() {
	ctx, pool := context.Background(), exampledb.New()
	in, err := inbox.New(pool, inbox.Config{Consumer: "hooks"})
	if err != nil {
		log.Fatal(err)
	}
	second := time.Date(2026, 1, 1, 12, 0, 2, 0, time.UTC)
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // in a handler
		fmt.Println(webhook.InOrder(ctx, tx, in, "subscription/s-1", second))
		fmt.Println(webhook.InOrder(ctx, tx, in, "subscription/s-1", second.Add(-time.Second)))
		return nil
	})
	fmt.Println(err)
	// Output:
	// true <nil>
	// false <nil>
	// <nil>
}
