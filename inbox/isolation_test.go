package inbox

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// ofTypes are n events of so many keys, whose types take turns.
func ofTypes(n, keys int, types ...string) []holdfast.Event {
	events := keyed(n, keys)
	for i := range events {
		events[i].Type = types[i%len(types)]
	}
	return events
}

func TestIsolation_ByDefaultEachEventHasATransactionOfItsOwn(t *testing.T) {
	b := setup(t)
	in, consume := b.behind()
	in.Handle("order.placed", effectOf)
	consume(keyed(60, 20))
	b.inOrderAndOnce(60)
	if n := b.transactions(); n != 60 {
		t.Errorf("60 events had %d transactions", n)
	}
}

// A function is the usual way to say whose rows a transaction may see, and its text says nothing about what it does.
func TestIsolation_ByDefaultATenantThatAFunctionSetsReachesNoOther(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, "create function enter_tenant(t text) returns void language plpgsql as $$ begin perform set_config('app.tenant', t, true); end $$")
	in, consume := b.behind()
	in.Handle("enters", sql("select enter_tenant($2), $1::text"))
	var asked, strangers atomic.Int64
	in.Handle("asks", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var tenant string
		err := tx.QueryRow(ctx, "select coalesce(current_setting('app.tenant', true), '')").Scan(&tenant)
		if asked.Add(1); tenant != "" {
			strangers.Add(1)
		}
		return err
	})
	consume(ofTypes(60, 60, "enters", "asks"))
	if asked.Load() != 30 || strangers.Load() > 0 {
		t.Errorf("%d of %d handlers had the tenant of another event", strangers.Load(), asked.Load())
	}
}

func TestIsolation_ByDefaultATemporaryTableEndsWithItsEvent(t *testing.T) {
	b := setup(t)
	in, consume := b.behind()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := tx.Exec(ctx, "create temp table if not exists staging (id text, key text) on commit drop"); err != nil {
			return err
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"staging"}, []string{"id", "key"}, pgx.CopyFromRows([][]any{{e.ID, e.Key}})); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "insert into effect (id, key) select id, key from staging")
		return err
	})
	consume(keyed(40, 40))
	b.inOrderAndOnce(40)
}

func TestIsolation_ByDefaultNotificationsOfTwoEventsAreTwo(t *testing.T) {
	b := setup(t)
	listener, err := b.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Release()
	pgtest.Exec(t, listener, "listen orders")
	in, consume := b.behind()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
		_, err := tx.Exec(ctx, "select pg_notify('orders', 'look')")
		return err
	})
	consume(keyed(40, 40))
	pgtest.Exec(t, b.db, "select pg_notify('orders', 'that was all')")
	for n := 0; ; n++ {
		said, err := listener.Conn().WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if said.Payload == "look" {
			continue
		}
		if n != 40 {
			t.Errorf("40 events made %d notifications", n)
		}
		return
	}
}

// An order of two halves is finished by the handler that finds the other half handled, and by no second one.
func TestIsolation_ByDefaultOnlyWhatIsDoneIsInTheInbox(t *testing.T) {
	b := setup(t)
	in, consume := b.behind()
	in.Handle("order.placed", finishes)
	consume(halves(30))
	b.finishedOnce(30)
}

// What a handler reads in its transaction is what everybody reads: it may tell others.
func TestIsolation_ByDefaultAHandlerReadsOnlyWhatIsCommitted(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, "create table price (item text primary key, n int); insert into price values ('tea', 0)")
	in, consume := b.behind()
	in.Handle("changes", sql("update price set n = n + 1 where $1 || $2 <> ''"))
	var told, never atomic.Int64
	in.Handle("tells", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
		var mine, theirs int
		err := tx.QueryRow(ctx, "select n from price").Scan(&mine)
		if err == nil {
			err = b.db.QueryRow(ctx, "select n from price").Scan(&theirs)
		}
		if told.Add(1); mine != theirs {
			never.Add(1)
		}
		return err
	})
	consume(ofTypes(40, 40, "changes", "tells"))
	if told.Load() != 20 || never.Load() > 0 {
		t.Errorf("%d of %d handlers were told a price that nobody else sees", never.Load(), told.Load())
	}
}

// A repository that takes no transaction reads and writes by a connection of its own. The events before of its key are committed.
func TestIsolation_ByDefaultThePoolSeesTheEventsBeforeOfTheKey(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, "create table total (id int primary key, n int); insert into total values (1, 0)")
	in, consume := b.behind()
	var locked atomic.Int64
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var is int
		if err := b.db.QueryRow(ctx, "select n from total where id = 1 for update nowait").Scan(&is); err != nil {
			locked.Add(1)
		}
		if err := b.db.QueryRow(ctx, "select n from total where id = 1").Scan(&is); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "update total set n = $1 where id = 1", is+1)
		return err
	})
	consume(keyed(40, 1))
	if n := b.count("select n from total"); n != 40 {
		t.Errorf("40 events of a key were counted as %d", n)
	}
	if n := locked.Load(); n > 0 {
		t.Errorf("the row was still locked by an event before %d times", n)
	}
}

// What a function catches hides that a lock did not come in time. So a handler waits for locks for as long as it may run.
func TestIsolation_ByDefaultAHandlerWaitsForLocksForItsWholeTime(t *testing.T) {
	b := setup(t)
	in, consume := b.behind()
	in.Handle("order.placed", sql("insert into effect (id, key) select $1, current_setting('lock_timeout') where $2 <> ''"))
	consume(keyed(40, 40))
	if n := b.count("select count(*) from effect where key = '40s'"); n != 40 {
		t.Errorf("%d of 40 handlers waited for as long as their Timeout", n)
	}
}
