package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// refusal is a broker's answer of one kind.
func refusal(fault publish.Fault) error {
	return &publish.Error{Topic: "orders", Partition: 0, Fault: fault, Err: errors.New("scripted: " + string(fault))}
}

// refusing answers fault for the events of one payload, and acknowledges the rest.
func refusing(fault publish.Fault, payloads ...string) func(holdfast.Event) error {
	return func(e holdfast.Event) error {
		if slices.Contains(payloads, string(e.Payload)) {
			return refusal(fault)
		}
		return nil
	}
}

// swift retries refused events at once, so that tests need not wait.
var swift = retry.Policy{Attempts: 3, Base: time.Millisecond, Cap: 5 * time.Millisecond}

// untiring never gives up, and is swift.
var untiring = retry.Policy{Attempts: -1, Base: time.Millisecond, Cap: 5 * time.Millisecond}

// payloads of everything acknowledged, in order, repeats included.
func (b *broker) payloads() []string {
	var out []string
	for _, e := range b.events() {
		out = append(out, string(e.Payload))
	}
	return out
}

func (b *broker) has(payload string) bool { return slices.Contains(b.payloads(), payload) }

func arrives(t testing.TB, b *broker, payloads ...string) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("%q arrive", payloads), func() bool {
		got := b.payloads()
		return !slices.ContainsFunc(payloads, func(p string) bool { return !slices.Contains(got, p) })
	})
}

func wantFirsts(t testing.TB, b *broker, key string, want ...string) {
	t.Helper()
	if got := b.firsts(key); !slices.Equal(got, want) {
		t.Errorf("key %q was first delivered as %q, want %q", key, got, want)
	}
}

func wantOnce(t testing.TB, b *broker) {
	t.Helper()
	seen := map[string]int{}
	for _, e := range b.events() {
		if seen[e.ID]++; seen[e.ID] == 2 {
			t.Errorf("%s (%q) was published twice", e.ID, e.Payload)
		}
	}
}

func parked(t testing.TB, pool *pgxpool.Pool) int64 {
	t.Helper()
	return pgtest.Count(t, pool, "select count(*) from holdfast.parked")
}

func letters(t testing.TB, pool *pgxpool.Pool) int64 {
	t.Helper()
	return pgtest.Count(t, pool, "select count(*) from holdfast.letter")
}

// noteTakeovers returns how often, from now on, a relay has claimed a lane that another has neither released nor dropped: its
// lease ran out on a machine that stood still. The other hears of it by its next save, or never if it stops just then.
func noteTakeovers(t testing.TB, pool *pgxpool.Pool) (noted func() int64) {
	t.Helper()
	pgtest.Exec(t, pool, "create table takeover (lane int)")
	pgtest.Exec(t, pool, `create function takeover() returns trigger language plpgsql as $$ begin insert into public.takeover values (new.lane); return null; end $$`)
	pgtest.Exec(t, pool, "create trigger takeover after update on holdfast.lane for each row when (old.owner <> new.owner) execute function takeover()")
	return func() int64 { return pgtest.Count(t, pool, "select count(*) from takeover") }
}

// replay does what dlq does: the letter is being replayed, and its event enters the log again.
func replay(t testing.TB, pool *pgxpool.Pool, letter int64) {
	t.Helper()
	err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(context.Background(), "update holdfast.letter set state = 'replaying' where id = $1", letter); err != nil {
			return err
		}
		_, err := tx.Exec(context.Background(), `select holdfast.append_unchecked(array[event_id], array[source], array[type], array[topic], array[key],
			array[time], array[headers::text], array[payload], null, array[id]) from holdfast.letter where id = $1`, letter)
		return err
	})
	if err != nil {
		t.Fatalf("replay letter %d: %v", letter, err)
	}
}

func contextUntil(t testing.TB, at time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadline(t.Context(), at)
}
