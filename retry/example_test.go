package retry_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/holdfast-go/holdfast/retry"
)

// A server that is busy at first gets the request again, under the same key.
func ExampleClient() {
	keys := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if keys[key]++; keys[key] < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()

	log := retry.NewCSVLog(os.Stdout)
	client := retry.Client(retry.Transport{Observer: retry.Observer{OnAttempt: func(a retry.Attempt) {
		a.Delay = 0 // it is random
		log.Attempt(a)
	}}})
	resp, err := client.Post(server.URL, "application/json", strings.NewReader(`{"amount": 1000}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, "under", len(keys), "key")
	// Output:
	// attempt,delay_ms,status,code,notes
	// 1,0,5xx,503,DEPENDENCY.unavailable
	// 2,0,5xx,503,DEPENDENCY.unavailable
	// 3,0,200,201,success
	// 201 Created under 1 key
}
