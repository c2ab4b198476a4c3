package idempotency

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// TestStorm_WhateverHappensEverySaleHappensOnce lets many clients on three nodes ask for the same sales, while handlers fail,
// panic, lose their leases and their connections at random places, and a completer runs: in the end each sale is there
// once.
// R40.
func TestStorm_WhateverHappensEverySaleHappensOnce(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	b := openTill(t)
	seed := seed.New(t)
	const keys, workers, requests = 40, 6, 80
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 0))
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	calm := false
	happened := map[int]int{}
	b.at = func(place string, r *http.Request) error {
		mu.Lock()
		what := random.IntN(20)
		quiet := calm
		if !quiet {
			happened[what]++
		}
		mu.Unlock()
		if quiet {
			return nil
		}
		switch what {
		case 0, 1:
			return errors.New("planned")
		case 2:
			panic("planned")
		case 3, 4, 5: // It was frozen, and everybody else too.
			_, _ = b.db.Exec(t.Context(), "update holdfast.idempotency set lease_until = clock_timestamp() where ctid = any (array(select ctid from holdfast.idempotency where state = 'pending' for no key update skip locked))")
		case 6: // Through a pooler that hits the statement above too.
			_, _ = b.db.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'node' and random() < 0.5")
		}
		return nil
	}
	var nodes []*Guard
	var services []http.Handler
	for range 3 {
		config := b.db.Config().Copy()
		config.MaxConns = 6
		config.ConnConfig.RuntimeParams["application_name"] = "node"
		g := b.guardOn(b.poolOf(config), soon(-1))
		nodes, services = append(nodes, g), append(services, b.sell(g, completed(func(o *Route) { o.Timeout = 10 * time.Second })))
	}
	send := func(key int) (code int) {
		defer func() {
			if p := recover(); p != nil && p != "planned" {
				panic(p)
			}
		}()
		return b.send(services[roll(len(services))], sent{key: fmt.Sprint("k", key)}).Code
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range requests { // All are at about the same sales at the same time.
				switch code := send((i*keys/requests + roll(3)) % keys); code {
				case 0, 201, 409, 500, 503:
				default:
					t.Errorf("got %d", code)
				}
				if roll(5) == 0 {
					_, _ = nodes[roll(len(nodes))].CompleteOnce(t.Context()) // Its connection may be killed.
				}
			}
		})
	}
	wg.Wait()
	mu.Lock()
	calm = true
	mu.Unlock()
	for key := range keys {
		wait.Until(b, fmt.Sprint("sale ", key, " is answered"), func() bool { return send(key) == 201 })
	}
	b.sold(keys)
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where attempt > 1"); n == 0 {
		t.Error("no request was run twice: nothing was shown")
	}
	t.Logf("%d runs of %d sales; %d errors, %d panics, %d lapses, %d kills", b.runs.Load(), keys, happened[0]+happened[1], happened[2], happened[3]+happened[4]+happened[5], happened[6])
}
