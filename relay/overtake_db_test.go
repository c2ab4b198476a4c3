package relay_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// besides publishes a backlog of acme. When some of it is out, it lets beta write, and from then on each batch of acme takes a while,
// until all of beta is out.
type besides struct {
	write func() // beta's events

	mu      sync.Mutex
	ids     []string
	acme    int
	started bool
	beta    int
	behind  int // events of acme that were out with the last of beta
	done    chan struct{}
}

func (b *besides) Publish(_ context.Context, events []holdfast.Event) []error {
	b.mu.Lock()
	if b.acme >= 2000 && !b.started {
		b.started = true
		b.write()
	}
	slow := b.started
	b.mu.Unlock()
	if slow && strings.HasPrefix(events[len(events)-1].Key, "acme/") {
		select {
		case <-b.done:
		case <-time.After(300 * time.Millisecond): // sleep: a slow broker, so that there is a backlog to overtake
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		b.ids = append(b.ids, e.ID)
		if strings.HasPrefix(e.Key, "acme/") {
			b.acme++
			continue
		}
		if b.beta++; b.beta == quietEvents {
			b.behind = b.acme
			close(b.done)
		}
	}
	return make([]error, len(events))
}

const (
	noisyEvents = 20_000
	quietEvents = 20
)

// One tenant's backlog and another's events are in one lane, so the others would come after all of it.
func TestOvertake_EventsOfAQuietTenantOvertakeABacklog(t *testing.T) {
	skip.InShort(t, "it takes 9 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	quiet := ""
	for n := 0; quiet == ""; n++ {
		if key := fmt.Sprintf("beta/%d", n); lane.Of(key, "", 8) == lane.Of("acme/1", "", 8) {
			quiet = key
		}
	}
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'acme/1', 'placed', 'p', id => 'acme-' || lpad(n::text, 6, '0')) from generate_series(1, $1::integer) n", noisyEvents)
	p := &besides{done: make(chan struct{}), write: func() {
		for n := range quietEvents {
			if _, err := db.Exec(t.Context(), "select holdfast.write('orders', $1, 'placed', 'p', id => $2)", quiet, fmt.Sprintf("beta-%06d", n)); err != nil {
				t.Error(err)
			}
		}
	}}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	r, err := relay.New(db.Pool, p, relay.Config{TenantSeparator: "/", BatchSize: 500, Lease: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	wait.Until(t, "everything is published", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.ids) >= noisyEvents+quietEvents
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.behind > noisyEvents*3/4 {
		t.Errorf("with the last event of beta, %d of %d events of acme were out", p.behind, noisyEvents)
	}
	last := map[string]string{}
	for _, id := range p.ids {
		if tenant := id[:4]; id <= last[tenant] {
			t.Fatalf("%s comes after %s", id, last[tenant])
		} else {
			last[tenant] = id
		}
	}
	if len(p.ids) != noisyEvents+quietEvents {
		t.Errorf("%d events are published, want each once", len(p.ids))
	}
}
