package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/group"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// transactions is how many transactions left the effects.
func (b *bundle) transactions() int64 {
	b.Helper()
	return b.count("select count(distinct xmin::text) from effect")
}

// few is an inbox whose two workers have many events waiting, and whose handlers may share. None is slow for it, and no wait for a lock
// too long, however busy the machine is.
func (b *bundle) few(change ...func(*Config)) *Inbox {
	in := b.inbox(append([]func(*Config){func(c *Config) { c.Workers, c.Group = 2, 64 }}, change...)...)
	in.groups = group.Times{Together: time.Minute, Longest: time.Minute, Slow: time.Minute, Rest: 10 * time.Millisecond, LockWait: time.Minute}
	return in
}

// untimed are times with which a group is as large as its registrations allow, however busy the machine is.
var untimed = group.Times{Together: time.Hour, Longest: time.Hour, Slow: time.Hour, Rest: 10 * time.Millisecond, LockWait: group.DefaultTimes.LockWait}

// behind is an inbox whose one worker has a backlog: the handler of the first event waits until all the others are ready. consume
// returns when they are settled.
func (b *bundle) behind(change ...func(*Config)) (in *Inbox, consume func(events []holdfast.Event)) {
	in = b.inbox(append([]func(*Config){func(c *Config) { c.Workers = 1 }}, change...)...)
	in.groups = untimed
	ready := make(chan struct{})
	var first sync.Once
	in.Use(func(next Handler) Handler {
		return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			first.Do(func() { <-ready })
			return next(ctx, tx, e)
		}
	})
	return in, func(events []holdfast.Event) {
		b.Helper()
		g := newFakeGeneration(logOf(events...))
		g.begun = ready
		b.consumeFake(in, g)
		b.awaitSettled(int64(len(events)))
	}
}

// sql is a handler that makes one statement, with the event's id and key as its parameters.
func sql(statement string) Handler {
	return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := tx.Exec(ctx, statement, e.ID, e.Key)
		return err
	}
}

// halves are the two halves of n orders, the second ones after all the first ones.
func halves(n int) []holdfast.Event {
	var events []holdfast.Event
	for _, e := range keyed(n, n) {
		first := e
		first.ID += " a"
		events = append(events, first)
	}
	for _, e := range keyed(n, n) {
		e.ID, e.Key = e.ID+" b", e.Key+" b"
		events = append(events, e)
	}
	return events
}

// finishes is a handler of half an order that finishes it if the other half is handled.
var finishes = sql(`insert into effect (id, key) select left($1, 5), $2
	where exists (select from holdfast.inbox i where left(i.event_id, 5) = left($1, 5) and i.event_id <> $1 and i.result = 'handled')`)

func (b *bundle) finishedOnce(orders int64) {
	b.Helper()
	if n := b.count("select count(distinct id) from effect"); n != orders {
		b.Errorf("%d orders were finished, want %d", n, orders)
	}
	if n := b.count("select count(*) from (select from effect group by id having count(*) > 1) twice"); n > 0 {
		b.Errorf("%d orders were finished twice", n)
	}
}

func TestTogether_PlainHandlersShareATransactionWhileManyWait(t *testing.T) {
	skip.InShort(t, "it counts transactions, of which a busy machine needs more")
	for name, c := range map[string]struct {
		group      int
		keys       int
		least, not int64 // transactions
	}{
		"many keys":  {64, 100, 2, 500},
		"one key":    {64, 1, 2, 500},
		"no keys":    {64, 0, 2, 500},
		"up to four": {4, 100, 250, 1000},
		"off":        {1, 100, 1000, 1001},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.few(func(c2 *Config) { c2.Group = c.group })
			in.Handle("order.placed", effectOf)
			log := keyed(1000, max(c.keys, 1))
			if c.keys == 0 {
				for i := range log {
					log[i].Key = ""
				}
			}
			b.consumeFake(in, newFakeGeneration(logOf(log...)))
			b.awaitSettled(1000)
			if c.keys > 0 {
				b.inOrderAndOnce(1000)
			}
			if n := b.transactions(); n < c.least || n >= c.not {
				t.Errorf("%d transactions, want %d to %d", n, c.least, c.not-1)
			}
			if n := b.count("select count(*) from holdfast.inbox where result = 'handled' and attempts = 1 and processed_at is not null"); n != 1000 {
				t.Errorf("%d inbox rows, want 1000", n)
			}
		})
	}
}

func TestTogether_AnEventThatFailsItsGroupAloneBearsTheFailure(t *testing.T) {
	skip.InShort(t, "it counts transactions, of which a busy machine needs more")
	for name, fail := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"an error":                      func(context.Context, pgx.Tx) error { return errors.New("no such customer") },
		"a panic":                       func(context.Context, pgx.Tx) error { panic("no such customer") },
		"an error of Postgres, ignored": func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "select 1/0"); return nil },
		"rows left open":                func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Query(ctx, "select 1"); return err },
		"another role": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "set local role pg_monitor")
			return errors.Join(err, errors.New("no"))
		},
		"a constraint checked at COMMIT": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into later values (1), (1)")
			return err
		},
		"the connection is gone": func(ctx context.Context, tx pgx.Tx) error {
			_ = tx.Conn().Close(ctx)
			return errors.New("no such customer")
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pgtest.Exec(t, b.db, "create table later (n int unique deferrable initially deferred)")
			in := b.few()
			calls := map[string]int{}
			var mu sync.Mutex
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				mu.Lock()
				calls[e.ID]++
				mu.Unlock()
				if err := effectOf(ctx, tx, e); err != nil {
					return err
				}
				if e.ID == "00500" {
					return fail(ctx, tx)
				}
				return nil
			})
			b.run(in.Run)
			b.consumeFake(in, newFakeGeneration(logOf(keyed(1000, 50)...)))
			b.awaitSettled(1000)
			b.awaitOutcome("00500", Dead)
			b.awaitOutcome("00950", Handled) // the last of its key
			b.inOrderAndOnce(999)
			if n := b.count("select attempts from holdfast.letter where event_id = '00500'"); n != 3 {
				t.Errorf("its letter says %d attempts, want 3: the group's failure is none", n)
			}
			if n := b.count("select count(*) from holdfast.letter"); n != 1 {
				t.Errorf("%d letters, want 1", n)
			}
			if n := b.count("select count(*) from holdfast.inbox where result = 'handled' and attempts <> 1"); n != 0 {
				t.Errorf("%d other events have lost attempts", n)
			}
			// A type whose handler uses the connection, or changes its role, is not grouped any more.
			own := name == "the connection is gone" || name == "another role"
			if n := b.transactions(); n >= 700 && !own {
				t.Errorf("%d transactions: the groups did not come back", n)
			}
			mu.Lock()
			defer mu.Unlock()
			again := 0
			for id, n := range calls {
				if id != "00500" && n > 1 {
					again++
				}
			}
			if calls["00500"] > 4 && name != "the connection is gone" || again > 128 {
				t.Errorf("it was called %d times, and %d others more than once", calls["00500"], again)
			}
		})
	}
}

// A group is put together by what its handlers took before. If they become slow, what the first one locked is free after one more: the
// rest was not begun, and waits again.
func TestTogether_AGroupCommitsWhatIsDoneWhenItsTimeIsOver(t *testing.T) {
	for _, keys := range []int{1, 40} {
		t.Run(fmt.Sprintf("%d keys", keys), func(t *testing.T) {
			b := setup(t)
			in, consume := b.behind(func(c *Config) { c.Group = 64 })
			in.groups.Longest = time.Millisecond
			calls := map[string]int{}
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				time.Sleep(2 * time.Millisecond) // sleep: a handler that waits for something
				calls[e.ID]++                    // The one worker calls it.
				return effectOf(ctx, tx, e)
			})
			consume(keyed(40, keys))
			b.inOrderAndOnce(40)
			if n := b.transactions(); n != 40 {
				t.Errorf("%d transactions, want one for each of 40 events whose groups have no time for a second", n)
			}
			for id, n := range calls {
				if n != 1 {
					t.Errorf("the handler was called %d times for event %s: its work was thrown away", n, id)
				}
			}
			if n := b.count("select count(*) from holdfast.inbox where result = 'handled' and attempts = 1"); n != 40 {
				t.Errorf("%d events were handled at their first attempt, want 40", n)
			}
		})
	}
}

// Where handlers share a transaction, each finds in the inbox what it would find alone: the events before it, and none after it.
func TestTogether_AHandlerThatSharesFindsOnlyWhatHasRunInTheInbox(t *testing.T) {
	b := setup(t)
	in, consume := b.behind(func(c *Config) { c.Group = 64 })
	in.Handle("order.placed", finishes)
	consume(halves(30))
	b.finishedOnce(30)
	if n := b.transactions(); n > 2 {
		t.Errorf("%d transactions: they did not share", n)
	}
}

// Only handlers whose registration says so share, and the one that allows fewest decides.
func TestTogether_ATransactionHoldsNoMoreThanEachRegistrationAllows(t *testing.T) {
	b := setup(t)
	in, consume := b.behind()
	in.Handle("three", effectOf, WithGroup(3))
	On(in, "many", func(ctx context.Context, tx pgx.Tx, _ any, e holdfast.Event) error { return effectOf(ctx, tx, e) }, WithGroup(64), WithCodec(anything{}))
	in.Handle("one", effectOf)
	var events []holdfast.Event
	for i, e := range keyed(90, 90) {
		switch e.Type = "many"; {
		case i%30 == 2:
			e.Type = "one"
		case i%10 == 1:
			e.Type = "three"
		}
		e.Key = e.Type + e.Key
		events = append(events, e)
	}
	consume(events)
	b.inOrderAndOnce(90)
	for of, most := range map[string]int64{"one": 1, "three": 3, "many": 64} {
		if n := b.count("select max(n) from (select count(*) as n from effect group by xmin::text having bool_or(key like $1 || '%')) g", of); n > most || n == 1 && most > 1 {
			t.Errorf("an event of type %s was in a transaction of %d, where %d may be", of, n, most)
		}
	}
}

// anything is a codec that decodes nothing.
type anything struct{ holdfast.JSON }

func (anything) Decode(context.Context, holdfast.Event, any) error { return nil }

func TestTogether_HandlersOfAGroupThatSendNothingAreRecordedTogether(t *testing.T) {
	b := setup(t)
	in, consume := b.behind(func(c *Config) { c.Group = 64 })
	var calls atomic.Int64
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { calls.Add(1); return nil })
	twice := keyed(40, 40)
	consume(append(twice, twice[5]))
	if n := b.count("select count(*) from holdfast.inbox where result = 'handled' and attempts = 1 and processed_at is not null"); n != 40 || calls.Load() != 40 {
		t.Errorf("%d events of 40 are handled by %d calls", n, calls.Load())
	}
	if n := b.count("select count(distinct xmin::text) from holdfast.inbox"); n != 2 {
		t.Errorf("%d transactions, want that of the first event and one more", n)
	}
}

// Rows of a group are inserted as its handlers run, so somebody else may have recorded an event since the group was opened.
func TestTogether_AnEventThatSomebodyElseRecordsMeanwhileIsHandledOnce(t *testing.T) {
	for name, sends := range map[string]bool{"its handler sends something": true, "its handler sends nothing": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			events := keyed(40, 40)
			in, consume := b.behind(func(c *Config) { c.Group = 64 })
			var once sync.Once
			var calls atomic.Int64
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if e.ID == events[20].ID {
					if n := calls.Add(1); !sends {
						return nil
					} else if n == 2 { // The one in the group.
						_ = effectOf(ctx, tx, e)
						return nil
					}
				}
				if e.ID == events[10].ID {
					once.Do(func() { b.receive(in, events[20], Handled) })
				}
				return effectOf(ctx, tx, e)
			})
			consume(events)
			if b.awaitOutcome(events[20].ID, Duplicate); sends {
				b.inOrderAndOnce(40)
			}
			if n := b.count("select count(*) from holdfast.inbox where result = 'handled' and attempts = 1"); n != 40 {
				t.Errorf("%d events were handled at their first attempt, want 40", n)
			}
			if n := calls.Load(); n != 2 { // What the second call wrote is rolled back.
				t.Errorf("its handler was called %d times", n)
			}
		})
	}
}

func TestTogether_AGroupHasKnownAndWaitingEventsAmongIt(t *testing.T) {
	skip.InShort(t, "it counts transactions, of which a busy machine needs more")
	b := setup(t)
	failing := atomic.Bool{}
	failing.Store(true)
	in := b.few(func(c *Config) { c.Retry.Attempts = 1000 })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if failing.Load() && e.ID == "00003" {
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	})
	log := keyed(600, 30)
	b.receive(in, log[1], Handled)
	b.receive(in, log[3], Retrying) // 33, 63, … wait for it
	edited := log[2]                // another payload under its id came first: a conflict
	edited.Payload = []byte("another")
	b.receive(in, edited, Handled)
	twice := append(log[:300:300], log[200:]...) // a hundred events come twice, close to each other
	b.consumeFake(in, newFakeGeneration(logOf(twice...)))
	b.awaitSettled(int64(len(twice)))
	if n := b.count("select count(*) from effect where key = 'key 3'"); n != 0 {
		t.Errorf("%d events of a key were handled before its head", n)
	}
	if n := b.count("select count(*) from holdfast.stored where key = 'key 3'"); n != 20 {
		t.Errorf("%d events of the key wait, want 20", n)
	}
	failing.Store(false)
	b.run(in.Run)
	b.awaitOutcome("00573", Handled)
	b.inOrderAndOnce(600)
	if n := b.count("select count(*) from holdfast.letter where event_id = '00002'"); n != 1 {
		t.Errorf("%d letters of the conflict, want 1", n)
	}
	if n := b.transactions(); n >= 500 {
		t.Errorf("%d transactions: there were no groups", n)
	}
}

// A handler that ends its transaction behind our back ends nobody else's: whatever it does, it has a transaction of its own when it
// is done. No other event is recorded without its handler having run.
func TestTogether_AHandlerThatCommitsByItselfCommitsNothingOfAGroup(t *testing.T) {
	for name, commit := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"on the connection": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, "commit"); return err },
		"on the connection, and it recovers": func(ctx context.Context, tx pgx.Tx) error {
			defer func() { _ = recover() }()
			_, err := tx.Conn().Exec(ctx, "commit")
			return err
		},
		"after a comment":                       func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "-- now\ncommit"); return err },
		"after another statement":               func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "select 1; commit"); return err },
		"after another statement, and it is ok": func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "select 1; commit"); return nil },
		"prepared": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Prepare(ctx, "c", "commit")
			_, err := tx.Exec(ctx, "c")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.few()
			var ran sync.Map
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if err := effectOf(ctx, tx, e); err != nil {
					return err
				}
				if n := e.ID[4]; e.ID == "00300" || e.ID > "00300" && n == '7' {
					return commit(ctx, tx)
				}
				ran.Store(e.ID, true)
				return nil
			})
			b.consumeFake(in, newFakeGeneration(logOf(keyed(600, 50)...)))
			b.awaitSettled(600)
			b.await("the last of its key", func(o *observations) bool { return len(o.outcomes) == 600 })
			rows, err := b.db.Query(t.Context(), "select event_id from holdfast.inbox where result = 'handled'")
			if err != nil {
				t.Fatal(err)
			}
			handled, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			if len(handled) < 500 {
				t.Errorf("only %d are handled", len(handled))
			}
			for _, id := range handled {
				if _, ok := ran.Load(id); !ok && id < "00300" {
					t.Errorf("%s is called handled, and its handler has not run", id)
				}
				if n := b.effects(id); n != 1 {
					t.Errorf("%s is called handled and has %d effects", id, n)
				}
			}
			if n := b.count("select count(*) from (select id from effect group by id having count(*) > 1) twice"); n != 0 {
				t.Errorf("%d events had their effect more than once", n)
			}
		})
	}
}

// A setting that a handler makes for its transaction is seen by no other handler, not even once.
func TestTogether_ASettingOfAHandlerReachesNoOtherEvent(t *testing.T) {
	for name, set := range map[string]string{"set local": "set local app.tenant = 'one'", "set_config": "select set_config('app.tenant', 'one', true)"} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.few()
			var seen, others atomic.Int64
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				var tenant string
				if err := tx.QueryRow(ctx, "select coalesce(current_setting('app.tenant', true), '')").Scan(&tenant); err != nil {
					return err
				}
				if tenant != "" {
					seen.Add(1)
				}
				others.Add(1)
				return effectOf(ctx, tx, e)
			})
			in.Handle("order.paid", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if _, err := tx.Exec(ctx, set); err != nil {
					return err
				}
				return effectOf(ctx, tx, e)
			})
			log := keyed(600, 50)
			for i := range log {
				if i%5 == 0 {
					log[i].Type = "order.paid"
				}
			}
			b.consumeFake(in, newFakeGeneration(logOf(log...)))
			b.awaitSettled(600)
			b.inOrderAndOnce(600)
			if n := seen.Load(); n > 0 {
				t.Errorf("%d of %d handlers saw the tenant of another event", n, others.Load())
			}
		})
	}
}

// Handlers that lock the same rows in different orders cost nobody an attempt, and do not wait for Postgres to find each deadlock.
func TestTogether_GroupsThatLockTheSameRowsEndInTime(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, "create table total (id int primary key, n int); insert into total values (0, 0), (1, 0), (2, 0)")
	pool := b.db.PoolWith(t, func(c *pgxpool.Config) { // Postgres looks for deadlocks long after a group gives up, also if a machine stands still.
		c.ConnConfig.RuntimeParams["deadlock_timeout"] = "20s"
	})
	in := b.inboxOn(pool, func(c *Config) { c.Workers, c.Group = 8, 64 })
	in.groups = group.Times{Together: time.Minute, Longest: time.Minute, Slow: time.Minute, Rest: group.DefaultTimes.Rest, LockWait: group.DefaultTimes.LockWait}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := tx.Exec(ctx, "update total set n = n + 1 where id = $1", int(e.ID[4]-'0')%3); err != nil {
			return err
		}
		return effectOf(ctx, tx, e)
	})
	begun := time.Now()
	b.consumeFake(in, newFakeGeneration(logOf(keyed(2000, 200)...)))
	b.awaitSettled(2000)
	took := time.Since(begun)
	b.inOrderAndOnce(2000)
	if n := b.count("select sum(n) from total"); n != 2000 {
		t.Errorf("the totals are %d", n)
	}
	if n := b.count("select count(*) from holdfast.inbox where attempts <> 1"); n != 0 {
		t.Errorf("%d events lost an attempt", n)
	}
	deadlocks := b.count("select deadlocks from pg_stat_database where datname = current_database()")
	if deadlocks > 0 {
		t.Errorf("%d deadlocks were left to Postgres", deadlocks)
	}
	t.Logf("2,000 events on three rows in %s, %d transactions", took, b.transactions())
}

// A handler that is slow now and then does not keep others' locks: it runs alone for a while.
func TestTogether_ATypeThatWasSlowOnceRunsAlone(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	in := b.few(func(c *Config) { c.Workers = 1 })
	in.groups.Slow = 6 * time.Second // No handler of the other type takes as long, also if the machine stands still for a moment.
	in.Handle("order.placed", effectOf)
	var slow atomic.Int64
	in.Handle("order.paid", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if slow.Add(1) == 1 {
			if _, err := tx.Exec(ctx, "select pg_sleep(6.5)"); err != nil {
				return err
			}
		}
		return effectOf(ctx, tx, e)
	})
	log := keyed(1000, 100)
	for i := range log {
		if i%2 == 0 {
			log[i].Type = "order.paid"
		}
	}
	b.consumeFake(in, newFakeGeneration(logOf(log...)))
	b.awaitSettled(1000)
	b.inOrderAndOnce(1000)
	shared := b.count(`select count(*) from effect e where right(e.id, 1) in ('0', '2', '4', '6', '8')
		and exists (select from effect o where o.xmin = e.xmin and o.id <> e.id)`)
	if shared != 0 {
		t.Errorf("%d events of the type that was slow shared a transaction", shared)
	}
	if n := b.transactions(); n >= 900 {
		t.Errorf("%d transactions: the others were not grouped", n)
	}
}

func TestTogether_AGroupOfAZombieCommitsNothing(t *testing.T) {
	b := setup(t)
	in := b.few()
	in.Handle("order.placed", effectOf)
	g := newFakeGeneration(logOf(keyed(500, 50)...))
	g.gate = make(chan struct{})
	b.consumeFake(in, g)
	b.awaitSettled(1)
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set epoch = epoch + 1") // as another node's assignment does
	close(g.gate)
	b.await("the fence", func(o *observations) bool { return o.fenced == 1 })
	if n := b.count("select count(*) from effect"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// In a group of two partitions, one of which is lost, nothing is recorded: its events come alone, and are fenced each by its own.
func TestTogether_AGroupOfTwoPartitionsIsFencedByBoth(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	var ds []*delivery
	var fences []*position.Fence
	for partition := range 2 {
		a, err := in.consumer.positions.Assign(t.Context(), "orders", partition, "", func(int64) (position.Reading, error) { return position.Reading{}, nil })
		if err != nil {
			t.Fatal(err)
		}
		fences = append(fences, a.Fence)
	}
	for i, e := range keyed(6, 6) {
		d := in.registry.newDelivery(e)
		d.from = &origin{fence: fences[i%2], offset: int64(i)}
		ds = append(ds, d)
	}
	open := func(ds []*delivery) []bool {
		t.Helper()
		p := pipeline{admission: in.receiver.admission}
		o, _, err := p.open(t.Context(), attempt{ds: ds, number: 1, group: make([]context.Context, len(ds))})
		if err = errors.Join(err, o.err); err != nil {
			t.Fatal(err)
		}
		if n := pgtest.Count(t, o.tx, "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and mode = 'ShareLock'"); n != 2 {
			t.Errorf("it has %d fences, want 2", n)
		}
		rollback(t.Context(), o.tx)
		release(p.conn)
		return o.fresh
	}
	if fresh := open(ds); fresh != nil {
		t.Errorf("of six new events these are new: %v", fresh)
	}
	if fresh := open(append(ds, ds[0])); !slices.Equal(fresh, []bool{true, true, true, true, true, true, false}) {
		t.Errorf("of six events, the first of which comes twice, these are new: %v", fresh)
	}
	b.receive(in, ds[4].e, Handled)
	if fresh := open(ds); !slices.Equal(fresh, []bool{true, true, true, true, false, true}) {
		t.Errorf("where the fifth is known these are new: %v", fresh)
	}
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set epoch = epoch + 1 where partition = 1")
	if fresh := open(ds); len(fresh) != 6 || slices.Contains(fresh, true) {
		t.Errorf("with the epoch of a partition gone these are new: %v", fresh)
	}
}
