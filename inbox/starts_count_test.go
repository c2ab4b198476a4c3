package inbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func (b *bundle) deliveries(in *Inbox, ids ...string) []*delivery {
	var ds []*delivery
	for _, id := range ids {
		ds = append(ds, in.registry.newDelivery(event(id, "k")))
	}
	return ds
}

// counts are the table's starts.
func (b *bundle) counts() string {
	b.Helper()
	var got string
	if err := b.db.QueryRow(b.Context(), "select coalesce(string_agg(source || ' ' || event_id || ' ' || starts, ', ' order by event_id), '') from holdfast.start where consumer = 'billing'").Scan(&got); err != nil {
		b.Fatal(err)
	}
	return got
}

func TestStartsCount_CountingManyStartsCountsEachAsItSays(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	st, ds := in.receiver.ledger.starts, b.deliveries(in, "1", "2", "3")
	for i, d := range ds {
		d.start = int32(i)
	}
	for range 2 { // The first answer may have been lost.
		if err := st.countAll(t.Context(), ds); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.counts(); got != "shop 1 0, shop 2 1, shop 3 2" {
		t.Errorf("the counts are %q", got)
	}
	again := b.deliveries(in, "0", "3", "2", "1")
	if err := st.suspects(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(again[0].suspect, again[1].suspect, again[2].suspect, again[3].suspect); got != "false true true false" {
		t.Errorf("suspects are %s", got)
	}
}

func TestStartsCount_CountingASuspectCommitsOneMoreAndTheSameTwice(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	st := in.receiver.ledger.starts
	for end := 1; end <= 3; end++ {
		d := b.deliveries(in, "1")[0]
		for range 2 {
			n, known, err := st.count(t.Context(), d)
			if n != end || known || err != nil || d.start != int32(end) {
				t.Errorf("the count after %d ends is %d, %v, %v", end-1, n, known, err)
			}
		}
		if got, want := b.counts(), fmt.Sprint("shop 1 ", end); got != want {
			t.Errorf("the counts are %q, want %q", got, want)
		}
	}
}

func TestStartsCount_CountingLeavesAKnownEventOut(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.receive(in, event("1", "k"), Handled)
	d := b.deliveries(in, "1")[0]
	n, known, err := in.receiver.ledger.starts.count(t.Context(), d)
	if n != 0 || !known || err != nil || b.counts() != "" || d.start != 0 {
		t.Errorf("%d starts of an event that is known (%v, %v), and in the table %q", n, known, err, b.counts())
	}
}

func TestStartsCount_CountingSaysWhatFailed(t *testing.T) {
	for _, row := range []struct {
		name, breaks, says string
		ask                func(ctx context.Context, st *starts, d *delivery) error
	}{
		{"known", "alter table holdfast.inbox rename to gone", "read inbox row", counting},
		{"starts", "alter table holdfast.start rename to gone", "read starts", counting},
		{"start", "alter table holdfast.start rename column last_at to gone", "count starts", counting},
		{"countAll", "alter table holdfast.start rename to gone", "count starts", func(ctx context.Context, st *starts, d *delivery) error {
			return st.countAll(ctx, []*delivery{d})
		}},
		{"suspects", "alter table holdfast.start rename to gone", "read starts", func(ctx context.Context, st *starts, d *delivery) error {
			return st.suspects(ctx, []*delivery{d})
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			d := b.deliveries(in, "1")[0]
			if row.name == "start" {
				pgtest.Exec(t, b.db, "insert into holdfast.start (consumer, source, event_id, starts) values ('billing', 'shop', '1', 1)")
			}
			pgtest.Exec(t, b.db, row.breaks)
			b.wantError(row.ask(t.Context(), in.receiver.ledger.starts, d), row.says)
		})
	}
}

// An answer that breaks off names no suspects.
func TestStartsCount_CountingSaysThatTheSuspectsBrokeOff(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox()
	d := b.deliveries(in, "1")[0]
	in.sql.starts = "select 1, 1 / (2 - n) from (select $1::text, $2::text[], $3::text[]) x, generate_series(1, 2) n"
	b.wantError(in.receiver.ledger.starts.suspects(t.Context(), []*delivery{d}), "read starts")
}

func counting(ctx context.Context, st *starts, d *delivery) error {
	_, known, err := st.count(ctx, d)
	if known {
		return nil
	}
	return err
}

func TestStartsCount_CountingBackLeavesWhatOthersCounted(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	st, ds := in.receiver.ledger.starts, b.deliveries(in, "1", "2")
	ds[0].start, ds[1].start = 2, 3
	if err := st.countAll(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, b.db, "update holdfast.start set starts = 4 where event_id = '2'") // another node, since
	ended, end := context.WithCancel(t.Context())
	end() // The node is stopping: it has the time for this.
	st.takeBack(ended, ds...)
	if got := b.counts(); got != "shop 1 1, shop 2 4" {
		t.Errorf("the counts are %q", got)
	}
	if ds[0].start != 0 || ds[1].start != 0 {
		t.Error("the events still say that they are counted")
	}
}

func TestStartsCount_CountingBackWaitsForTheDatabase(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.random = func() float64 { return 0 }
	st, ds := in.receiver.ledger.starts, b.deliveries(in, "1")
	ds[0].start = 1
	if err := st.countAll(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, b.db, "alter table holdfast.start rename to gone")
	done := make(chan struct{})
	go func() { st.takeBack(t.Context(), ds...); close(done) }()
	b.await("two failures", func(o *observations) bool { return len(o.errs) >= 2 })
	b.reported(nil, "take starts back")
	pgtest.Exec(t, b.db, "alter table holdfast.gone rename to start")
	select {
	case <-done:
	case <-time.After(wait.Limit()):
		t.Fatal("it does not come to an end")
	}
	if got := b.counts(); got != "shop 1 0" {
		t.Errorf("the counts are %q", got)
	}
}

func TestStartsCount_CountingNothingAsksNothing(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	st := in.receiver.ledger.starts
	pgtest.Exec(t, b.db, "alter table holdfast.start rename to gone")
	st.takeBack(t.Context())
	if n := of(b, func(o *observations) int { return len(o.errs) }); n != 0 {
		t.Error("taking nothing back asks the database")
	}
	if err := st.forget(t.Context(), pgtest.Begin(b, b.db), b.deliveries(in, "1", "2")...); err != nil {
		t.Errorf("forgetting what was not counted asks the database: %v", err)
	}
}

func TestStartsCount_CountingIsForgottenWithTheEventsEnd(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	st, ds := in.receiver.ledger.starts, b.deliveries(in, "1", "2", "3")
	for _, d := range ds {
		d.start = 1
	}
	if err := st.countAll(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
	ds[1].start = 0 // counted by another node
	tx := pgtest.Begin(b, b.db)
	if err := st.forget(t.Context(), tx, ds...); err != nil {
		t.Fatal(err)
	}
	if got := b.counts(); got != "shop 1 1, shop 2 1, shop 3 1" {
		t.Errorf("before the commit the counts are %q", got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.counts(); got != "shop 2 1" {
		t.Errorf("the counts are %q", got)
	}
	pgtest.Exec(t, b.db, "alter table holdfast.start rename to gone")
	b.wantError(st.forget(t.Context(), pgtest.Begin(b, b.db), ds...), "forget starts")
}
