package retention

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// bundle is a database with the schema.
type bundle struct {
	*testing.T
	db *pgtest.DB
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	return &bundle{t, migrated.New(t)}
}

// loop is that of the consumer billing, with the window that an inbox has by default.
func (b *bundle) loop(change ...func(*Config)) *Loop {
	c := Config{Pool: b.db.Pool, Schema: "holdfast", Consumer: "billing", Window: 7 * 24 * time.Hour, Random: rand.Float64, Failed: func(err error) { b.Errorf("it failed: %v", err) }}
	for _, f := range change {
		f(&c)
	}
	return New(c)
}

func (b *bundle) count(sql string, args ...any) int64 {
	b.Helper()
	return pgtest.Count(b, b.db, sql, args...)
}

// turn makes one turn of retention that must be ours.
func (b *bundle) turn(l *Loop, limit int) Turn {
	b.Helper()
	// Whatever pause the last one asked for is over.
	pgtest.Exec(b, b.db, "update holdfast.retention set next_at = '-infinity'")
	t, err := l.Turn(b.Context(), limit, false)
	if err != nil {
		b.Fatalf("turn: %v", err)
	}
	return t
}

// pass makes turns until one meets the end, and says how many rows they read and removed.
func (b *bundle) pass(l *Loop, limit int) (read, removed int) {
	b.Helper()
	next := limit
	for range 1000 {
		t := b.turn(l, next)
		read, removed = read+t.Read, removed+t.Removed
		if t.Read < next && !t.More {
			return read, removed
		}
		next = limit // as small as the test wants it, where that gets on
		if t.Removed == 0 {
			next = t.NextLimit
		}
	}
	b.Fatal("the pass does not end")
	return 0, 0
}

func TestRetention_RetentionRemovesOldRowsBelowThePosition(t *testing.T) {
	b := setup(t)
	l := b.loop()
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values
		('billing', 'orders', 0, 100), ('billing', 'orders', 1, 0), ('billing', 'refunds', 2, 500), ('mail', 'orders', 0, 500), ('mail', 'orders', 3, 500)`)
	rows := []struct {
		name                string
		consumer, result    string
		received, processed string // spans before now; "" is null
		partition, offset   any
		letter              string // its state
		goes                bool
	}{
		{name: "old, from HTTP", goes: true},
		{name: "young, from HTTP", received: "167 hours", processed: "167 hours"},
		{name: "received long ago, settled a moment ago", processed: "1 minute"},
		{name: "old, below the position", partition: 0, offset: 99, goes: true},
		{name: "young, below the position", received: "167 hours", processed: "167 hours", partition: 0, offset: 99},
		{name: "old, at the position", partition: 0, offset: 100},
		{name: "old, above the position", partition: 0, offset: 101},
		{name: "old, the first of a partition that stands at 0", partition: 1, offset: 0},
		{name: "old, below the position of the same partition of another topic", partition: 2, offset: 7},
		{name: "old, below another consumer's position only", partition: 3, offset: 7},
		{name: "old, of a partition without a position", partition: 9, offset: 0},
		{name: "old, stored", result: "stored", processed: "null"},
		{name: "old, stored, below the position", result: "stored", processed: "null", partition: 0, offset: 3},
		{name: "old, dead without a letter", result: "dead", goes: true},
		{name: "old, dead, its letter is open", result: "dead", letter: "open"},
		{name: "old, dead, below the position, its letter is open", result: "dead", letter: "open", partition: 0, offset: 4},
		{name: "old, dead, its letter is being replayed", result: "dead", letter: "replaying"},
		{name: "old, dead, its letter was replayed", result: "dead", letter: "replayed", goes: true},
		{name: "old, dead, its letter was discarded", result: "dead", letter: "discarded", partition: 0, offset: 5, goes: true},
		{name: "old, handled, beside a letter of a conflict", letter: "open", goes: true},
		{name: "old, discarded", result: "discarded", goes: true},
		{name: "old, skipped", result: "skipped", goes: true},
		{name: "old, another consumer's", consumer: "mail"},
	}
	var stays int64
	for _, r := range rows {
		consumer, result := cmp.Or(r.consumer, "billing"), cmp.Or(r.result, "handled")
		received, processed := cmp.Or(r.received, "169 hours"), cmp.Or(r.processed, "169 hours")
		pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, received_at, processed_at, result)
			values ($1, 'shop', $2, 'orders', $3, $4, '', now() - $5::text::interval, case when $6::text <> 'null' then now() - nullif($6::text, 'null')::interval end, $7)`,
			consumer, r.name, r.partition, r.offset, received, processed, result)
		if r.letter != "" {
			pgtest.Exec(t, b.db, `insert into holdfast.letter (origin, consumer, reason, state, event_id, source, type, topic, key, time, hash)
				values ('inbox', $1, 'test', $2, $3, 'shop', 't', 'orders', '', now(), '')`, consumer, r.letter, r.name)
		}
		if !r.goes {
			stays++
		}
	}
	// A letter of another consumer about the same event keeps nothing.
	pgtest.Exec(t, b.db, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash)
		values ('inbox', 'mail', 'test', 'old, dead without a letter', 'shop', 't', 'orders', '', now(), '')`)
	for _, limit := range []int{3, 1000} { // a second pass takes nothing more
		b.pass(l, limit)
		for _, r := range rows {
			got := b.count("select count(*) from holdfast.inbox where event_id = $1", r.name) == 0
			if got != r.goes {
				t.Errorf("turns of %d rows: %q: gone %v, want %v", limit, r.name, got, r.goes)
			}
		}
		if n := b.count("select count(*) from holdfast.inbox"); n != stays {
			t.Errorf("turns of %d rows: %d rows are left, want %d", limit, n, stays)
		}
	}
}

func TestRetention_RetentionReadsRowsOfAStalledPartitionOnceInAPass(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	l := b.loop()
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 10), ('billing', 'orders', 1, 1000)`)
	rows.Settled(t, b.db, "stalled-", 0, 1000)
	rows.Settled(t, b.db, "going-", 1, 1000)
	rows.Settled(t, b.db, "http-", nil, 1000)
	if read, removed := b.pass(l, 100); removed != 2010 || read > 3100 {
		t.Errorf("the first pass read %d rows and removed %d, want about 3000 and 2010", read, removed)
	}
	if read, removed := b.pass(l, 100); removed != 0 || read > 1100 {
		t.Errorf("the second pass read %d rows and removed %d, want about 990 and none", read, removed)
	}
	pgtest.Exec(t, b.db, `update holdfast.consumer_position set position = 600 where partition = 0`)
	if _, removed := b.pass(l, 100); removed != 590 {
		t.Errorf("after the position moved %d rows were removed, want 590", removed)
	}
	if n := b.count(`select count(*) from holdfast.inbox where "offset" < 600 or partition is distinct from 0`); n != 0 {
		t.Errorf("%d rows are left that should have gone", n)
	}
	if n := b.count("select count(*) from holdfast.inbox"); n != 400 {
		t.Errorf("%d rows are left, want 400", n)
	}
}

func TestRetention_RetentionGetsPastManyRowsOfOneInstantThatMustStay(t *testing.T) {
	b := setup(t)
	l := b.loop()
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result)
		select 'billing', '', 'stalled-' || n, 'orders', 0, n, '', now() - interval '40 days', 'handled' from generate_series(1, 3000) n`)
	rows.Settled(t, b.db, "http-", nil, 500)
	b.pass(l, 100)
	if n := b.count("select count(*) from holdfast.inbox where partition is null"); n != 0 {
		t.Errorf("%d rows behind them are left", n)
	}
	if n := b.count("select count(*) from holdfast.inbox"); n != 3000 {
		t.Errorf("%d rows are left, want 3000", n)
	}
}

func TestRetention_ADailyTurnFindsRowsBelowTheMark(t *testing.T) {
	b := setup(t)
	l := b.loop()
	rows.Settled(t, b.db, "http-", nil, 100)
	b.pass(l, 1000)
	// A transaction that had been open since before everything else.
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', '', 'late', 'orders', '', now() - interval '60 days', 'handled')`)
	if _, removed := b.pass(l, 1000); removed != 0 {
		t.Errorf("%d rows were removed behind the mark", removed)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = '-infinity'")
	if got, err := l.Turn(b.Context(), 1000, true); err != nil || got.Removed != 1 {
		t.Errorf("%+v, %v; want 1 row removed", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = '-infinity'")
	if got, err := l.Turn(b.Context(), 1000, true); err != nil || got.Read != 0 {
		t.Errorf("%+v, %v; want nothing read", got, err)
	}
	if n := b.count("select count(*) from holdfast.retention where from_at is not null"); n != 1 {
		t.Error("the mark was lost where there was nothing to read")
	}
}

func TestRetention_RetentionForgetsStartsThatNobodyAskedForAgain(t *testing.T) {
	b := setup(t)
	l := b.loop(func(c *Config) { c.Window = time.Minute })
	pgtest.Exec(t, b.db, `insert into holdfast.start (consumer, source, event_id, starts, last_at) values
		('billing', '', 'leaked', 1, now() - interval '25 hours'), ('billing', '', 'a slow crash loop', 2, now() - interval '23 hours'), ('mail', '', 'other', 1, now() - interval '25 hours')`)
	if err := l.Forget(b.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.count("select count(*) from holdfast.start where event_id = 'leaked'"); n != 0 {
		t.Error("the leaked start is still there")
	}
	if n := b.count("select count(*) from holdfast.start"); n != 2 {
		t.Errorf("%d starts are left, want 2", n)
	}
}

// Steps of an event that has no row are kept for 30 days, or for the window if that is longer. Those of an event that waits, or is an open dead
// letter, stay as long as it does.
func TestRetention_StepsStayAsLongAsTheirEventMayComeAgain(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, received_at, processed_at, result) values
		('billing', '', 'stored', 'orders', '', now() - interval '1 year', null, 'stored'), ('billing', '', 'dead', 'orders', '', now() - interval '1 year', now() - interval '1 year', 'dead'),
		('billing', '', 'handled', 'orders', '', now() - interval '1 year', now() - interval '1 year', 'handled'), ('billing', '', 'yesterday', 'orders', '', now() - interval '1 year', now() - interval '1 day', 'handled')`)
	pgtest.Exec(t, b.db, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash) values ('inbox', 'billing', 'r', 'dead', '', 't', 'orders', '', now(), '')`)
	pgtest.Exec(t, b.db, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at)
		select c, '', e, ''::bytea, 'charge', '', '1'::json, now() - interval '1 year' from unnest('{billing,mail}'::text[]) c, unnest('{stored,dead,handled,yesterday}'::text[]) e
		union all select 'billing', '', d || ' days', '', 'charge', '', '1', now() - d * interval '1 day' from unnest('{1,29,31,59,61}'::int[]) d`)
	left := func() string {
		return pgtest.Text(t, b.db, "select string_agg(event_id, ', ' order by done_at, event_id) from holdfast.inbox_step where consumer = 'billing'")
	}
	l := b.loop()
	b.pass(l, 100)
	if got := left(); got != "dead, stored, yesterday, 61 days, 59 days, 31 days, 29 days, 1 days" {
		t.Errorf("after the rows are removed, %s are left", got)
	}
	for _, c := range []struct {
		days int
		want string
	}{{60, "59 days, 31 days, 29 days, 1 days"}, {7, "29 days, 1 days"}} {
		if err := b.loop(func(of *Config) { of.Window = time.Duration(c.days) * 24 * time.Hour }).Forget(b.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := left(), "dead, stored, yesterday, "+c.want; got != want {
			t.Errorf("with a window of %d days %s are left, want %s", c.days, got, want)
		}
	}
	if n := b.count("select count(*) from holdfast.inbox_step where consumer = 'mail'"); n != 4 {
		t.Errorf("%d steps of another consumer are left, want 4", n)
	}
}

// Each source with a window of its own has its rows as long as that says, shorter or longer, and no pass reads what lies beyond the other's.
func TestRetention_ASourceWithAWindowOfItsOwnKeepsItsRowsThatLong(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		select 'billing', s, s || d, 'hooks', '', now() - d * interval '1 day' - interval '1 minute', 'handled'
		  from unnest('{"",shop,stripe,clicks}'::text[]) s, unnest('{0,1,7,30,31}'::int[]) d`)
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		values ('mail', 'stripe', '31', 'hooks', '', now() - interval '31 days', 'handled')`)
	own := func(c *Config) {
		c.Own = map[string]time.Duration{"stripe": 30 * 24 * time.Hour, "clicks": 24 * time.Hour}
	}
	// It reads what is older than a week, of all sources; then clicks what is left and older than a day, and stripe what is older than a month.
	b.pass(b.loop(own), 100)
	left := pgtest.Text(t, b.db, "select string_agg(consumer || ' ' || event_id, ', ' order by consumer, source, processed_at desc) from holdfast.inbox")
	const want = "billing 0, billing 1, billing clicks0, billing shop0, billing shop1, billing stripe0, billing stripe1, billing stripe7, mail 31"
	if left != want {
		t.Errorf("left are %q, want %q", left, want)
	}
}

// What has to stay, for an open dead letter say, does not make each pass read the rows that other sources keep longer.
func TestRetention_ARowThatStaysDoesNotMakeAPassReadWhatOthersKeep(t *testing.T) {
	b := setup(t)
	own := func(c *Config) { c.Own = map[string]time.Duration{"stripe": 30 * 24 * time.Hour} }
	l := b.loop(own)
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		select 'billing', 'stripe', n::text, 'hooks', '', now() - interval '10 days' + n * interval '1 second', 'handled' from generate_series(1, 2000) n`)
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		values ('billing', 'shop', 'dead', 'hooks', '', now() - interval '20 days', 'dead'), ('billing', 'stripe', 'old', 'hooks', '', now() - interval '31 days', 'handled')`)
	pgtest.Exec(t, b.db, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash)
		values ('inbox', 'billing', 'r', 'dead', 'shop', 't', 'hooks', '', now(), '')`)
	if read, removed := b.pass(l, 700); read < 2000 || removed != 1 {
		t.Errorf("the first pass read %d rows and removed %d, want all and 1", read, removed)
	}
	// A row of the source whose transaction was open for a month: its mark is past it.
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		values ('billing', 'stripe', 'late', 'hooks', '', now() - interval '32 days', 'handled')`)
	for range 3 {
		if read, removed := b.pass(l, 700); read > 10 || removed != 0 {
			t.Errorf("a later pass read %d rows and removed %d, want next to none", read, removed)
		}
	}
	pgtest.Exec(t, b.db, "update holdfast.letter set state = 'discarded'")
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = '-infinity'")
	turn, err := l.Turn(t.Context(), 700, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, removed := b.pass(l, 700); turn.Removed+removed != 2 {
		t.Errorf("the pass from the first row removed %d, want what had to stay, and what came late", turn.Removed+removed)
	}
	if n := b.count("select count(*) from holdfast.inbox where source = 'stripe'"); n != 2000 {
		t.Errorf("%d rows of the other source are left, want 2000", n)
	}
}

// Sources share a turn's time, come first each in turn, and get on whatever the others have to do.
func TestRetention_EachOfManySourcesGetsOn(t *testing.T) {
	b := setup(t)
	windows := map[string]time.Duration{}
	for n := range 20 {
		windows[fmt.Sprint("s", n)] = time.Duration(n+1) * time.Hour
	}
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		select 'billing', 's' || n % 20, n::text, 'hooks', '', now() - interval '2 days' + n * interval '1 second', 'handled' from generate_series(1, 4000) n`)
	l := b.loop(func(c *Config) { c.Own = windows })
	wait.Until(t, "all sources have gone", func() bool {
		b.turn(l, 500)
		return b.count("select count(*) from holdfast.inbox") == 0
	})
}
