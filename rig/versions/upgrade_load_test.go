package versions

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// leftBy1 is what an installation of version 1 may hold when it is upgraded: events in each place where one can wait, of keys with
// numbered ids. A key's events are in more than one place, so their order is at stake too.
const leftBy1 = `
	-- In the log, in two of its segments.
	select holdfast.append_one('log/' || n, 'shop', 't', 'orders', 'log', null, '{"a": "1"}', 'x') from generate_series(1, 5) n;
	update holdfast.segments set current = 1;
	select holdfast.append_one('log/' || n, 'shop', 't', 'orders', 'log', null, '{"a": "1"}', 'x') from generate_series(6, 10) n;

	-- Scheduled: due soon.
	select holdfast.append(array['scheduled/1'], array['shop'], array['t'], array['orders'], array['scheduled'], null, null, array['x'::bytea], array[now() + interval '1 second'], null);

	-- Parked, because the topic was missing, and later events of the key in the log.
	insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, headers, payload)
		select holdfast.lane_of('parked', '', 8), 'orders', 'parked', nextval('holdfast.parked_place'), case when n = 1 then 'topic' else 'follows' end,
		       case when n = 1 then now() else 'infinity' end, 'parked/' || n, 'shop', 't', now(), '{"a": "1"}', 'x' from generate_series(1, 3) n;
	select holdfast.append_one('parked/' || n, 'shop', 't', 'orders', 'parked', null, '{"a": "1"}', 'x') from generate_series(4, 5) n;

	-- A dead letter of the relay that a person has just replayed.
	insert into holdfast.letter (origin, reason, state, holds, event_id, source, type, topic, key, time, payload, hash, lane)
		values ('relay', 'refused', 'replaying', true, 'letter/1', 'shop', 't', 'orders', 'letter', now(), 'x', sha256('x'), holdfast.lane_of('letter', '', 8));
	select holdfast.append(array['letter/1'], array['shop'], array['t'], array['orders'], array['letter'], array[now()], null, array['x'::bytea], null, array[(select max(id) from holdfast.letter)]);

	-- Stored: a head that failed twice, and what waits for it.
	insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, attempts, next_at, errors, failed_at)
		select 'billing', 'orders', 'stored', nextval('holdfast.stored_place'), 'shop', 'stored/' || n, 't', now(), 'x', sha256('x'),
		       case when n = 1 then 2 else 0 end, case when n = 1 then now() else 'infinity' end, case when n = 1 then array['first', 'second'] else '{}' end, case when n = 1 then now() end from generate_series(1, 3) n;
	insert into holdfast.inbox (consumer, source, event_id, topic, hash, result) select 'billing', 'shop', 'stored/' || n, 'orders', sha256('x'), 'stored' from generate_series(1, 3) n;

	-- Handled, and delivered again after the upgrade.
	insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, processed_at) values ('billing', 'shop', 'handled/1', 'orders', sha256('x'), 'handled', now());
	select holdfast.append_one('handled/1', 'shop', 't', 'orders', 'handled', null, '{"a": "1"}', 'x');
`

// delivery is a publisher that hands each event to a consumer, as Kafka would, and remembers the order.
type delivery struct {
	to *inbox.Inbox

	mu   sync.Mutex
	seen map[string][]int // the numbers of a key's events, in the order in which they came
	errs []error
}

func (d *delivery) Publish(ctx context.Context, events []holdfast.Event) []error {
	for _, e := range events {
		_, number, _ := strings.Cut(e.ID, "/")
		n, _ := strconv.Atoi(number)
		d.mu.Lock()
		d.seen[e.Key] = append(d.seen[e.Key], n)
		d.mu.Unlock()
		if _, err := d.to.Receive(ctx, e); err != nil {
			d.mu.Lock()
			d.errs = append(d.errs, fmt.Errorf("receive %s: %w", e.ID, err))
			d.mu.Unlock()
		}
	}
	return make([]error, len(events))
}

// comesInOrder says whether the first deliveries of a key's events are 1, 2, 3 and so on, up to last.
func comesInOrder(numbers []int, last int) bool {
	next := 1
	for _, n := range numbers {
		if n > next {
			return false
		}
		if n == next {
			next++
		}
	}
	return next == last+1
}

// What the first version left behind, wherever it waited, is published and handled once and in order, while producers of that
// version write: before the upgrade, during it, and after it.
func TestUpgradeLoad_WhatVersion1LeftIsHandledAfterAnUpgradeUnderLoad(t *testing.T) {
	skip.InShort(t, "it takes 9 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", version1)
	pgtest.Exec(t, db.Pool, "create table effect (n bigint generated always as identity, id text not null, key text not null)")
	pgtest.Exec(t, db.Pool, leftBy1)
	relays, consumers, producer := asOf1(t, db, "relay"), asOf1(t, db, "consumer"), asOf1(t, db, "producer")
	pgtest.Exec(t, db.Pool, "grant insert on effect to public")

	const writers = 3
	var wrote [writers]int
	load, stopLoad := context.WithCancel(t.Context())
	defer stopLoad()
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			key := fmt.Sprint("writer ", w)
			for load.Err() == nil {
				id := fmt.Sprintf("%s/%d", key, wrote[w]+1)
				if _, err := producer.Exec(t.Context(), appendEventOf1, id, "shop", "t", "orders", key, nil, `{"a": "1"}`, []byte("x")); err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				wrote[w]++
			}
		})
	}
	written := func() int64 { return pgtest.Count(t, db.Pool, "select count(*) from holdfast.event") }
	wait.Until(t, "the writers write", func() bool { return t.Failed() || written() > 100 })
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	db.Reset()

	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	in, err := inbox.New(consumers, inbox.Config{Consumer: "billing", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("t", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := tx.Exec(ctx, "insert into effect (id, key) values ($1, $2)", e.ID, e.Key)
		return err
	})
	d := &delivery{to: in, seen: map[string][]int{}}
	r, err := relay.New(relays, d, relay.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{"Relay.Run": r.Run, "Inbox.Run": in.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("%s ends with %v", name, err)
			}
		})
	}
	handled := func() int64 { return pgtest.Count(t, db.Pool, "select count(*) from effect") }
	wait.Until(t, "events are handled while producers of version 1 write", func() bool { return t.Failed() || handled() > 100 })
	stopLoad()
	writing.Wait()
	want := map[string]int{"log": 10, "scheduled": 1, "parked": 5, "letter": 1, "stored": 3}
	total := 0
	for w, n := range wrote {
		want[fmt.Sprint("writer ", w)] = n
	}
	for _, n := range want {
		total += n
	}
	wait.Until(t, "all events are handled, and nothing waits", func() bool {
		return t.Failed() || handled() >= int64(total) && pgtest.Count(t, db.Pool, "select (select count(*) from holdfast.parked) + (select count(*) from holdfast.scheduled) + (select count(*) from holdfast.stored)") == 0
	})
	wait.Until(t, "the replayed letter is closed", func() bool {
		return pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter where state = 'replayed'") == 1
	})
	stop()
	running.Wait()

	for key, last := range want {
		if key != "stored" && !comesInOrder(d.seen[key], last) {
			t.Errorf("of %s were published %v, want 1 to %d", key, d.seen[key], last)
		}
		var of []int
		rows, err := db.Query(t.Context(), "select split_part(id, '/', 2)::int from effect where key = $1 order by n", key)
		if err == nil {
			of, err = pgx.CollectRows(rows, pgx.RowTo[int])
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(of) != last || !comesInOrder(of, last) {
			t.Errorf("of %s were handled %v, want each of 1 to %d once", key, of, last)
		}
	}
	if len(d.seen["handled"]) == 0 || pgtest.Count(t, db.Pool, "select count(*) from effect where key = 'handled'") != 0 {
		t.Error("what version 1 had handled was not delivered again, or handled again")
	}
	for _, err := range d.errs {
		t.Error(err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter where state <> 'replayed'"); n != 0 {
		t.Errorf("%d events became dead letters", n)
	}
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
}
