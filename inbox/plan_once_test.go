package inbox

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
)

// Every event pays for these looks. Postgres would make each once for every use of its answer.
func TestPlanOnce_WhatIsBeforeAnEventIsLookedForOnce(t *testing.T) {
	b := setup(t)
	const literals = "'billing', 'orders', 8, '', '12', '12', 0, '', 1, null, 1, 'orders', 8"
	for _, plan := range append(plantest.Of(t, b.db.Pool, recordSQL, literals), plantest.Of(t, b.db.Pool, recordUnpausedSQL, literals)...) {
		for _, index := range []string{"stored_pkey", "letter_holds_inbox", "consumer_position_pkey"} {
			if n := strings.Count(plan.Text, index); n != 1 {
				t.Errorf("index %s is read %d times, want once:\n%s", index, n, plan.Text)
			}
		}
	}
}

// To plan the statements of an event's transaction takes longer than to carry them out.
func TestPlanOnce_EventsAreNotPlannedEachTime(t *testing.T) {
	for name, c := range map[string]struct {
		events            int
		followers, shares bool
		statements        []string
	}{
		"alone":     {1, false, false, []string{"record_unpaused"}},
		"a batch":   {100, false, false, []string{"record_many"}},
		"followers": {64, true, false, []string{"record_many", "store_many"}},
		"a group":   {100, false, true, []string{"fresh", "record_many"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pool := b.db.PoolOf(t, 1)
			in := b.inboxOn(pool)
			in.HandleBatch("order.placed", func(context.Context, pgx.Tx, []holdfast.Event) error { return nil })
			in.registry.start()
			f := b.raise(in, "", 0).Fence
			pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
				values ('billing', $1, 'behind', nextval('holdfast.stored_place'), 'shop', 'head', 'order.placed', now(), '', 'infinity')`, f.Topic)
			if err := in.receiver.ledger.pauses.look(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			p := pipeline{admission: in.receiver.admission}
			for n := range 12 { // The first five are planned for their arguments.
				a := attempt{number: 1, followers: c.followers}
				for i := range c.events {
					e := event(fmt.Sprint(n, i), fmt.Sprint(n, i))
					if e.Topic = f.Topic; c.followers {
						e.Key = "behind"
					}
					if c.shares {
						a.group = append(a.group, t.Context())
					}
					d := in.registry.newDelivery(e)
					d.from = &origin{fence: f, offset: int64(n*c.events + i)}
					a.ds = append(a.ds, d)
				}
				_, err := p.openAndRun(t.Context(), a)
				if err == nil {
					err = p.commit(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, statement := range c.statements {
				if kept := pgtest.Count(t, pool, "select coalesce(sum(generic_plans), 0) from pg_prepared_statements where statement like '-- inbox.' || $1 || E'\\n%'", statement); kept < 6 {
					t.Errorf("%d of 12 of inbox.%s used the plan that is kept", kept, statement)
				}
			}
		})
	}
}

// To plan a claim takes longer than to make it. Postgres keeps a plan unless it believes that one made for the arguments is cheaper.
func TestPlanOnce_ClaimsAreNotPlannedEachTime(t *testing.T) {
	for _, state := range []struct {
		name          string
		later, due, n int // stored events that come due later, heads that are due, and followers of one of them
	}{
		{"nothing is stored", 0, 0, 0},
		{"little is due", 5000, 10, 0},
		{"all is due", 0, 5000, 0},
		{"a hot key", 0, 10, 20_000},
	} {
		t.Run(state.name, func(t *testing.T) {
			b := setup(t)
			pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
				select 'billing', 'orders', case when n > $1::int + $2::int then 'due 1' when n > $1 then 'due ' || n - $1 else 'later ' || n end, n, '', n::text, 'order.placed', now(), '',
				       case when n > $1 + $2 then 'infinity' when n > $1 then now() - n * interval '1 second' else now() + n * interval '1 second' end
				  from generate_series(1, $1::int + $2::int + $3::int) n`, state.later, state.due, state.n)
			pgtest.Exec(t, b.db, "vacuum analyze holdfast.stored")
			pool := b.db.PoolOf(t, 1)
			in := b.inboxOn(pool)
			in.Handle("order.placed", effectOf)
			in.Handle("order.shipped", effectOf)
			in.registry.start()
			for range 12 { // The first five are planned for their arguments.
				if _, err := in.claims.claim(t.Context(), 8); err != nil {
					t.Fatal(err)
				}
			}
			if kept := pgtest.Count(t, pool, "select generic_plans from pg_prepared_statements where statement like '-- inbox.claim%'"); kept < 6 {
				t.Errorf("%d of 12 claims used the plan that is kept: %s", kept, fmt.Sprint(state))
			}
		})
	}
}
