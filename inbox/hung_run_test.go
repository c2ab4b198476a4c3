package inbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// Each worker ends with the error that ends Run. Those that end after Run has taken the first must not wait for it to take theirs.
func TestHungRun_RunEndsWhenHandlersHangBesideABacklog(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) {
		c.Workers, c.MaxHung = 4, 1
		c.Timeout, c.Grace = 20*time.Millisecond, 20*time.Millisecond
	})
	release := make(chan struct{})
	defer close(release)
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { <-release; return nil })
	for i := range 40 {
		b.store(in, event(fmt.Sprint(i), ""))
	}
	for range 25 { // It depends on which worker ends when.
		ended := make(chan error, 1)
		go func() { ended <- in.Run(b.Context()) }()
		select {
		case err := <-ended:
			if !errors.Is(err, ErrHungHandlers) {
				t.Fatalf("Run returned %v, want ErrHungHandlers", err)
			}
		case <-time.After(wait.Limit()):
			t.Fatal("Run did not return")
		}
	}
}
