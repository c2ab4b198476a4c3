// Package webhook receives webhooks. It verifies that a request comes from the provider, and passes its event to an
// inbox, which handles it once.
//
//	v, err := webhook.GitHub(secret)
//	h, err := webhook.New(in, "github", v, webhook.Config{})
//	mux.Handle("/hooks/github", h)
//	go in.Run(ctx) // retries, and events of StoreFirst
//
// # Reading order
//
// verifier.go says what a Verifier returns. standard.go, stripe.go, github.go, slack.go and shopify.go hold the
// verifiers of five providers. signature.go holds what they share, and internal/signing what they share with package
// sign, which signs as the providers do. receiver.go handles one request, from its method to its answer; config.go has its Config. event.go
// decides which event a delivery is, and answer.go what the provider is answered. order.go is for handlers whose events
// can arrive out of order.
//
// # Which secret
//
// One handler is one endpoint with the secrets of one sender. If tenants have secrets of their own, give each tenant an
// endpoint of its own and choose by the URL. Never choose by the body or a header before it is verified: anybody who
// can choose the secret can sign. docs/guides/webhooks.md lists what each provider signs.
package webhook
