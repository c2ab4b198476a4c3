package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// services are those that the handler calls. The payments honor keys: they charge once for each key, and answer a key that comes again as they
// did before. The warehouse does not know keys: it reserves with each call.
type services struct {
	mu      sync.Mutex
	busy    bool   // the payments answer 503, once
	kill    string // the service that kills the node when it has done its work
	killer  func()
	answers map[string]string // of the payments, by key
	calls   map[string]int    // by service and order
	effects map[string]int    // by service and order
}

func (s *services) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := r.URL.Path + " " + o.ID
	s.calls[of]++
	if s.busy && r.URL.Path == "/payments" {
		s.busy = false
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	answer, known := s.answers[key]
	if !known || r.URL.Path == "/warehouse" {
		s.effects[of]++
		answer = fmt.Sprintf("%s, no. %d", of, s.effects[of])
		s.answers[key] = answer
	}
	if s.kill == r.URL.Path {
		s.kill = ""
		s.killer()
	}
	_ = json.NewEncoder(w).Encode(answer) // A node that is gone does not read it.
}

// were says how often a service was called for an order, and what it did.
func (s *services) were(service, order string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := service + " " + order
	return fmt.Sprintf("%s for %s: calls %d, effects %d", service[1:], order, s.calls[of], s.effects[of])
}
