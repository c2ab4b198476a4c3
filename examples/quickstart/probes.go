package quickstart

import (
	"encoding/json"
	"net/http"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// snippet: probes

// Probes answers /livez and /readyz of a process that runs a relay and a consumer.
func Probes(r *relay.Relay, in *inbox.Inbox) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, req *http.Request) {
		of, to := r.Health(req.Context()), in.Health(req.Context())
		answer(w, of.Live && to.Live, of.Reasons, to.Reasons)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		of, to := r.Health(req.Context()), in.Health(req.Context())
		answer(w, of.Ready && to.Ready, of.Reasons, to.Reasons)
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
