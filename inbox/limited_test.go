package inbox

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// A type with a limit of its own claims one event at a time. It must not look at all that was handled before each of them.
func TestLimited_ATypeWithALimitGoesOnFromItsMark(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf, WithConcurrency(1))
	in.registry.start()
	put := func(id string, ago string) {
		t.Helper()
		b.store(in, event(id, id))
		pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now() - $2::interval where event_id = $1", id, ago)
	}
	var mark claimMark
	claims := func(want string) {
		t.Helper()
		got := ""
		if s := in.backlog.claimOne(t.Context(), t.Context(), "order.placed", &mark); s != nil {
			got = s.e.ID
		}
		if got != want {
			t.Fatalf("claimed %q, want %q", got, want)
		}
	}
	put("first", "50 minutes")
	put("second", "40 minutes")
	claims("first")
	mark.took, mark.ended = time.Hour, time.Now() // It is slow to look at everything.
	put("overlooked", "1 hour")
	claims("second")
	mark.ended = time.Now().Add(-wholeAtLeast)
	claims("overlooked")
}

// The types of one registration share their turns, but each has a loop over its stored events.
func TestLimited_EachTypeOfARegistrationIsWoken(t *testing.T) {
	t.Parallel()
	in := newInbox(nil, Config{Consumer: "billing"}.withDefaults())
	in.note(registration{limit: 1}, "order.v1", "order.v2")
	in.wake()
	for _, eventType := range []string{"order.v1", "order.v2"} {
		select {
		case <-in.kinds[eventType].wakeup:
		default:
			t.Errorf("the loop over %s was not woken", eventType)
		}
	}
}
