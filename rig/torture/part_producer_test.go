//go:build linux

package main

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Without a fault nothing refuses a transaction, so any error is a deadlock or another of the producers' own making.
func TestPartProducer_TransactionsOfProducersDoNotDeadlock(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	const at, each = 12, 25 // a fifth of all changes are of one key, so that most transactions wait for another
	db := pgtest.New(t)
	if err := makeTables(t.Context(), db.Pool); err != nil {
		t.Fatal(err)
	}
	pool := db.PoolWith(t, func(c *pgxpool.Config) {
		c.MaxConns = at
		c.ConnConfig.RuntimeParams["deadlock_timeout"] = "50ms" // one that there is shows soon
	})
	rec, err := history.Open(t.TempDir(), "producer/0")
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	p := &producer{part: part{Actor: "producer/0", Topics: []string{"orders", "stock"}, Late: "late", Misspelt: "oders"}, pool: pool, rec: rec, conduct: &conduct{}}
	p.conduct.set(misspells)
	var all sync.WaitGroup
	for w := range at {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for range each {
				if _, err := p.transaction(rng); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
