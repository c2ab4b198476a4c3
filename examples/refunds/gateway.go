package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// gateway is a payment provider as they are: it moves money, it has its troubles, it does once what it is asked for under
// one key, and it reports by webhook when a refund has arrived. It may be used by many goroutines at once.
type gateway struct {
	http *httptest.Server

	mu        sync.Mutex
	movements []movement     // in their order
	places    map[string]int // of movements, by kind and key; -1 for what was declined
	calls     int
	repeats   int       // answered PROVIDER.duplicate
	troubles  []trouble // of the calls that come next, in their order
}

// movement is a line of the gateway's statement of account.
type movement struct {
	ID        string `json:"id"`
	Kind      string `json:"kind"`
	Reference string `json:"reference"` // its name at the customer
	Cents     int64  `json:"cents"`
}

// trouble is what goes wrong with a call.
type trouble string

const (
	hangsAfter  trouble = "hangs after"  // it moves the money, and its answer never comes
	hangsBefore trouble = "hangs before" // it does nothing, and its answer never comes
	away        trouble = "away"         // it answers 503
	declines    trouble = "declines"     // it answers 402
	limits      trouble = "limits"       // it answers 429, RATE_LIMIT.exceeded: come again in a second
)

func startGateway() *gateway {
	g := &gateway{places: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{kind}", g.move)
	g.http = httptest.NewServer(mux)
	return g
}

// expect says what goes wrong with the calls that come next.
func (g *gateway) expect(troubles ...trouble) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.troubles = append(g.troubles, troubles...)
}

// statement is what the gateway has done.
func (g *gateway) statement() []movement {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.movements)
}

// of is what the gateway has done under a reference.
func (g *gateway) of(reference string) (found []movement) {
	for _, m := range g.statement() {
		if m.Reference == reference {
			found = append(found, m)
		}
	}
	return found
}

// asked is how often the gateway was called.
func (g *gateway) asked() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls
}

func (g *gateway) move(w http.ResponseWriter, r *http.Request) {
	var asked movement
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, "what is asked for cannot be read", http.StatusBadRequest)
		return
	}
	asked.Kind = r.PathValue("kind")
	done, said := g.answer(asked, r.Header.Get("Idempotency-Key"))
	if said.hangs {
		<-r.Context().Done() // until the caller has had enough
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if said.code != "" {
		w.Header().Set("Error-Code", said.code)
	}
	if said.code == codeRateLimited {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(said.status)
	_ = json.NewEncoder(w).Encode(done)
}

// codeRateLimited is the error_code for a client that has to wait.
const codeRateLimited = string(retry.RateLimit) + ".exceeded"

// reply is how a call is answered, beside the movement.
type reply struct {
	status int
	code   string // error_code
	hangs  bool
}

// answer does what is asked for. For a key that has been here before it says that this was done already, and what that was.
func (g *gateway) answer(asked movement, key string) (done movement, said reply) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	var now trouble
	if len(g.troubles) > 0 {
		now, g.troubles = g.troubles[0], g.troubles[1:]
	}
	switch now {
	case hangsBefore:
		return done, reply{hangs: true}
	case away:
		return done, reply{status: http.StatusServiceUnavailable}
	case limits:
		return done, reply{status: http.StatusTooManyRequests, code: codeRateLimited}
	}
	place, again := g.places[asked.Kind+" "+key]
	switch {
	case now == declines && !again, again && place < 0: // It stays so, whatever the card could pay by then.
		g.places[asked.Kind+" "+key] = -1
		return done, reply{status: http.StatusPaymentRequired}
	case again && (g.movements[place].Reference != asked.Reference || g.movements[place].Cents != asked.Cents):
		return done, reply{status: http.StatusConflict}
	case again:
		g.repeats++
		return g.movements[place], reply{status: http.StatusConflict, code: string(retry.Duplicate), hangs: now == hangsAfter}
	default:
		place = len(g.movements)
		asked.ID = fmt.Sprintf("%s_%d", asked.Kind, place+1)
		g.movements = append(g.movements, asked)
		g.places[asked.Kind+" "+key] = place
	}
	return g.movements[place], reply{status: http.StatusCreated, hangs: now == hangsAfter}
}

// Its webhooks follow Standard Webhooks, with a secret that comes from wherever the service keeps its secrets.
const gatewaySecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// notify sends the webhook of a payout that has arrived, and returns how it was answered. Every try has the same id and a
// signature of its own.
func (g *gateway) notify(ctx context.Context, url string, payout movement) (status int, err error) {
	body, err := json.Marshal(map[string]any{"type": "refund.succeeded", "data": payout})
	if err != nil {
		return 0, err
	}
	signed, err := sign.Standard("evt_"+payout.ID, time.Now(), body, gatewaySecret)
	if err != nil {
		return 0, err
	}
	return stories.Deliver(ctx, url, signed, body)
}
