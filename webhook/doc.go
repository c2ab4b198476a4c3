// Package webhook takes webhooks in: it finds out whether a request is the provider's own, and gives what it says to an
// inbox, which handles it once.
//
//	v, err := webhook.GitHub(secret)
//	h, err := webhook.New(in, "github", v, webhook.Config{})
//	mux.Handle("/hooks/github", h)
//	go in.Run(ctx) // retries, and what was stored first
//
// # Reading order
//
// verifier.go says what a verifier answers; standard.go, stripe.go, github.go, slack.go and shopify.go are those of five
// providers, each beside the function that signs as the provider does; secret.go and signature.go are what they share.
// receiver.go is one request's way, config.go what can be said about it. event.go decides which event a delivery is, and
// answer.go what the provider gets. order.go is for handlers whose events overtake each other.
//
// # Which secret
//
// One handler is one endpoint with the secrets of one sender. Where tenants have secrets of their own, give each an
// endpoint of its own and choose by the URL, never by what the body or a header says before it is verified: who can
// choose the secret can sign. docs/guides/webhooks.md has the table of what each provider signs.
package webhook
