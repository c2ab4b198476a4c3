package relay_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// Somebody deals with the letter that holds a key while nobody owns the lane, and while the key's later events wait for their topic. The end of
// that makes none of them due, as another is before them: the first has to be made due at the claim. (Found by the simulation, seed
// 11325251268365903255.)
func TestDormant_AQueueGoesOnWhoseLaterEventsWaitForTheirTopic(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	pgtest.Exec(t, pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload) values
		(0, 'orders', 'k', 1, 'follows', 'infinity', '1', 's', 't', now(), 'first'),
		(0, 'orders', 'k', 2, 'topic', 'infinity', '2', 's', 't', now(), 'second'),
		(0, 'orders', 'other', 3, 'topic', 'infinity', '3', 's', 't', now(), 'other')`)
	run(t, pool, b, relay.Config{HoldKey: true, Retry: untiring})
	arrives(t, b, "other", "first", "second")
	wantFirsts(t, b, "k", "first", "second")
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
}
