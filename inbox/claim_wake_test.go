package inbox

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/waiting"
)

// passed sets the mark as if claims had passed all that came due up to now, and a look at everything were far away.
func (b *bundle) passed(in *Inbox) {
	b.Helper()
	var now time.Time
	if err := b.db.QueryRow(b.Context(), "select clock_timestamp()").Scan(&now); err != nil {
		b.Fatal(err)
	}
	in.claims.mark = claimMark{at: now, place: math.MinInt64, took: time.Hour, ended: time.Now().Add(time.Hour)}
}

// claims wants the ids of what the next claim takes.
func (b *bundle) claims(in *Inbox, want ...string) {
	b.Helper()
	got, err := in.claims.claim(b.Context(), 8)
	if err != nil {
		b.Fatal(err)
	}
	var ids []string
	for _, s := range got {
		ids = append(ids, s.e.ID)
	}
	if !slices.Equal(ids, want) {
		b.Errorf("the next claim took %q, want %q", ids, want)
	}
}

// claimable makes an inbox for a test that claims by itself.
func (b *bundle) claimable(change ...func(*Config)) *Inbox {
	b.Helper()
	in := b.inbox(change...)
	in.Handle("order.placed", effectOf)
	in.registry.start()
	return in
}

// replayOf makes a stored event the replay of a letter that holds its key.
const replayOf = `with l as (insert into holdfast.letter (origin, consumer, reason, fingerprint, holds, state, event_id, source, type, topic, key, time, hash)
	select 'inbox', consumer, 'r', 'f', true, 'replaying', event_id, source, type, topic, key, time, hash from holdfast.stored where event_id = $1 returning id)
	update holdfast.stored set letter = l.id from l where event_id = $1`

// What people do makes the head of a key due that claims have passed while the key was held, also if they waited for the key's lock:
// the next claim takes it, without a look at everything.
func TestClaimWake_WhatPeopleWakeIsTakenByTheNextClaim(t *testing.T) {
	key := waiting.Pausable{Consumer: "billing", Topic: "orders", Key: "k"}
	first := waiting.Filter{Consumer: "billing", EventID: "1"}
	by := waiting.Options{By: "ann"}
	for _, row := range []struct {
		name, prepare string
		act           func(ctx context.Context, d *dlq.DLQ, room *waiting.Room) error
		want          string
	}{
		{"a pause of the key ends", "insert into holdfast.pause (consumer, topic, key, by, reason) values ('billing', 'orders', 'k', 'ann', 'r')",
			func(ctx context.Context, _ *dlq.DLQ, room *waiting.Room) error {
				_, err := room.Resume(ctx, key, "ann", "")
				return err
			}, "1"},
		{"its letter is discarded", letterOfKey,
			func(ctx context.Context, d *dlq.DLQ, _ *waiting.Room) error { return d.Discard(ctx, 1, "ann", "") }, "1"},
		{"its letters are discarded", letterOfKey, func(ctx context.Context, d *dlq.DLQ, _ *waiting.Room) error {
			_, err := d.DiscardAll(ctx, dlq.Filter{}, dlq.DiscardOptions{By: "ann"})
			return err
		}, "1"},
		{"its letter is replayed", letterOfKey, func(ctx context.Context, d *dlq.DLQ, _ *waiting.Room) error {
			_, err := d.Replay(ctx, dlq.Filter{}, dlq.ReplayOptions{By: "ann"})
			return err
		}, "before"},
		{"the head is skipped", "select",
			func(ctx context.Context, _ *dlq.DLQ, room *waiting.Room) error {
				_, err := room.Discard(ctx, first, by)
				return err
			}, "2"},
		{"the head is made a letter", "select",
			func(ctx context.Context, _ *dlq.DLQ, room *waiting.Room) error {
				_, err := room.GiveUp(ctx, first, by)
				return err
			}, "2"},
		{"the head is made due", "update holdfast.stored set next_at = now() + interval '1 hour' where event_id = '1'",
			func(ctx context.Context, _ *dlq.DLQ, room *waiting.Room) error {
				_, err := room.Retry(ctx, first, by)
				return err
			}, "1"},
		{"a replay is discarded and another follows", "replays", func(ctx context.Context, d *dlq.DLQ, _ *waiting.Room) error { return d.Discard(ctx, 1, "ann", "") }, "2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			in := b.claimable()
			for _, id := range []string{"1", "2"} {
				b.store(in, event(id, "k"))
			}
			pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now() - interval '1 hour'")
			if row.prepare == "replays" {
				pgtest.Exec(t, b.db, replayOf, "1")
				pgtest.Exec(t, b.db, replayOf, "2")
			} else {
				pgtest.Exec(t, b.db, row.prepare)
			}
			busy, err := b.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := busy.Exec(t.Context(), in.sql.lock, int32(lane.KeyClass), in.keyNumber("orders", "k")); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- row.act(context.Background(), b.letters(), b.room()) }()
			wait.Until(t, "it waits for the lock of the key", func() bool {
				return b.count("select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())") == 1
			})
			b.passed(in)
			if err := busy.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			b.claims(in, row.want)
		})
	}
}

// A worker that ends with an event makes the next one of its key due, whatever came while its handler ran: now() of its transaction is
// before all that.
func TestClaimWake_WhatAWorkerWakesIsTakenByTheNextClaim(t *testing.T) {
	ends := func(goOn bool) func(context.Context, *backlog, pgx.Tx, *claimed) (*claimed, error) {
		return func(ctx context.Context, bl *backlog, tx pgx.Tx, s *claimed) (*claimed, error) {
			return bl.settle(ctx, tx, s, goOn)
		}
	}
	postpones := func(delay time.Duration, failures ...string) func(context.Context, *backlog, pgx.Tx, *claimed) (*claimed, error) {
		return func(ctx context.Context, bl *backlog, tx pgx.Tx, s *claimed) (*claimed, error) {
			return nil, bl.postpone(ctx, tx, s, delay, failures)
		}
	}
	stores := func(b *bundle, in *Inbox) { b.store(in, event("2", "k")) }
	for _, row := range []struct {
		name  string
		comes func(b *bundle, in *Inbox) // while the handler of event 1 runs
		ends  func(context.Context, *backlog, pgx.Tx, *claimed) (*claimed, error)
		next  string // is claimed with the end of event 1
		want  []string
	}{
		{"one comes and the worker goes on", stores, ends(true), "2", nil},
		{"one comes and the worker does not go on", stores, ends(false), "", []string{"2"}},
		{"the lease of the next ends and the worker goes on", func(b *bundle, in *Inbox) {
			stores(b, in)
			pgtest.Exec(b, b.db, "update holdfast.stored set next_at = now() - interval '1 hour', lease_until = now() where event_id = '2'")
		}, ends(true), "2", nil},
		{"the lease of the next ends and the worker does not go on", func(b *bundle, in *Inbox) {
			stores(b, in)
			pgtest.Exec(b, b.db, "update holdfast.stored set next_at = now() - interval '1 hour', lease_until = now() where event_id = '2'")
		}, ends(false), "", []string{"2"}},
		{"it is given up and a replay follows that its letter does not hold", func(b *bundle, in *Inbox) {
			stores(b, in)
			pgtest.Exec(b, b.db, replayOf, "1")
			pgtest.Exec(b, b.db, replayOf, "2")
		}, func(ctx context.Context, bl *backlog, tx pgx.Tx, s *claimed) (*claimed, error) {
			s.letter = new(int64)
			if err := tx.QueryRow(ctx, "select letter from holdfast.stored where event_id = '1'").Scan(s.letter); err != nil {
				return nil, err
			}
			_, err := bl.giveUp(ctx, tx, s, letter{reason: "it fails again", holds: true, errors: []string{"e"}})
			return nil, err
		}, "", []string{"2"}},
		{"a replay enters before it and it is postponed", func(b *bundle, _ *Inbox) { b.enterBefore("0", "1") }, postpones(time.Hour, "e"), "", []string{"0"}},
		{"a replay enters before it and it is handed back", func(b *bundle, _ *Inbox) { b.enterBefore("0", "1") }, postpones(0), "", []string{"0"}},
		{"it is handed back", func(*bundle, *Inbox) {}, postpones(0), "", []string{"1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			in := b.claimable()
			b.store(in, event("1", "k"))
			got, err := in.claims.claim(t.Context(), 8)
			if err != nil || len(got) != 1 {
				t.Fatalf("claimed %d: %v", len(got), err)
			}
			err = in.backlog.runner.transact(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				row.comes(b, in)
				b.passed(in)
				next, err := row.ends(ctx, in.backlog, tx, got[0])
				id := ""
				if next != nil {
					id = next.e.ID
				}
				if id != row.next {
					t.Errorf("with its end %q was claimed, want %q", id, row.next)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			b.claims(in, row.want...)
		})
	}
}

// A replay that enters while the handler of a later event runs is woken when that cannot commit.
func TestClaimWake_AReplayThatStopsAWorkerIsTakenByTheNextClaim(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		b.enterBefore("1", "2")
		b.passed(in)
		return nil
	})
	in.registry.start()
	b.store(in, event("2", "k"))
	got, err := in.claims.claim(t.Context(), 8)
	if err != nil || len(got) != 1 {
		t.Fatalf("claimed %d: %v", len(got), err)
	}
	if err := in.backlog.work(t.Context(), got[0], nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-in.wakeup:
	default:
		t.Error("this node was not woken")
	}
	b.claims(in, "1")
}

// A look at everything is as dear as its work for Postgres. What it waits for a connection of the pool says nothing about that.
func TestClaimWake_TheCostOfALookIsCountedWithoutThePool(t *testing.T) {
	b := setup(t)
	var given atomic.Pointer[time.Time]
	in := b.inboxOn(b.db.PoolWith(t, func(c *pgxpool.Config) {
		c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			// sleep: the wait for a connection is the subject.
			time.Sleep(50 * time.Millisecond)
			now := time.Now()
			given.Store(&now)
			return true, nil
		}
	}))
	in.Handle("order.placed", effectOf, WithConcurrency(1))
	in.registry.start()
	in.registry.unlimited = in.registry.types
	var mark claimMark
	for name, look := range map[string]func() claimMark{
		"of all types": func() claimMark {
			if _, err := in.claims.claim(t.Context(), 8); err != nil {
				t.Fatal(err)
			}
			return in.claims.mark
		},
		"of a type with a limit": func() claimMark {
			in.backlog.claimOne(t.Context(), t.Context(), "order.placed", &mark)
			return mark
		},
	} {
		if m := look(); m.took <= 0 || m.ended.Add(-m.took).Before(*given.Load()) {
			t.Errorf("%s: it counts as %v, of which it waited for a connection until %v before its end", name, m.took, m.ended.Sub(*given.Load()))
		}
	}
}

// A claim that gets no connection was never sent: nobody has to take over what it leased.
func TestClaimWake_AClaimWithoutAConnectionLeavesNothingToTakeOver(t *testing.T) {
	b := setup(t)
	in := b.inboxOn(b.db.PoolWith(t, func(c *pgxpool.Config) {
		c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return true, errors.New("none is free") }
	}))
	in.Handle("order.placed", effectOf)
	in.registry.start()
	if _, err := in.claims.claim(t.Context(), 8); err == nil {
		t.Fatal("it had an answer")
	}
	if n := len(in.claims.unanswered.tokens(time.Now())); n != 0 {
		t.Errorf("%d claims have to be taken over", n)
	}
}
