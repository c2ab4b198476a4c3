//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
)

// provider is what handlers of typePaid need beyond Postgres: a service of the run, so that it outlives the processes that call it.
type provider struct {
	server  *http.Server
	url     string
	account account

	mu      sync.Mutex
	how     string    // how it is away; "" is there
	settled time.Time // of this absence: from then on all nodes know, and one event at a time tries it
	calls   int       // in this absence
	tries   int       // of these, after settled
	running map[string]int
	most    int // tries at once
}

// How a provider is away.
const (
	refuses  = "refuses" // it closes the connection
	busy     = "busy"    // it answers 503, and says when to come again
	noAnswer = "hangs"   // it does not answer
)

const (
	// providerName is its name in Needs and Unavailable.
	providerName = "provider"
	// callTimeout is how long a handler waits for it.
	callTimeout = time.Second
	// providerAsks is how long a busy one wants to be left alone.
	providerAsks = 2 * time.Second
	// callerHeader says which part calls, and processHeader its process.
	callerHeader, processHeader = "Actor", "Process"
	// stepHeader and keyHeader are those of a call in a step, and sinceHeader when the step began.
	stepHeader, keyHeader, sinceHeader = "Step", "Idempotency-Key", "Since"
	// alwaysThere is the path of a part of it that is never away.
	alwaysThere = "/always"
	// providerSays begins the error of each call that failed.
	providerSays = "the provider failed: "
)

func startProvider() (*provider, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the provider: %w", err)
	}
	p := &provider{url: "http://" + listener.Addr().String(), running: map[string]int{}}
	p.server = &http.Server{Handler: p}
	go func() { _ = p.server.Serve(listener) }() // stop ends it
	return p, nil
}

func (p *provider) stop() { _ = p.server.Close() }

// leave makes it go away. It counts calls anew, and tries from a time on.
func (p *provider) leave(how string, settled time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.how, p.settled, p.calls, p.tries, p.most = how, settled, 0, 0, 0
}

// come brings it back.
func (p *provider) come() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.how = ""
}

// seen is how many calls found it away, how many of these were tries, and how many tries there were at once.
func (p *provider) seen() (calls, tries, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls, p.tries, p.most
}

// caller is a part whose event tries it at this moment, "" if none does.
func (p *provider) caller() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for actor := range p.running {
		return actor
	}
	return ""
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, _ := io.ReadAll(r.Body) // Until that is read, nobody notices that a caller hangs up.
	how, left := "", func() {}
	if r.URL.Path != alwaysThere {
		how, left = p.enter(r.Header.Get(callerHeader))
	}
	defer left()
	switch how {
	case "":
		if name := r.Header.Get(stepHeader); name != "" {
			since, _ := time.Parse(time.RFC3339Nano, r.Header.Get(sinceHeader))
			p.account.add(step{string(id), name}, call{
				by:    processOf(r.Header.Get(processHeader)),
				key:   r.Header.Get(keyHeader),
				since: since,
				at:    time.Now(),
			})
		}
	case refuses:
		panic(http.ErrAbortHandler)
	case busy:
		w.Header().Set("Retry-After", strconv.Itoa(int(providerAsks.Seconds())))
		w.WriteHeader(http.StatusServiceUnavailable)
	case noAnswer:
		<-r.Context().Done()
	}
}

// enter counts a call, until left.
func (p *provider) enter(actor string) (how string, left func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.how == "" {
		return "", func() {}
	}
	p.calls++
	if time.Now().Before(p.settled) {
		return p.how, func() {}
	}
	p.tries++
	p.running[actor]++
	n := 0
	for _, calls := range p.running {
		n += calls
	}
	p.most = max(p.most, n)
	return p.how, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.running[actor]--; p.running[actor] == 0 {
			delete(p.running, actor)
		}
	}
}

// providerClient keeps no connection: a part must leave none behind.
var providerClient = &http.Client{Timeout: callTimeout, Transport: &http.Transport{DisableKeepAlives: true}}

// asked is what a step gives to the provider.
type asked struct {
	name, key string // "" for a call that is no step
	since     time.Time
}

// pay calls the provider for an event. If it is away, that is Unavailable for an event that needs it.
func (n *node) pay(ctx context.Context, e holdfast.Event, of asked) error {
	if e.Type != typePaid {
		return n.post(ctx, alwaysThere, e.ID, of)
	}
	err := n.post(ctx, "", e.ID, of)
	return cmp.Or(n.withBug(bugBlame, func() error { return err }), inbox.Unavailable(providerName, err))
}

func (n *node) post(ctx context.Context, path, id string, of asked) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.Provider+path, strings.NewReader(id))
	if err != nil {
		return retry.Permanent(err)
	}
	for name, value := range map[string]string{
		callerHeader: n.Actor, processHeader: n.name(), stepHeader: of.name, keyHeader: of.key, sinceHeader: of.since.Format(time.RFC3339Nano),
	} {
		req.Header.Set(name, value)
	}
	res, err := providerClient.Do(req)
	if err != nil {
		return fmt.Errorf(providerSays+"%w", err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	err = errors.New(providerSays + res.Status)
	if seconds, wrong := strconv.Atoi(cmp.Or(res.Header.Get("Retry-After"), "none")); wrong == nil {
		err = retry.After(err, time.Duration(seconds)*time.Second)
	}
	return err
}
