package relay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Everything at once: a broker that refuses at random for every reason there is, writers that commit out of order,
// relays that come and go, small pages and a small cap.
func TestStress_ABrokerThatRefusesAtRandomLosesAndReordersNothing(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	pool, b := setup(t, 4), newBroker()
	seed := seed.New(t)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 7))
	b.set(func(e holdfast.Event) error {
		mu.Lock()
		defer mu.Unlock()
		switch rng.IntN(60) {
		case 0, 1, 2, 3:
			return refusal(publish.FaultRecord)
		case 4:
			return refusal(publish.FaultTopic)
		case 5, 6:
			return refusal(publish.FaultPartition)
		case 7:
			return refusal(publish.FaultBroker)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	h, wg := writers(ctx, t, pool, 5, 10, seed, "")
	config := func(i int) relay.Config {
		return relay.Config{Name: fmt.Sprint("relay ", i), Lease: time.Second, BatchSize: 7, Retry: untiring, ParkAfter: 50 * time.Millisecond}
	}
	stops := []func(){run(t, pool, b, config(0)), run(t, pool, b, config(1))}
	for i := 2; ctx.Err() == nil; i++ {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second): // let each live for a moment
		}
		stops[i%2]()
		stops[i%2] = run(t, pool, b, config(i))
	}
	wg.Wait()
	b.set(nil)
	wait.Until(t, "all that was committed arrives", func() bool { return h.complete(b) })
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
	for _, stop := range stops {
		stop()
	}
	h.check(t, b.events())
	if n := letters(t, pool); n != 0 {
		t.Errorf("%d letters, although nothing may be given up", n)
	}
}
