package inbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// While the first of a key fails, what follows is stored, many in a transaction: the settling of one and the storing of the next
// take the key's lock in turns, and a busy key that had fallen behind would stay so.
func TestFollowers_FollowersOfAKeyAreStoredTogetherDormantAndInTheirOrder(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			if mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeSimpleProtocol {
				skip.InShort(t, "each mode takes 5 s beside the others; -short has the default and the one that differs most")
			}
			followersAreStoredTogether(t, mode)
		})
	}
}

func followersAreStoredTogether(t *testing.T, mode pgx.QueryExecMode) {
	b := setup(t)
	config, err := pgxpool.ParseConfig(b.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var failing atomic.Bool
	failing.Store(true)
	in := b.inboxOn(pool, func(c *Config) {
		c.Retry = retry.Policy{Attempts: 1000, Base: 50 * time.Millisecond, Cap: 50 * time.Millisecond}
		c.Timeout = time.Minute              // the first of the key waits in its handler until all are read
		c.MaxStored, c.MaxStoredKey = -1, -1 // with limits, events are stored one by one while no count is recent
	})
	const n, ofKey = 600, 300
	// The first of the key fails once all of the other key are handled: then the rest of its key has been read.
	var others atomic.Int64
	read := make(chan struct{})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Key != "key 0" && others.Add(1) == n-ofKey {
			close(read)
		}
		if failing.Load() && e.Key == "key 0" {
			select {
			case <-read:
			case <-ctx.Done():
			}
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	})
	log := keyed(n, 2)
	for i := range log {
		switch i % 3 {
		case 0:
			log[i].Headers = map[string]string{"place": strconv.Itoa(i)}
		case 1:
			log[i].Payload = nil
		}
	}
	b.consumeFake(in, newFakeGeneration(logOf(log...)))
	b.awaitSettled(n)
	if stored := b.count("select count(*) from holdfast.stored where key = 'key 0'"); stored != ofKey {
		t.Fatalf("%d events wait, want %d", stored, ofKey)
	}
	if by := b.count(`select count(distinct xmin::text) from holdfast.inbox where result = 'stored'`); by > ofKey/10 {
		t.Errorf("%d events were stored in %d transactions", ofKey, by)
	} else {
		t.Logf("%d events were stored in %d transactions", ofKey, by)
	}
	if wrong := b.count(`select count(*) from (select event_id, lag(event_id) over (order by place) as before, next_at, row_number() over (order by place) as nth
		from holdfast.stored) s where event_id < before or (nth > 1 and next_at < 'infinity')`); wrong != 0 {
		t.Errorf("%d events are out of order, or active behind another", wrong)
	}
	if wrong := b.count(`select count(*) from holdfast.stored where attempts > 0 and place > (select min(place) from holdfast.stored)
		or (partition, "offset") is distinct from (0, event_id::bigint)
		or coalesce(headers ->> 'place', '') <> case when event_id::int % 3 = 0 then event_id::int::text else '' end
		or (payload is null) <> (event_id::int % 3 = 1)`); wrong != 0 {
		t.Errorf("%d events are not stored as they came", wrong)
	}
	failing.Store(false)
	b.nothingStored()
	b.inOrderAndOnce(n)
	if n := b.count("select count(*) from holdfast.inbox where result <> 'handled' or processed_at is null"); n != 0 {
		t.Errorf("%d events are not settled", n)
	}
}

// slowToCommit is a bundle on a disk on which a COMMIT takes 10 ms.
func slowToCommit(t *testing.T) *bundle {
	t.Helper()
	server := pgtest.Own(t, pgtest.Options{Settings: map[string]string{"commit_delay": "10000", "commit_siblings": "0"}})
	db := pgtest.On(t, server.DSN)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db, "create table effect (n bigint generated always as identity, id text, key text)")
	return &bundle{T: t, db: db, observed: newObservations()}
}

// On a disk on which a COMMIT takes 10 ms, a key that has fallen behind is stored long before it is handled. It was handled no
// sooner than it was stored, and at half the speed.
func TestFollowers_ABusyKeyThatFellBehindIsNotHeldUpByItsFollowers(t *testing.T) {
	skip.InShort(t, "it takes 21 s beside the others")
	t.Parallel()
	b := slowToCommit(t)
	var behind atomic.Bool
	in := b.inbox(func(c *Config) {
		c.Retry = retry.Policy{Attempts: 1000, Base: 100 * time.Millisecond, Cap: 100 * time.Millisecond}
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if !behind.Load() {
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	})
	const n = 300
	// What is taken in notes how many are handled by then: a machine that stands still changes nothing about that.
	pgtest.Exec(t, b.db, `create table taken (handled bigint);
		create function note() returns trigger language plpgsql as $$ begin insert into taken select count(*) from effect; return null; end $$;
		create trigger note after insert on holdfast.inbox for each row execute function note()`)
	b.consumeFake(in, newFakeGeneration(logOf(keyed(n, 1)...)))
	// On a busy machine the first is handled before any other has been read, where it fails but once.
	wait.Until(t, "the key has fallen behind", func() bool { return b.count("select count(*) from holdfast.stored") > 10 })
	begun := time.Now()
	behind.Store(true)
	wait.Until(t, "all are taken in", func() bool { return b.count("select count(*) from holdfast.inbox") >= n })
	stored := time.Since(begun)
	wait.Until(t, "all are handled", func() bool { return b.count("select count(*) from effect") >= n })
	handled := time.Since(begun)
	b.awaitSettled(n)
	t.Logf("%d events of one key, a COMMIT of 10 ms: taken in after %v, handled after %v, %.0f/s", n, stored, handled, n/handled.Seconds())
	last := b.count("select max(handled) from taken")
	if t.Logf("%d were handled when the last was taken in", last); last > n/2 {
		t.Error("it is stored in turns with its handling")
	}
	b.inOrderAndOnce(n)
}

// What is to be stored together is stored together or not at all.
func TestFollowers_FollowersThatCannotAllBeStoredLeaveNothing(t *testing.T) {
	for _, row := range []struct {
		name   string
		limit  int
		before []string // stored before them
		known  string
		epoch  int64 // added to the right one
		want   error
	}{
		{"all of them", 100, []string{"0"}, "", 0, nil},
		{"as many as fit", 4, []string{"0"}, "", 0, nil},
		{"nothing is before them any more", 100, nil, "", 0, errOneByOne},
		{"one is known", 100, []string{"0"}, "2", 0, errOneByOne},
		{"there is room for two", 3, []string{"0"}, "", 0, errOneByOne},
		{"another node has the partition", 100, []string{"0"}, "", -1, errOneByOne},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.MaxStoredKey = row.limit })
			in.Handle("order.placed", effectOf)
			in.registry.start()
			ds := b.followers(in, row.epoch)
			for _, id := range row.before {
				b.store(in, event(id, "k"))
			}
			if row.known != "" {
				b.store(in, event(row.known, "other"))
			}
			p := pipeline{admission: in.receiver.admission}
			out, err := p.openAndRun(t.Context(), attempt{ds: ds, number: 1, followers: true})
			if !errors.Is(err, row.want) {
				t.Fatalf("it says %q, %v", out, err)
			}
			want := int64(len(row.before))
			if row.want == nil {
				if err := p.commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				want += 3
			}
			if n := b.count("select count(*) from holdfast.stored where key = 'k'"); n != want {
				t.Errorf("%d events wait, want %d", n, want)
			}
			if n := b.count("select count(*) from holdfast.inbox i where not exists (select from holdfast.stored s where s.event_id = i.event_id)"); n != 0 {
				t.Errorf("%d events are recorded that are not stored: they would never be handled", n)
			}
		})
	}
}

// followers are the events 1, 2 and 3 of the key "k", from a partition that is ours, by an epoch that is off by some.
func (b *bundle) followers(in *Inbox, off int64) (ds []*delivery) {
	b.Helper()
	a, err := in.consumer.positions.Assign(b.Context(), "orders", 0, "", func(int64) (position.Reading, error) { return position.Reading{}, nil })
	if err != nil {
		b.Fatal(err)
	}
	a.Fence.Epoch += off
	for i := range 3 {
		d := in.registry.newDelivery(event(strconv.Itoa(i+1), "k"))
		d.from = &origin{fence: a.Fence, offset: int64(i)}
		ds = append(ds, d)
	}
	return ds
}

// The worker that removes the head resumes the next one, and has to see it: both have the lock of the key.
func TestFollowers_FollowersWaitForWhoeverIsTakingTheHeadAway(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	in.registry.start()
	ds := b.followers(in, 0)
	b.store(in, event("0", "k"))
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), lockSQL, int32(lane.KeyClass), in.keyNumber("orders", "k")); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "delete from holdfast.stored"); err != nil {
		t.Fatal(err)
	}
	said := make(chan error, 1)
	go func() {
		p := pipeline{admission: in.receiver.admission}
		_, err := p.openAndRun(t.Context(), attempt{ds: ds, number: 1, followers: true})
		if err == nil {
			err = errors.Join(errors.New("they are stored"), p.commit(t.Context()))
		}
		said <- err
	}()
	for b.count("select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())") == 0 {
		select {
		case err := <-said:
			t.Fatalf("it did not wait: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-said; !errors.Is(err, errOneByOne) {
		t.Errorf("the head has gone, and of what came behind it is said: %v", err)
	}
}

// armer has the COMMIT cut that comes behind a statement of the second transaction in which many are stored.
type armer struct {
	beginnings
	proxy *cutter
}

func (a *armer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	a.beginnings.TraceBatchQuery(ctx, conn, data)
	if strings.HasPrefix(data.SQL, a.of) && a.count == 2 {
		a.proxy.armed.Store(true)
	}
}

func TestFollowers_FollowersWhoseCommitGotNoAnswerAreStoredOnceAndSaidToBe(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	var proxy cutter
	tracer := &armer{beginnings: beginnings{of: "-- inbox.store_many"}, proxy: &proxy}
	in := b.inboxOn(proxy.pool(b, tracer), func(c *Config) {
		c.Workers = 1
		c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { return errors.New("not yet") })
	const n = 500
	b.consumeFake(in, newFakeGeneration(logOf(keyed(n, 1)...)))
	b.awaitSettled(n)
	if proxy.cuts.Load() != 1 {
		t.Fatalf("%d COMMITs were cut, want 1", proxy.cuts.Load())
	}
	if stored := b.count("select count(*) from holdfast.stored"); stored != n {
		t.Errorf("%d events are stored, want %d", stored, n)
	}
	if wrong := b.count("select count(*) from (select event_id, lag(event_id) over (order by place) as before from holdfast.stored) s where event_id < before"); wrong != 0 {
		t.Errorf("%d events are out of order", wrong)
	}
	said := map[Outcome]int{}
	b.await("what was said", func(o *observations) bool {
		for _, outcomes := range o.outcomes {
			for _, out := range outcomes {
				said[out]++
			}
		}
		return true
	})
	if diff := cmp.Diff(map[Outcome]int{Retrying: 1, Stored: n - 1}, said); diff != "" {
		t.Error(diff)
	}
	if counted := in.receiver.queues.quota.usage.events; counted < n || counted > n+maxFollowers {
		t.Errorf("%d are stored, and %d are counted", n, counted)
	}
}

// Heads that fail now and then, duplicates, queues that come and go, room that runs out: what is stored together comes in its
// order, and once.
func TestFollowers_BusyKeysThatFallBehindAgainAndAgainKeepTheirOrder(t *testing.T) {
	skip.InShort(t, "it takes 14 s beside the others")
	b := setup(t)
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	var tries atomic.Uint64
	pool, together := b.counted("-- inbox.store_many")
	in := b.inboxOn(pool, func(c *Config) {
		c.MaxStoredKey, c.MaxStored = 150, 400
		c.Retry = retry.Policy{Attempts: 1000, Base: time.Millisecond, Cap: 30 * time.Millisecond}
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if n := tries.Add(1); (n*2654435761>>7)%40 == 0 {
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	})
	const n = 2500
	var log []holdfast.Event
	for i, e := range keyed(n, n) {
		e.Key = "key " + strconv.Itoa(r.IntN(4))
		if r.IntN(3) == 0 {
			e.Payload = []byte(strings.Repeat("x", r.IntN(50_000)))
		}
		log = append(log, e)
		if r.IntN(30) == 0 {
			log = append(log, log[r.IntN(i+1)]) // it comes again
		}
	}
	b.consumeFake(in, newFakeGeneration(logOf(log...)))
	ctx, settled := context.WithCancel(t.Context())
	most := make(chan int)
	go func() {
		all, each := 0, 0
		for ctx.Err() == nil {
			var n, m int
			if b.db.QueryRow(ctx, "select coalesce(sum(n), 0), coalesce(max(n), 0) from (select count(*) n from holdfast.stored group by key) k").Scan(&n, &m) == nil {
				all, each = max(all, n), max(each, m)
			}
		}
		most <- all
		most <- each
	}()
	b.awaitSettled(int64(len(log)))
	settled()
	if all, each := <-most, <-most; all > in.c.MaxStored || each > in.c.MaxStoredKey {
		t.Errorf("%d events were stored at once, and %d of one key; %d and %d may be", all, each, in.c.MaxStored, in.c.MaxStoredKey)
	} else {
		t.Logf("%d events were stored at once, and %d of one key", all, each)
	}
	b.nothingStored()
	b.inOrderAndOnce(n)
	if t.Logf("%d events, of which %d came again; %d times some were to be stored together", n, len(log)-n, together.count); together.count < 10 {
		t.Error("events were hardly ever to be stored together")
	}
}
