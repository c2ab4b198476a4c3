package webhook_test

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/webhook"
)

// Each tenant has an endpoint and secrets of its own: the URL says whose secret it is, before anything of the request is
// believed.
func ExampleNew_tenants() {
	mount := func(mux *http.ServeMux, in *inbox.Inbox, secrets map[string][]string) error { // by endpoint
		for endpoint, current := range secrets {
			v, err := webhook.Standard(current...)
			if err != nil {
				return err
			}
			h, err := webhook.New(in, endpoint, v, webhook.Config{})
			if err != nil {
				return err
			}
			mux.Handle("/hooks/"+endpoint, h)
		}
		mux.Handle("/hooks/", webhook.Gone()) // endpoints that there are no longer, or never were
		return nil
	}
	_ = mount
}

// A sender of webhooks keeps the id of an event over its tries, and signs each at its own time.
func ExampleSignStandard() {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	h, err := webhook.SignStandard("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), secret)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(h.Get("webhook-signature"))
	v, err := webhook.Standard(secret)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = v.Verify(h, []byte(`{"test": 2432232314}`), time.Unix(1614265330, 0).Add(time.Hour))
	var refused *webhook.RefusedError
	fmt.Println(errors.As(err, &refused), err)
	// Output:
	// v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=
	// true refused, too_old: the request was signed more than 5m0s ago
}
