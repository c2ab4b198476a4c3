package inbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// These tests ask the fence alone, without a partition that reads.

// readAt chooses to read from an offset, and takes the position to be there.
func readAt(offset int64) func(int64) (reading, error) {
	return func(int64) (reading, error) { return reading{start: offset, position: offset}, nil }
}

func (b *bundle) raise(in *Inbox, group string, offset int64) assignment {
	b.Helper()
	a, err := in.consumer.fences.assign(b.Context(), "orders", 0, group, readAt(offset))
	if err != nil {
		b.Fatal(err)
	}
	return a
}

func (b *bundle) fenceWaiters() int64 {
	return b.count("select count(*) from pg_locks where locktype = 'advisory' and classid = $1 and not granted and database = (select oid from pg_database where datname = current_database())", int64(fenceClass))
}

// wantError wants an error that says what was being tried.
func (b *bundle) wantError(err error, says string) {
	b.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		b.Errorf("the error is %v, want one that says %q", err, says)
	}
}

// readFence asks the fence as the first batch of a transaction does.
func (b *bundle) readFence(in *Inbox, f *fence, tx pgx.Tx) error {
	batch := &pgx.Batch{}
	f.queue(in.env, batch)
	br := tx.SendBatch(b.Context(), batch)
	defer func() { _ = br.Close() }()
	return f.read(br)
}

func TestFenceRaise_RaisingTheEpochFencesTheLastOwnerOff(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	old := b.raise(in, "", 0).fence
	for _, last := range []bool{false, true} {
		tx := b.begin()
		checked, read := old.check(t.Context(), in.env, tx), b.readFence(in, old, tx)
		if !last && (checked != nil || read != nil) {
			t.Errorf("the owner is refused: %v, %v", checked, read)
		}
		if last && (!errors.Is(checked, failure.ErrFenced) || !errors.Is(read, failure.ErrFenced)) {
			t.Errorf("the last owner is told %v and %v, want that it is fenced off", checked, read)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.raise(in, "", 0)
	}
}

func TestFenceRaise_RaisingSharesNoFenceWithItsReaders(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	f := b.raise(in, "", 0).fence
	tx := b.begin()
	if err := b.readFence(in, f, tx); err != nil {
		t.Fatal(err)
	}
	_, err := in.consumer.fences.raise(t.Context(), "orders", 0, "", false, readAt(0))
	if !errors.Is(err, errFenceTaken) {
		t.Errorf("while a transaction reads under the fence, raising says %v", err)
	}
	if err := b.readFence(in, f, b.begin()); err != nil {
		t.Errorf("two transactions of one owner keep each other out: %v", err)
	}
}

func TestFenceRaise_FencingSaysWhatItCouldNotAsk(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	f := b.raise(in, "", 0).fence
	exclusive := b.begin()
	pgtest.Exec(t, exclusive, "select pg_advisory_xact_lock($1, $2)", int32(fenceClass), f.number)
	waiting := b.begin()
	pgtest.Exec(t, waiting, "set local lock_timeout = '20ms'")
	b.wantError(b.readFence(in, f, waiting), "take fence")
	if err := exclusive.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := b.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	before, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.readFence(in, f, before); err != nil { // The statements are prepared from here on.
		t.Fatal(err)
	}
	if err := before.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, b.begin(), "lock table holdfast.consumer_position in access exclusive mode")
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	pgtest.Exec(t, tx, "set local lock_timeout = '20ms'; savepoint s")
	err = b.readFence(in, f, tx)
	b.wantError(err, "read epoch")
	if errors.Is(err, failure.ErrFenced) {
		t.Error("an owner that could not ask is called fenced off")
	}
	pgtest.Exec(t, tx, "rollback to s")
	err = f.check(t.Context(), in.env, tx)
	b.wantError(err, "read epoch")
	if errors.Is(err, failure.ErrFenced) {
		t.Error("an owner that could not ask is called fenced off")
	}
}

func TestFenceRaise_RaisingKnowsTheLastOwnersEnd(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for _, row := range []struct {
		name, before, group string
		unclean             bool
		other               string
	}{
		{"the first owner", "select", "one", false, ""},
		{"the same group after a crash", "select", "one", true, ""},
		{"another group after a crash", "select", "two", true, "one"},
		{"a node that does not know its group", "select", "", true, ""},
		{"one after a node without a group", "select", "one", true, ""},
		{"another group after a release", "update holdfast.consumer_position set clean = true", "two", false, ""},
	} {
		pgtest.Exec(t, b.db, row.before)
		a := b.raise(in, row.group, 7)
		if a.unclean != row.unclean || a.otherGroup != row.other {
			t.Errorf("%s: unclean %v, other group %q; want %v, %q", row.name, a.unclean, a.otherGroup, row.unclean, row.other)
		}
		if n := b.count("select count(*) from holdfast.consumer_position where epoch = $1 and position = 7 and not clean and owner = $2 and coalesce(group_id, '') = $3", a.fence.Epoch, in.node, row.group); n != 1 {
			t.Errorf("%s: the row is not the owner's", row.name)
		}
	}
}

func TestFenceRaise_RaisingGivesWhatWasChosenAndTheDatabasesToken(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	var asked []int64
	for range 2 {
		a, err := in.consumer.fences.assign(t.Context(), "orders", 3, "", func(position int64) (reading, error) {
			asked = append(asked, position)
			return reading{start: 4, position: 9}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		f := a.fence
		if a.reading != (reading{start: 4, position: 9}) || f.position != 9 || f.Topic != "orders" || f.Partition != 3 || f.token != b.incarnation() {
			t.Errorf("the assignment is %+v with the fence %+v", a, *f)
		}
		if f.number != lane.Number("holdfast", "billing", "orders", "3") {
			t.Error("the fence has another number than other nodes give it")
		}
		pgtest.Exec(t, b.db, "truncate holdfast.incarnation") // The next one fills it.
	}
	if asked[0] != source.NoOffset || asked[1] != 9 {
		t.Errorf("the positions are %v, want none and 9", asked)
	}
}

func TestFenceRaise_RaisingThatIsRefusedChangesNothing(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	epoch := b.raise(in, "", 5).fence.Epoch
	pgtest.Exec(t, b.db, "delete from holdfast.incarnation") // as after a crash: it is not filled again either
	a, err := in.consumer.fences.assign(t.Context(), "orders", 0, "", func(position int64) (reading, error) {
		return reading{}, &beyondEnd{position: position, end: 2}
	})
	if !errors.Is(err, ErrOffsetOutOfRange) || a.fence != nil {
		t.Errorf("it says %v, and gives %+v", err, a)
	}
	b.wantError(err, "read orders/0: ")
	b.wantError(err, "delete from")
	if n := b.count("select count(*) from holdfast.consumer_position where epoch = $1 and position = 5", epoch); n != 1 {
		t.Error("the refusal took the partition from its owner")
	}
	if n := b.count("select count(*) from holdfast.incarnation"); n != 0 {
		t.Error("a part of what was refused was committed")
	}
}

func TestFenceRaise_RaisingSaysWhatFailed(t *testing.T) {
	for _, row := range []struct{ breaks, says string }{
		{"alter table holdfast.incarnation rename to gone", "refill the incarnation"},
		{"alter table holdfast.consumer_position rename column clean to gone", "read position of orders/0"},
		{"alter table holdfast.consumer_position rename column held to gone", "raise epoch of orders/0"},
	} {
		t.Run(row.says, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			pgtest.Exec(t, b.db, row.breaks)
			_, err := in.consumer.fences.assign(t.Context(), "orders", 0, "", readAt(0))
			b.wantError(err, row.says)
		})
	}
}

// An error is no sign that somebody has the fence: it is said, and not waited out.
func TestFenceRaise_RaisingSaysWhyTheFenceCouldNotBeTried(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.sql.tryLock = "select 1 / ($1::int - $1) = $2::int"
	_, err := in.consumer.fences.assign(t.Context(), "orders", 0, "", readAt(0))
	b.wantError(err, "division by zero")
	if errors.Is(err, errFenceTaken) {
		t.Errorf("it says that another has the fence: %v", err)
	}
}

func TestFenceRaise_RaisingSaysThatTheFenceCouldNotBeTaken(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	b.holdFences(0, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	raised := make(chan error, 1)
	go func() {
		_, err := in.consumer.fences.raise(ctx, "orders", 0, "", true, readAt(0))
		raised <- err
	}()
	wait.Until(t, "it to wait in the lock's queue", func() bool { return b.fenceWaiters() == 1 })
	cancel()
	b.wantError(<-raised, "take fence of orders/0")
	_, err := in.consumer.fences.raise(t.Context(), "orders", 0, "", false, readAt(0))
	b.wantError(err, "take fence of orders/0")
	ended := b.begin()
	if err := ended.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []bool{true, false} {
		if err := in.consumer.fences.lock(t.Context(), ended, &fence{}, wait); err == nil {
			t.Errorf("with wait=%v a lock was taken in a transaction that had ended", wait)
		}
	}
}

// assigning raises the epoch beside the test.
func (b *bundle) assigning(ctx context.Context, in *Inbox) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := in.consumer.fences.assign(ctx, "orders", 0, "", readAt(0))
		done <- err
	}()
	return done
}

// result is what came of assigning.
func (b *bundle) result(done <-chan error) error {
	b.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(wait.Limit()):
		b.Fatal("raising does not come to an end")
		return nil
	}
}

func TestFenceRaise_RaisingWaitsInTheQueueAndLeavesItsPlace(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for range 2 { // The second time shows that the first has left its place.
		held := b.holdFences(0, 0)
		done := b.assigning(t.Context(), in)
		wait.Until(t, "it to wait in the lock's queue", func() bool { return b.fenceWaiters() == 1 })
		if err := held.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.result(done); err != nil {
			t.Error(err)
		}
		if n := len(in.consumer.fences.waiting); n != 0 {
			t.Fatalf("%d places are taken after all have ended", n)
		}
	}
}

func TestFenceRaise_RaisingLooksAgainWhileOthersHaveThePlaces(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for range cap(in.consumer.fences.waiting) {
		in.consumer.fences.waiting <- struct{}{}
	}
	held := b.holdFences(0, 0)
	done := b.assigning(t.Context(), in)
	for range 5 {
		if b.fenceWaiters() != 0 {
			t.Error("it waits in the lock's queue although its place is another's")
		}
	}
	select {
	case err := <-done:
		t.Fatalf("it came to an end while the fence was held: %v", err)
	default:
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.result(done); err != nil {
		t.Error(err)
	}
}

func TestFenceRaise_RaisingEndsWithItsContext(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for range cap(in.consumer.fences.waiting) {
		in.consumer.fences.waiting <- struct{}{}
	}
	b.holdFences(0, 0)
	looks := make(chan struct{}, 100)
	in.random = func() float64 { looks <- struct{}{}; return 1 }
	ctx, cancel := context.WithCancel(t.Context())
	done := b.assigning(ctx, in)
	for range 4 { // The pause that it is in is then a long one.
		<-looks
	}
	cancel()
	if err := b.result(done); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
