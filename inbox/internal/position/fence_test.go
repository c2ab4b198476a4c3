package position

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// bundle is a database with the schema, and the rows of the consumer billing in it.
type bundle struct {
	*testing.T
	db *pgtest.DB
	*Table
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	db := migrated.New(t)
	return &bundle{t, db, New(Config{
		Pool: db.Pool, Schema: "holdfast", Consumer: "billing", Node: "node", Random: rand.Float64,
		Transact: func(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
			return pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return f(ctx, tx) })
		},
	})}
}

func (b *bundle) count(sql string, args ...any) int64 {
	b.Helper()
	return pgtest.Count(b, b.db, sql, args...)
}

// readAt chooses to read from an offset, and takes the position to be there.
func readAt(offset int64) func(int64) (Reading, error) {
	return func(int64) (Reading, error) { return Reading{Start: offset, Position: offset}, nil }
}

// assign gives partition 0 to the node.
func (b *bundle) assign(group string, offset int64) Assigned {
	b.Helper()
	a, err := b.Assign(b.Context(), "orders", 0, group, readAt(offset))
	if err != nil {
		b.Fatal(err)
	}
	return a
}

// holdFence holds the fence of partition 0 as the last owner's transaction does, until the transaction ends.
func (b *bundle) holdFence() pgx.Tx {
	b.Helper()
	tx := pgtest.Begin(b, b.db)
	pgtest.Exec(b, tx, "select pg_advisory_xact_lock_shared($1, $2)", FenceClass, lane.Number("holdfast", "billing", "orders", "0"))
	return tx
}

func (b *bundle) fenceWaiters() int64 {
	return b.count("select count(*) from pg_locks where locktype = 'advisory' and classid = $1 and not granted and database = (select oid from pg_database where datname = current_database())", int64(FenceClass))
}

// wantError wants an error that says what was being tried.
func (b *bundle) wantError(err error, says string) {
	b.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		b.Errorf("the error is %v, want one that says %q", err, says)
	}
}

// readFence asks the fence as the first batch of a transaction does.
func (b *bundle) readFence(f *Fence, tx pgx.Tx) error {
	batch := &pgx.Batch{}
	b.Queue(f, batch)
	br := tx.SendBatch(b.Context(), batch)
	defer func() { _ = br.Close() }()
	return b.Read(br)
}

func TestFence_RaisingTheEpochFencesTheLastOwnerOff(t *testing.T) {
	b := setup(t)
	old := b.assign("", 0).Fence
	for _, last := range []bool{false, true} {
		tx := pgtest.Begin(b, b.db)
		checked, read := b.Check(t.Context(), tx, old), b.readFence(old, tx)
		if !last && (checked != nil || read != nil) {
			t.Errorf("the owner is refused: %v, %v", checked, read)
		}
		if last && (!errors.Is(checked, failure.ErrFenced) || !errors.Is(read, failure.ErrFenced)) {
			t.Errorf("the last owner is told %v and %v, want that it is fenced off", checked, read)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.assign("", 0)
	}
}

func TestFence_RaisingSharesNoFenceWithItsReaders(t *testing.T) {
	b := setup(t)
	f := b.assign("", 0).Fence
	tx := pgtest.Begin(b, b.db)
	if err := b.readFence(f, tx); err != nil {
		t.Fatal(err)
	}
	_, err := b.raise(t.Context(), "orders", 0, "", false, readAt(0))
	if !errors.Is(err, errFenceTaken) {
		t.Errorf("while a transaction reads under the fence, raising says %v", err)
	}
	if err := b.readFence(f, pgtest.Begin(b, b.db)); err != nil {
		t.Errorf("two transactions of one owner keep each other out: %v", err)
	}
}

func TestFence_FencingSaysWhatItCouldNotAsk(t *testing.T) {
	b := setup(t)
	f := b.assign("", 0).Fence
	exclusive := pgtest.Begin(b, b.db)
	pgtest.Exec(t, exclusive, "select pg_advisory_xact_lock($1, $2)", FenceClass, f.Number)
	waiting := pgtest.Begin(b, b.db)
	pgtest.Exec(t, waiting, "set local lock_timeout = '20ms'")
	b.wantError(b.readFence(f, waiting), "take fence")
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
	if err := b.readFence(f, before); err != nil { // The statements are prepared from here on.
		t.Fatal(err)
	}
	if err := before.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, pgtest.Begin(b, b.db), "lock table holdfast.consumer_position in access exclusive mode")
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	pgtest.Exec(t, tx, "set local lock_timeout = '20ms'; savepoint s")
	err = b.readFence(f, tx)
	b.wantError(err, "read epoch")
	if errors.Is(err, failure.ErrFenced) {
		t.Error("an owner that could not ask is called fenced off")
	}
	pgtest.Exec(t, tx, "rollback to s")
	err = b.Check(t.Context(), tx, f)
	b.wantError(err, "read epoch")
	if errors.Is(err, failure.ErrFenced) {
		t.Error("an owner that could not ask is called fenced off")
	}
}

func TestFence_RaisingKnowsTheLastOwnersEnd(t *testing.T) {
	b := setup(t)
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
		a := b.assign(row.group, 7)
		if a.Unclean != row.unclean || a.OtherGroup != row.other {
			t.Errorf("%s: unclean %v, other group %q; want %v, %q", row.name, a.Unclean, a.OtherGroup, row.unclean, row.other)
		}
		if n := b.count("select count(*) from holdfast.consumer_position where epoch = $1 and position = 7 and not clean and owner = $2 and coalesce(group_id, '') = $3", a.Fence.Epoch, b.Node, row.group); n != 1 {
			t.Errorf("%s: the row is not the owner's", row.name)
		}
	}
}

func TestFence_RaisingGivesWhatWasChosenAndTheDatabasesToken(t *testing.T) {
	b := setup(t)
	var asked []int64
	for range 2 {
		a, err := b.Assign(t.Context(), "orders", 3, "", func(position int64) (Reading, error) {
			asked = append(asked, position)
			return Reading{Start: 4, Position: 9}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		f := a.Fence
		token, err := b.Incarnation(t.Context())
		if err != nil || token == "" {
			t.Fatalf("the database's token is %q, %v", token, err)
		}
		if a.Reading != (Reading{Start: 4, Position: 9}) || f.Position != 9 || f.Topic != "orders" || f.Partition != 3 || f.Token != token {
			t.Errorf("the assignment is %+v with the fence %+v", a, *f)
		}
		if f.Number != lane.Number("holdfast", "billing", "orders", "3") {
			t.Error("the fence has another number than other nodes give it")
		}
		pgtest.Exec(t, b.db, "truncate holdfast.incarnation") // The next one fills it.
	}
	if asked[0] != source.NoOffset || asked[1] != 9 {
		t.Errorf("the positions are %v, want none and 9", asked)
	}
}

func TestFence_RaisingThatIsRefusedChangesNothing(t *testing.T) {
	b := setup(t)
	epoch := b.assign("", 5).Fence.Epoch
	pgtest.Exec(t, b.db, "delete from holdfast.incarnation") // as after a crash: it is not filled again either
	a, err := b.Assign(t.Context(), "orders", 0, "", func(position int64) (Reading, error) {
		return Reading{}, &beyondEnd{position: position, end: 2}
	})
	if !errors.Is(err, source.ErrOffsetOutOfRange) || a.Fence != nil {
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

func TestFence_RaisingSaysWhatFailed(t *testing.T) {
	for _, row := range []struct{ breaks, says string }{
		{"alter table holdfast.incarnation rename to gone", "refill the incarnation"},
		{"alter table holdfast.consumer_position rename column clean to gone", "read position of orders/0"},
		{"alter table holdfast.consumer_position rename column held to gone", "raise epoch of orders/0"},
	} {
		t.Run(row.says, func(t *testing.T) {
			b := setup(t)
			pgtest.Exec(t, b.db, row.breaks)
			_, err := b.Assign(t.Context(), "orders", 0, "", readAt(0))
			b.wantError(err, row.says)
		})
	}
}

// An error is no sign that somebody has the fence: it is said, and not waited out.
func TestFence_RaisingSaysWhyTheFenceCouldNotBeTried(t *testing.T) {
	b := setup(t)
	b.SQL.TryFence = "select 1 / ($1::int - $1) = $2::int"
	_, err := b.Assign(t.Context(), "orders", 0, "", readAt(0))
	b.wantError(err, "division by zero")
	if errors.Is(err, errFenceTaken) {
		t.Errorf("it says that another has the fence: %v", err)
	}
}

func TestFence_RaisingSaysThatTheFenceCouldNotBeTaken(t *testing.T) {
	b := setup(t)
	b.holdFence()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	raised := make(chan error, 1)
	go func() {
		_, err := b.raise(ctx, "orders", 0, "", true, readAt(0))
		raised <- err
	}()
	wait.Until(t, "it to wait in the lock's queue", func() bool { return b.fenceWaiters() == 1 })
	cancel()
	b.wantError(<-raised, "take fence of orders/0")
	_, err := b.raise(t.Context(), "orders", 0, "", false, readAt(0))
	b.wantError(err, "take fence of orders/0")
	ended := pgtest.Begin(b, b.db)
	if err := ended.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []bool{true, false} {
		if err := b.lock(t.Context(), ended, &Fence{}, wait); err == nil {
			t.Errorf("with wait=%v a lock was taken in a transaction that had ended", wait)
		}
	}
}

// assigning raises the epoch beside the test.
func (b *bundle) assigning(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := b.Assign(ctx, "orders", 0, "", readAt(0))
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

func TestFence_RaisingWaitsInTheQueueAndLeavesItsPlace(t *testing.T) {
	b := setup(t)
	for range 2 { // The second time shows that the first has left its place.
		held := b.holdFence()
		done := b.assigning(t.Context())
		wait.Until(t, "it to wait in the lock's queue", func() bool { return b.fenceWaiters() == 1 })
		if err := held.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.result(done); err != nil {
			t.Error(err)
		}
		if n := len(b.waiting); n != 0 {
			t.Fatalf("%d places are taken after all have ended", n)
		}
	}
}

func TestFence_RaisingLooksAgainWhileOthersHaveThePlaces(t *testing.T) {
	b := setup(t)
	for range cap(b.waiting) {
		b.waiting <- struct{}{}
	}
	held := b.holdFence()
	done := b.assigning(t.Context())
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

func TestFence_RaisingEndsWithItsContext(t *testing.T) {
	b := setup(t)
	for range cap(b.waiting) {
		b.waiting <- struct{}{}
	}
	b.holdFence()
	looks := make(chan struct{}, 100)
	b.Random = func() float64 { looks <- struct{}{}; return 1 }
	ctx, cancel := context.WithCancel(t.Context())
	done := b.assigning(ctx)
	for range 4 { // The pause that it is in is then a long one.
		<-looks
	}
	cancel()
	if err := b.result(done); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

func TestFence_AQuarterOfThePoolMayWaitForLastOwners(t *testing.T) {
	if n := waitingMost(nil); n != 1 {
		t.Errorf("without a pool %d may wait", n)
	}
	for conns, want := range map[int32]int{1: 1, 3: 1, 4: 1, 7: 1, 8: 2, 12: 3, 20: 5, 100: 25} {
		c, err := pgxpool.ParseConfig("postgres://localhost/x")
		if err != nil {
			t.Fatal(err)
		}
		c.MaxConns = conns
		pool, err := pgxpool.NewWithConfig(t.Context(), c) // It connects to nothing before it is asked to.
		if err != nil {
			t.Fatal(err)
		}
		if n := waitingMost(pool); n != want {
			t.Errorf("of %d connections %d may wait, want %d", conns, n, want)
		}
		pool.Close()
	}
}
