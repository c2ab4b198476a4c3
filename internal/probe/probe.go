// Package probe is what liveness and readiness probes learn of the parts of a process.
package probe

import (
	"encoding/json"
	"net/http"
)

// Health is what a probe learns of a part, as its answer has it.
type Health struct {
	Live    bool     `json:"live"`
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// AllLive says whether no part needs a new process.
func AllLive(parts map[string]Health) bool {
	for _, h := range parts {
		if !h.Live {
			return false
		}
	}
	return true
}

// AllReady says whether every part does its work.
func AllReady(parts map[string]Health) bool {
	for _, h := range parts {
		if !h.Ready {
			return false
		}
	}
	return true
}

// Answer says 200 or 503, and why as JSON, which nobody keeps.
func Answer(w http.ResponseWriter, well bool, why any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !well {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(why) // it fails if the asker has gone
}
