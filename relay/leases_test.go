package relay_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/internal/waitroom"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// leases are what relays have leased, and how many lanes' owners tell that.
func leases(t testing.TB, pool *pgxpool.Pool) (all string, told int64) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `select coalesce(string_agg(topic || '/' || key || '/' || place, ' ' order by topic, key, place) filter (where topic <> ''), ''),
		count(*) filter (where (lane, place) in (select l.lane, l.epoch from holdfast.lane l) and topic = '') from holdfast.parked_lease`).Scan(&all, &told)
	if err != nil {
		t.Fatal(err)
	}
	return all, told
}

// nothingIsLeased waits until it is so, and the owner of the only lane says so.
func nothingIsLeased(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	wait.Until(t, "nothing is leased", func() bool { got, told := leases(t, pool); return got == "" && told == 1 })
}

// A call takes long. What it has, and what is about to follow it, is leased: a queue as a whole, and each event without a key.
func TestLeases_WhatIsInMemoryIsLeasedUntilItsOutcomeIsWritten(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	pgtest.Exec(t, pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload)
		select 0, 'orders', k, p, 'follows', case when k = '' or p = 1 then now() else 'infinity' end, k || p, 's', 't', now(), convert_to(k || p, 'UTF8')
		  from unnest('{a,b,""}'::text[]) k, generate_series(1, 3) p`)
	answer := make(chan struct{})
	b.delay = func() { <-answer }
	stop := run(t, pool, b, relay.Config{})
	var got string
	var told int64
	wait.Until(t, "all are leased", func() bool {
		got, told = leases(t, pool)
		return got == "orders//1 orders//2 orders//3 orders/a/0 orders/b/0" && told == 1
	})
	close(answer)
	arrives(t, b, "a1", "a2", "a3", "b1", "b2", "b3", "1", "2", "3")
	nothingIsLeased(t, pool)
	if n := parked(t, pool); n != 0 {
		t.Errorf("no event is leased, and %d are parked", n)
	}
	wantOnce(t, b)
	stop()
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.parked_lease"); n != 0 {
		t.Errorf("%d leases are left of a relay that has stopped", n)
	}
}

// What the broker refuses leaves memory until its time comes, and what follows it too. A relay of a lane that was another one's begins without
// that one's leases.
func TestLeases_WhatWaitsOutsideOfMemoryIsNotLeased(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	pgtest.Exec(t, pool, "insert into holdfast.parked_lease (lane, topic, key, place) values (0, '', '', 99), (0, 'orders', 'a', 0), (0, 'orders', '', 7)")
	b.set(refusing(publish.FaultRecord, "a1"))
	run(t, pool, b, relay.Config{Retry: untiring})
	write(t, pool, event("a", "a1"), event("a", "a2"), event("b", "b1"))
	arrives(t, b, "b1")
	wait.Until(t, "what was refused has had some tries", func() bool {
		return pgtest.Count(t, pool, "select coalesce(max(attempts), 0) from holdfast.parked") > 2
	})
	nothingIsLeased(t, pool)
	b.set(nil)
	arrives(t, b, "a1", "a2")
	wantFirsts(t, b, "a", "a1", "a2")
}

// A row that cannot be changed is kept in memory, so that it is not read again. Nothing of it is sent: a person may discard it.
func TestLeases_AStuckRowIsNotLeased(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	obstruct(t, pool, "insert or update or delete", "23503")
	others := parkBeside(t, pool, nil)
	b.set(refusing(publish.FaultRecord, "strange"))
	c, logged := logging(relay.Config{Retry: swift})
	run(t, pool, b, c)
	wait.Until(t, "the row is stuck", func() bool { return logged.say("waiting event stuck") })
	nothingIsLeased(t, pool)
	arrives(t, b, others...)
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.parked where id = 'strange'"); n != 1 {
		t.Fatalf("%d rows are stuck", n)
	}
}

// What was published, and cannot be deleted, is left to the lane: a command would send it elsewhere too. So is what is published with a row for which the
// statement over all of them fails, until it is written.
func TestLeases_WhatIsPublishedIsLeasedUntilItIsWritten(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	pgtest.Exec(t, pool, "create table unleased (id text)")
	pgtest.Exec(t, pool, `create function somebodys() returns trigger language plpgsql as $$
		begin
			if not exists (select from holdfast.parked_lease l where l.key = old.key) then insert into unleased values (old.id); end if;
			if old.id = 'strange' then raise exception 'somebodys trigger' using errcode = '23503'; end if;
			return old;
		end $$`)
	pgtest.Exec(t, pool, "create trigger somebodys before delete on holdfast.parked for each row execute function somebodys()")
	others := parkBeside(t, pool, nil)
	c, logged := logging(relay.Config{})
	run(t, pool, b, c)
	arrives(t, b, append(others, "strange")...)
	wait.Until(t, "the row is stuck", func() bool { return logged.say("waiting event stuck") })
	wait.Until(t, "it alone is leased", func() bool { got, _ := leases(t, pool); return got == "orders/k/0" })
	if n := pgtest.Count(t, pool, "select count(*) from unleased"); n != 0 {
		t.Errorf("%d were not leased any more when they were written", n)
	}
}

// A transaction of a lane finds rows by their place in the file, and decides by what is before them. So it waits for a command's. What
// needs no such transaction goes on.
func TestLeases_ALaneWaitsForACommandWithItsRowsAlone(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	run(t, pool, b, relay.Config{Lease: 20 * time.Second})
	write(t, pool, event("x", "begun"))
	arrives(t, b, "begun")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "select "+waitroom.LockLane+" from holdfast.lane l")
	write(t, pool, event("x", "goes on"))
	arrives(t, b, "goes on")
	pgtest.Exec(t, pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload)
		values (0, 'orders', 'k', 1, 'follows', now(), 'waits', 's', 't', now(), 'waits')`)
	if wait.For(time.Second, func() bool { return b.has("waits") }) {
		t.Error("it did not wait")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	arrives(t, b, "waits")
	if n := pgtest.Count(t, pool, "select epoch from holdfast.lane"); n != 1 {
		t.Errorf("the lane was lost: it is in epoch %d", n)
	}
}

// A partition is held while an event of it is in a call: the event is parked, and leased until the answer has come.
func TestLeases_AnEventThatIsParkedInACallIsLeased(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	answer := make(chan struct{})
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	run(t, pool, downAnswersLate{b, answer}, relay.Config{ParkAfter: 300 * time.Millisecond})
	write(t, pool, event("down", "in the call"))
	var got string
	var told int64
	for n := 0; got != "orders/down/0" && n < 150; n++ { // others answer, so the partition is to blame
		write(t, pool, event("up", fmt.Sprint(n)))
		wait.For(20*time.Millisecond, func() bool { return false })
		got, told = leases(t, pool)
	}
	if got != "orders/down/0" || told != 1 || parked(t, pool) != 1 {
		release()
		t.Fatalf("leased are %q, and %d events are parked", got, parked(t, pool))
	}
	release()
	wait.Until(t, "it has left, and its lease", func() bool {
		got, told := leases(t, pool)
		return got == "" && told == 1 && parked(t, pool) == 0
	})
	wantOnce(t, b)
}

// downAnswersLate does not answer for the partition of "down" until it may.
type downAnswersLate struct {
	*broker
	answer chan struct{}
}

func (d downAnswersLate) Publish(ctx context.Context, events []holdfast.Event) []error {
	if n, _ := d.Partition(events[0]); n == 1 {
		<-d.answer
	}
	return d.broker.Publish(ctx, events)
}
