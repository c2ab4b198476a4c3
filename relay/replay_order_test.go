package relay_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// openLetters makes letters of one key, with the ids 1 to n, which are their payloads too.
func openLetters(t testing.TB, pool *pgxpool.Pool, key string, n int) {
	t.Helper()
	pgtest.Exec(t, pool, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, payload, hash, lane)
		select 'relay', 'r', 'letter ' || n, 's', 't', 'orders', $1, now(), convert_to(n::text, 'UTF8'), '', 0 from generate_series(1, $2::int) n`, key, n)
}

func numbers(from, to int) (all []string) {
	for n := from; n <= to; n++ {
		all = append(all, fmt.Sprint(n))
	}
	return all
}

// Whoever replays the letters of a key in an order of their own must find room for every one: a lane that finds none
// stops for ever.
func TestReplayOrder_AHundredReplaysOfOneKeyAreParkedInTheOrderOfTheirLetters(t *testing.T) {
	t.Parallel()
	const n = 100
	for name, letter := range map[string]func(i int64) int64{ // the i-th to be replayed
		"the last first":                     func(i int64) int64 { return n + 1 - i },
		"the first, and then the last first": func(i int64) int64 { return (n+1-i)%n + 1 },
		"from both ends": func(i int64) int64 {
			if i%2 == 0 {
				return n + 1 - i/2
			}
			return (i + 1) / 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 1), newBroker()
			openLetters(t, pool, "k", n)
			b.set(refusing(publish.FaultTopic, append(numbers(1, n), "waits")...))
			run(t, pool, b, relay.Config{BatchSize: 10})
			write(t, pool, event("k", "waits"))
			wait.Until(t, "the key waits", func() bool { return parked(t, pool) == 1 })
			for i := int64(1); i <= n; i++ {
				replay(t, pool, letter(i))
			}
			write(t, pool, event("k", "later"))
			wait.Until(t, "all of them are parked", func() bool { return parked(t, pool) == n+2 })
			b.set(nil)
			arrives(t, b, "later")
			wantFirsts(t, b, "k", append(numbers(1, n), "waits", "later")...)
			wantOnce(t, b)
			write(t, pool, event("k", "after all"))
			arrives(t, b, "after all")
			if open := pgtest.Count(t, pool, "select count(*) from holdfast.letter where state <> 'replayed'"); open != 0 {
				t.Errorf("%d letters do not say that they were replayed", open)
			}
		})
	}
}

// A replay whose key has no queue is refused by itself, or comes after what was refused before it.
func TestReplayOrder_RefusedReplaysGoBeforeTheEventsOfTheirPage(t *testing.T) {
	t.Parallel()
	for _, fault := range []publish.Fault{publish.FaultRecord, publish.FaultTopic} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 1), newBroker()
			openLetters(t, pool, "k", 5)
			b.set(func(holdfast.Event) error { return refusal(fault) })
			write(t, pool, event("k", "before"))
			for _, letter := range []int64{3, 2, 5} {
				replay(t, pool, letter)
			}
			write(t, pool, event("k", "between"))
			replay(t, pool, 1)
			stop := run(t, pool, b, relay.Config{Retry: untiring})
			wait.Until(t, "all six are parked", func() bool { return parked(t, pool) == 6 })
			if n := pgtest.Count(t, pool, `select count(*) from holdfast.parked p
				where p.next_at < 'infinity' and p.place > (select min(h.place) from holdfast.parked h)`); n != 0 {
				t.Errorf("%d rows after the head have a time of their own", n)
			}
			replay(t, pool, 4)
			wait.Until(t, "the last replay is parked", func() bool { return parked(t, pool) == 7 })
			stop()
			b.set(nil)
			run(t, pool, b, relay.Config{Retry: untiring})
			arrives(t, b, "between")
			wantFirsts(t, b, "k", append(numbers(1, 5), "before", "between")...)
			wantOnce(t, b)
		})
	}
}
