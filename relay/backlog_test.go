package relay_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestBacklog_TheBacklogIsWhatIsWrittenAndNotPublished(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	pool := setup(t, 1)
	b := newBroker()
	r, err := relay.New(pool, b, relay.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	look := func() relay.Backlog {
		t.Helper()
		got, err := r.Backlog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	about := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want || got > want+5*time.Minute {
			t.Errorf("%s: the oldest is %v old, want %v", what, got, want)
		}
	}
	old := func(key string, age time.Duration) (e holdfast.Event) {
		e = event(key, key)
		e.Time = time.Now().Add(-age)
		return e
	}
	if got := look(); got != (relay.Backlog{}) {
		t.Errorf("nothing was written: %+v", got)
	}

	// A transaction that began first and is still open has the oldest event; nobody can read it yet.
	slow, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Write(t.Context(), slow, old("slow", 3*time.Hour)); err != nil {
		t.Fatal(err)
	}
	write(t, pool, old("a", 2*time.Hour), old("b", time.Hour))
	got := look()
	about("two events", got.Oldest, 2*time.Hour)
	if got.Lanes != 1 || got.Waiting != 0 || got.Scheduled != 0 {
		t.Errorf("two events: %+v", got)
	}

	// Of the window that is being read, what lies up to pos is published.
	pgtest.Exec(t, pool, "update holdfast.lane set upto = pg_current_snapshot(), pos = (select min(seq) from holdfast.event where key = 'a')")
	about("the first of a window is published", look().Oldest, time.Hour)
	pgtest.Exec(t, pool, "update holdfast.lane set upto = null, pos = 0")

	stop := run(t, pool, b, relay.Config{})
	arrives(t, b, "a", "b")
	wait.Until(t, "the cursor is saved", func() bool { return look() == relay.Backlog{} })
	stop()

	// It was in flight when the cursor was saved.
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	about("a slow transaction has ended", look().Oldest, 3*time.Hour)

	// What the broker refuses is parked, and what is due is not in the log yet.
	stop = run(t, pool, b, relay.Config{})
	arrives(t, b, "slow")
	wait.Until(t, "the cursor is saved", func() bool { return look() == relay.Backlog{} })
	b.set(refusing(publish.FaultRecord, "never"))
	write(t, pool, event("never", "never"), event("never", "after it"))
	wait.Until(t, "two events are parked", func() bool { got := look(); return got.Waiting == 2 && got.OldestWaiting > 0 && got.Lanes == 0 })
	stop()
	later := event("later", "later")
	later.NotBefore = time.Now().Add(time.Hour)
	write(t, pool, later)
	if got := look(); got.Scheduled != 0 {
		t.Errorf("it is due in an hour: %+v", got)
	}
	pgtest.Exec(t, pool, "update holdfast.scheduled set due_at = now()")
	if got := look(); got.Scheduled != 1 {
		t.Errorf("it is due, and no relay runs: %+v", got)
	}
}
