package retry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/retry"
)

// Delay is pure: the caller brings the random number, so the moment of the next attempt can be stored.
func ExamplePolicy_Delay() {
	p := retry.Policy{Base: time.Second, Cap: 10 * time.Second}
	for attempt := 1; attempt <= 5; attempt++ {
		fmt.Println(attempt, p.Delay(attempt, 0), p.Delay(attempt, 0.5), p.Delay(attempt, 0.75))
	}
	// Output:
	// 1 0s 500ms 750ms
	// 2 0s 1s 1.5s
	// 3 0s 2s 3s
	// 4 0s 4s 6s
	// 5 0s 5s 7.5s
}

// What is passing is tried again.
func ExampleDo() {
	attempt := 0
	err := retry.Do(context.Background(), retry.Policy{Base: time.Millisecond}, func(context.Context) error {
		attempt++
		if attempt < 3 {
			return errors.New("busy")
		}
		return nil
	})
	fmt.Println(err, "after", attempt, "attempts")
	// Output: <nil> after 3 attempts
}

// What no attempt will change is not tried again.
func ExamplePermanent() {
	err := retry.Do(context.Background(), retry.Policy{}, func(context.Context) error {
		return retry.Permanent(errors.New("no such account"))
	})
	var gaveUp *retry.GaveUpError
	fmt.Println(errors.As(err, &gaveUp), gaveUp.Attempts, gaveUp.Reason, "-", gaveUp.Err)
	// Output: true 1 not retryable - no such account
}

// The other side said how long to wait. A wait that does not fit into the budget is not begun.
func ExampleAfter() {
	err := retry.Do(context.Background(), retry.Policy{Budget: time.Minute}, func(context.Context) error {
		return retry.After(errors.New("rate limit"), time.Hour)
	})
	var gaveUp *retry.GaveUpError
	fmt.Println(errors.As(err, &gaveUp), gaveUp.Attempts, gaveUp.Reason)
	// Output: true 1 budget spent
}

// What kind of failure it is, by one table.
func ExampleClassify() {
	for _, err := range []error{
		context.DeadlineExceeded,
		retry.After(errors.New("slow down"), time.Second),
		retry.Permanent(errors.New("bad payload")),
		errors.New("something else"),
	} {
		class := retry.Classify(err)
		fmt.Println(class, class.Retryable())
	}
	// Output:
	// DEPENDENCY.timeout true
	// RATE_LIMIT true
	// VALIDATION false
	// TRANSIENT true
}

// All attempts at a request carry one Idempotency-Key, so the server can tell that they are one operation.
func ExampleTransport() {
	attempts := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		attempts++
		fmt.Println("attempt", attempts, r.Header.Get("Idempotency-Key"))
		if attempts == 1 {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer server.Close()

	client := &http.Client{Transport: &retry.Transport{Key: func(*http.Request) string { return "refund-7" }}}
	resp, err := client.Post(server.URL, "application/json", strings.NewReader(`{"cents": 1000}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output:
	// attempt 1 refund-7
	// attempt 2 refund-7
	// 200 OK
}
