package relay_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// A lane's own transaction locks its row for as long as it takes, and the lanes are saved, and their leases renewed, all in
// one statement. That must not wait for it: else every lane would be lost, and publish again what it had published.
func TestSlowLane_ASlowTransactionOfOneLaneCostsNoOtherItsLease(t *testing.T) {
	skip.InShort(t, "it takes 27 s beside the others")
	t.Parallel()
	const lease = 16 * time.Second // half of it is more than a save takes on a busy machine
	pool, b := setup(t, 4), newBroker()
	pgtest.Exec(t, pool, `create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(18); return new; end $$`)
	pgtest.Exec(t, pool, "create trigger slow before insert on holdfast.parked for each row execute function slow()")
	b.set(refusing(publish.FaultRecord, "refused"))
	write(t, pool, event("slow", "refused"))
	slow := int(pgtest.Count(t, pool, "select lane from holdfast.event where key = 'slow'"))
	var keys []string // of other lanes
	for i := range 40 {
		key := fmt.Sprintf("key %d", i)
		write(t, pool, event(key, "first of "+key))
	}
	for i := range 40 {
		key := fmt.Sprintf("key %d", i)
		if int(pgtest.Count(t, pool, "select lane from holdfast.event where key = $1", key)) != slow {
			keys = append(keys, key)
		}
	}
	var mu sync.Mutex
	var lost []int
	run(t, pool, b, relay.Config{Lease: lease, Retry: untiring, Observer: relay.Observer{OnLost: func(lane int, _ bool, _ error) {
		mu.Lock()
		defer mu.Unlock()
		lost = append(lost, lane)
	}}})
	for range 20 { // longer than it takes, with its lease and all
		for _, key := range keys {
			write(t, pool, event(key, "another of "+key))
		}
		time.Sleep(time.Second) // sleep: longer than a lease, by the clock of a real Postgres
	}
	wait.Until(t, "the refused event is parked", func() bool { return parked(t, pool) == 1 })
	wait.Until(t, "all of the other lanes arrive", func() bool { return len(b.events()) >= 21*len(keys) })
	mu.Lock()
	defer mu.Unlock()
	if others := slices.DeleteFunc(slices.Clone(lost), func(lane int) bool { return lane == slow }); len(others) > 0 {
		t.Errorf("lanes %v were lost over a transaction of lane %d", others, slow)
	}
	seen := map[string]int{}
	for _, e := range b.events() {
		if slices.Contains(keys, e.Key) {
			seen[e.Key]++
		}
	}
	for _, key := range keys {
		if seen[key] != 21 {
			t.Errorf("%d events of %s were published, want 21: lanes published again what they had published", seen[key], key)
		}
	}
}
