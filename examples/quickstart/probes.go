package quickstart

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// snippet: probes

// Probes answers /livez and /readyz of a process that serves requests, and runs a relay and a consumer beside them. It is ready while
// the database answers: without Kafka it takes requests and writes events all the same.
func Probes(pool *pgxpool.Pool, r *relay.Relay, in *inbox.Inbox) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, req *http.Request) {
		of, to := r.Health(req.Context()), in.Health(req.Context())
		answer(w, of.Live && to.Live, of.Reasons, to.Reasons)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
		defer cancel()
		of, to := r.Health(ctx), in.Health(ctx)
		answer(w, pool.Ping(ctx) == nil, of.Reasons, to.Reasons)
	})
	return mux
}

// answer says 200 or 503, and why.
func answer(w http.ResponseWriter, well bool, relay, inbox []string) {
	w.Header().Set("Content-Type", "application/json")
	if !well {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(map[string][]string{"relay": relay, "inbox": inbox})
}

// end snippet
