package sign_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/webhook"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// A sender of webhooks keeps the id of an event over its tries, and signs each at its own time.
func ExampleStandard() {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	h, err := sign.Standard("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), secret)
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
