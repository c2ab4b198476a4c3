package relay_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// Two runs of one relay have the same name, so neither is kept from what the other has claimed.
func TestRunTwice_ARelayThatRunsRefusesToRunAgain(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	r, err := relay.New(pool, b, relay.Config{Name: "billing-1", Lease: 2 * time.Minute, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{"first", "second"} { // It may run again when it has stopped.
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		write(t, pool, event("k", payload))
		arrives(t, b, payload)
		over, end := context.WithCancel(ctx)
		end() // A Run that did begin would return nil.
		if err := r.Run(over); err == nil || !strings.Contains(err.Error(), "billing-1 runs already") {
			t.Errorf("beside another Run it ended with %v", err)
		}
		if h := r.Health(ctx); !h.Live {
			t.Errorf("afterwards the one that runs is %+v", h)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	wantOnce(t, b)
}

// hanging is a Publisher that answers only when it is cancelled.
type hanging struct{ called chan struct{} }

func (h hanging) Publish(ctx context.Context, events []holdfast.Event) []error {
	select {
	case h.called <- struct{}{}:
	default:
	}
	<-ctx.Done()
	errs := make([]error, len(events))
	for i := range errs {
		errs[i] = ctx.Err()
	}
	return errs
}

// No statement can be made any more, so that waiting for the database would last for ever.
func TestRunTwice_AClosedPoolEndsARelayWithAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	b, h := newBroker(), hanging{make(chan struct{}, 1)}
	for _, row := range []struct {
		name   string
		p      relay.Publisher
		before func(t *testing.T, pool *pgxpool.Pool, r *relay.Relay)
	}{
		{"while it has nothing to do", b, func(t *testing.T, _ *pgxpool.Pool, r *relay.Relay) {
			wait.Until(t, "it is healthy", func() bool { return healthy(r) })
		}},
		{"while its publisher answers nothing", h, func(t *testing.T, pool *pgxpool.Pool, _ *relay.Relay) {
			write(t, pool, event("k", "1"))
			<-h.called
		}},
		{"before it has any lane", b, func(*testing.T, *pgxpool.Pool, *relay.Relay) {}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			own := setup(t, 2)
			pool, err := pgxpool.NewWithConfig(t.Context(), own.Config())
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			r, err := relay.New(pool, row.p, relay.Config{Lease: 2 * time.Minute, StopTimeout: time.Hour, Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			row.before(t, own, r)
			pool.Close()
			select {
			case err := <-done:
				if !errors.Is(err, puddle.ErrClosedPool) || !strings.Contains(err.Error(), "close the pool after Run has returned") {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(wait.Limit()):
				t.Error("it runs for ever")
			}
		})
	}
}
