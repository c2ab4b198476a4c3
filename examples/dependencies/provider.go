package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// provider is a payment provider. It charges what has one key once.
type provider struct {
	address string // the same each time it is started
	server  *httptest.Server

	mu      sync.Mutex
	busy    bool // it answers 503
	silent  bool // it does not answer
	charges map[string]int
}

// start has it listen. At first it has any address.
func (p *provider) start() error {
	address := p.address
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	p.address = listener.Addr().String()
	p.server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}}
	p.server.Start()
	return nil
}

// stop has it refuse connections.
func (p *provider) stop() { p.server.Close() }

// is sets how it behaves.
func (p *provider) is(busy, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy, p.silent = busy, silent
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // Until that is read, nobody notices that a caller hangs up.
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.busy:
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusServiceUnavailable)
	case p.silent:
		p.mu.Unlock()
		<-r.Context().Done() // The caller has hung up.
		p.mu.Lock()
	default:
		p.charges[r.Header.Get("Idempotency-Key")]++
	}
}
