package relay_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// obstruct makes every change of one kind (update or delete) of the parked row with the id 'strange' fail.
func obstruct(t *testing.T, pool *pgxpool.Pool, operation, code string) {
	t.Helper()
	pgtest.Exec(t, pool, fmt.Sprintf(`create function somebodys() returns trigger language plpgsql as $$
		begin
			if old.id = 'strange' then raise exception 'somebodys trigger' using errcode = '%s'; end if;
			if tg_op = 'DELETE' then return old; end if;
			return new;
		end $$`, code))
	pgtest.Exec(t, pool, "create trigger somebodys before "+operation+" on holdfast.parked for each row execute function somebodys()")
}

// parkBeside writes parked rows of a key each, with strange among them, and returns the names of the others.
func parkBeside(t *testing.T, pool *pgxpool.Pool, with map[string]string) (others []string) {
	t.Helper()
	for i := range 20 {
		name := fmt.Sprint("other-", i)
		if i == 11 {
			pgtest.Exec(t, pool, strange{table: "parked", with: with}.insert("k", "strange"))
		}
		others = append(others, name)
		pgtest.Exec(t, pool, strange{table: "parked", with: with}.insert(name, name))
	}
	return others
}

func logging(c relay.Config) (relay.Config, *lines) {
	var logged lines
	c.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return c, &logged
}

func (l *lines) say(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, part) {
			return true
		}
	}
	return false
}

func wantOneLetterOfStrange(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.letter where event_id = 'strange' and payload = 'strange' and reason like '%somebodys%'"); n != 1 || letters(t, pool) != 1 {
		t.Errorf("%d letters, and %d of the row that say why", letters(t, pool), n)
	}
}

// A parked row that was refused, and whose attempts cannot be written, becomes a dead letter alone: also if a trigger refuses
// it, which might refuse all.
func TestStuck_AParkedRowThatCannotBeChangedBecomesALetter(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"23514", "P0001"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 1), newBroker()
			obstruct(t, pool, "update", code)
			others := parkBeside(t, pool, nil)
			b.set(func(holdfast.Event) error { return refusal(publish.FaultRecord) })
			c, logged := logging(relay.Config{Retry: untiring})
			run(t, pool, b, c)
			wait.Until(t, "it is a dead letter", func() bool { return letters(t, pool) > 0 })
			b.set(nil)
			write(t, pool, event("k", "after"))
			arrives(t, b, append(others, "after")...)
			wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
			wantOneLetterOfStrange(t, pool)
			wantOnce(t, b)
			if t.Failed() {
				t.Log(logged.last(10))
			}
		})
	}
}

// A row that cannot be deleted after it was published is named, and holds back nothing but its key. It is not published again.
func TestStuck_AParkedRowThatCannotBeDeletedHoldsItsKeyOnly(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	obstruct(t, pool, "delete", "23503")
	others := parkBeside(t, pool, nil)
	c, logged := logging(relay.Config{Retry: untiring})
	stop := run(t, pool, b, c)
	defer func() {
		if t.Failed() {
			t.Logf("published %q, the relay says\n%s", b.payloads(), logged.last(10))
		}
	}()
	arrives(t, b, append(others, "strange")...)
	wait.Until(t, "the row is named", func() bool { return logged.say("waiting event stuck") })
	write(t, pool, event("k", "after"))
	wait.Until(t, "the row and what follows it are parked", func() bool { return parked(t, pool) == 2 })
	for _, want := range []string{"event_id=strange", "topic=orders", "place=", "somebodys"} {
		if !logged.say(want) {
			t.Errorf("the log does not say %s:\n%s", want, logged.last(5))
		}
	}
	write(t, pool, event("other", "more"))
	arrives(t, b, "more")
	if wantOnce(t, b); b.has("after") || letters(t, pool) > 0 {
		t.Error("it was overtaken, or given up although it was published")
	}
	stop()
	pgtest.Exec(t, pool, "drop trigger somebodys on holdfast.parked")
	run(t, pool, b, relay.Config{})
	arrives(t, b, "after")
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
}

// A row that cannot be made due, when the one before it in its queue has left, becomes a dead letter; the next one is due.
func TestStuck_AParkedRowThatCannotBeMadeDueBecomesALetter(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	obstruct(t, pool, "update", "23514")
	follows := map[string]string{"next_at": "'infinity'", "why": "'follows'"}
	pgtest.Exec(t, pool, strange{table: "parked"}.insert("k", "head"))
	pgtest.Exec(t, pool, strange{table: "parked", with: follows}.insert("k", "strange"))
	pgtest.Exec(t, pool, strange{table: "parked", with: follows}.insert("k", "after"))
	b.set(refusing(publish.FaultRecord, "head", "strange"))
	run(t, pool, b, relay.Config{Retry: swift})
	arrives(t, b, "after")
	wantFirsts(t, b, "k", "after")
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.letter where event_id = 'strange' and reason like '%somebodys%'"); n != 1 || letters(t, pool) != 2 {
		t.Errorf("%d letters, and %d of the row that say why", letters(t, pool), n)
	}
}

// When a partition is back, a row that cannot be resumed becomes a dead letter, and all others flow.
func TestStuck_AParkedRowThatCannotBeResumedBecomesALetter(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	obstruct(t, pool, "update", "23514")
	others := parkBeside(t, pool, map[string]string{"partition": "-1", "why": "'partition'", "next_at": "'infinity'"})
	run(t, pool, b, relay.Config{Retry: untiring})
	arrives(t, b, others...)
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
	wantOneLetterOfStrange(t, pool)
	wantOnce(t, b)
}

// A row whose storage is damaged cannot be read, nor made a dead letter. It is named, and the others are published.
func TestStuck_ADamagedParkedRowHoldsItsKeyOnly(t *testing.T) {
	t.Parallel()
	for _, waits := range []map[string]string{nil, {"partition": "-1", "why": "'partition'", "next_at": "'infinity'"}} {
		t.Run(fmt.Sprint(waits["why"]), func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 1), newBroker()
			others := parkBeside(t, pool, waits)
			pgtest.Exec(t, pool, "update holdfast.parked set payload = convert_to("+noise(100_000)+", 'UTF8') where id = 'strange'")
			pgtest.Exec(t, pool, "create extension pg_surgery schema public")
			pgtest.Exec(t, pool, `do $$ declare toast text := (select reltoastrelid::regclass::text from pg_class where oid = 'holdfast.parked'::regclass);
				begin execute format('select public.heap_force_kill(%L::regclass, array(select ctid from %s))', toast, toast); end $$`)
			write(t, pool, event("k", "after"))
			c, logged := logging(relay.Config{Retry: untiring})
			run(t, pool, b, c)
			arrives(t, b, others...)
			wait.Until(t, "the row is named", func() bool { return logged.say("waiting event stuck") })
			for _, want := range []string{"event_id=strange", "topic=orders", "storage is damaged"} {
				if !logged.say(want) {
					t.Errorf("the log does not say %s:\n%s", want, logged.last(5))
				}
			}
			wait.Until(t, "the row and what follows it are parked", func() bool { return parked(t, pool) == 2 })
			if wantOnce(t, b); b.has("after") || letters(t, pool) > 0 {
				t.Error("it was overtaken, or given up")
			}
		})
	}
}
