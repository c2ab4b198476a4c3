package tenant

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// published takes every event, and remembers each as it came first.
type published struct {
	mu    sync.Mutex
	first map[string]holdfast.Event
	order map[string][]string // ids by key
}

func (p *published) Publish(_ context.Context, events []holdfast.Event) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range events {
		if _, known := p.first[e.ID]; !known {
			p.first[e.ID] = e
			p.order[e.Key] = append(p.order[e.Key], e.ID)
		}
	}
	return make([]error, len(events))
}

func (p *published) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.first)
}

// A relay publishes and a service writes while a tenant is erased: the other tenant's events all come, as they were and in order, and
// of the erased one as many as there were.
func TestLoad_ATenantIsErasedWhileEventsFlow(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	const batches, keys = 100, 5
	writeBatch := func(tenant string, n int) {
		err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			var events []holdfast.Event
			for k := range keys {
				id := fmt.Sprintf("%s-%d-%04d", tenant, k, n)
				events = append(events, holdfast.Event{ID: id, Topic: "orders", Type: "t", Key: fmt.Sprintf("%s/%d", tenant, k),
					Headers: map[string]string{"tenant": tenant, "n": id}, Payload: []byte(id)})
			}
			return outbox.Write(t.Context(), tx, events...)
		})
		if err != nil {
			t.Error(err)
		}
	}
	for n := range batches {
		writeBatch("acme", n)
	}
	p := &published{first: map[string]holdfast.Event{}, order: map[string][]string{}}
	r, err := relay.New(db.Pool, p, relay.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	tenants, err := New(db.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	var written sync.WaitGroup
	written.Go(func() {
		for n := range batches {
			writeBatch("beta", n)
		}
	})
	report, err := tenants.Erase(t.Context(), "acme", EraseOptions{By: "ann", Reason: "the contract ended"})
	if err != nil {
		t.Fatal(err)
	}
	written.Wait()
	if report.Remains() != 0 {
		t.Errorf("%v remain", remaining(report))
	}
	wait.Until(t, "all events are published", func() bool { return p.count() == 2*batches*keys })
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, e := range p.first {
		whole := string(e.Payload) == id && e.Headers["n"] == id
		if erased := e.Payload == nil && e.Headers["n"] == ""; !whole && (!erased || id[:4] == "beta") {
			t.Errorf("%s came with %q and %v", id, e.Payload, e.Headers)
		}
	}
	for key, ids := range p.order {
		for i := 1; i < len(ids); i++ {
			if ids[i] < ids[i-1] {
				t.Errorf("of %s, %s came after %s", key, ids[i], ids[i-1])
			}
		}
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event where key like 'acme/%' and (payload is not null or headers is not null)"); n != 0 {
		t.Errorf("%d events of acme have something", n)
	}
}
