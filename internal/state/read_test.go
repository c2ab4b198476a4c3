package state

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/backfill"
	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A transaction that has written to the log or reads it is found, prepared or not; one that writes elsewhere,
// here or in another database, holds nothing.
func TestRead_WhoHoldsTheLogIsFound(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	begin := func(db *pgtest.DB, sql string) pgx.Tx {
		t.Helper()
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
		pgtest.Exec(t, tx, sql)
		return tx
	}
	pid := func(tx pgx.Tx) (n int64) { return pgtest.Count(t, tx, "select pg_backend_pid()") }
	gid := "it's " + t.Name() + fmt.Sprint(db.Config().ConnConfig.Database)
	literal := "'" + strings.ReplaceAll(gid, "'", "''") + "'"
	const write = "select holdfast.write('orders', 'k', 't', '')"
	pgtest.Exec(t, begin(db, write), "prepare transaction "+literal)
	t.Cleanup(func() { pgtest.Exec(t, db.Pool, "rollback prepared "+literal) })
	second := strings.TrimSuffix(literal, "'") + ", again'"
	pgtest.Exec(t, begin(db, write), "prepare transaction "+second)
	t.Cleanup(func() { pgtest.Exec(t, db.Pool, "rollback prepared "+second) })
	begin(db, "create table elsewhere ()")
	begin(migrated.New(t), write) // a copy of the same database, whose tables have the same numbers
	writer, reader := begin(db, write), begin(db, "select from holdfast.event_2")
	waitForLock(t, db, "lock table holdfast.event_2 in access exclusive mode", "holdfast.event_2") // it holds nothing yet

	r := Reader{db.Pool, "holdfast"}
	holders, err := r.LogHolders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, h := range holders {
		found[fmt.Sprint(h.PID, " ", h.Prepared)] = true
		if h.Seconds < 0 || h.Seconds > 60 {
			t.Errorf("its age is %+v", h)
		}
	}
	for _, want := range []string{fmt.Sprint("0 ", gid), fmt.Sprint("0 ", gid, ", again"), fmt.Sprint(pid(writer), " "), fmt.Sprint(pid(reader), " ")} {
		if !found[want] {
			t.Errorf("%q is not found: %v", want, found)
		}
	}
	if len(holders) != 4 {
		t.Errorf("got %v, want four, each once", holders)
	}

	role := "looker_" + db.Config().ConnConfig.Database
	pgtest.Exec(t, db.Pool, "create role "+role+"; grant usage on schema holdfast to "+role+"; grant select on all tables in schema holdfast to "+role)
	t.Cleanup(func() { pgtest.Exec(t, db.Pool, "drop owned by "+role+"; drop role "+role) })
	r.DB = db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	hidden, err := r.LogHolders(t.Context())
	if needs := whyFull(hidden, nil); err != nil || len(needs) != 1 || !strings.Contains(needs[0].Says, "grant pg_read_all_stats") {
		t.Errorf("a role that may not see the ages: %q, %v", needs, err)
	}
}

// waitForLock has another transaction wait for a lock on a table until the test ends.
func waitForLock(t *testing.T, db *pgtest.DB, lock, table string) {
	t.Helper()
	waiter, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	waited := make(chan struct{})
	t.Cleanup(func() {
		stop()
		<-waited
		_ = waiter.Rollback(context.Background())
	})
	go func() {
		defer close(waited)
		_, _ = waiter.Exec(ctx, lock)
	}()
	wait.Until(t, "another waits for the lock", func() bool {
		return pgtest.Count(t, db.Pool, "select count(*) from pg_locks where relation = $1::regclass and not granted and database = (select oid from pg_database where datname = current_database())", table) == 1
	})
}

// Whoever has locked a lane's row is found; one that reads the table, or waits for a lock, is not. Without a running relay nobody is looked for.
func TestRead_WhoLocksALaneIsFound(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 't', '')")
	wants := func(want string) State {
		t.Helper()
		s, err := Read(t.Context(), db.Pool, Options{Schema: "holdfast"})
		if needs := s.Needs(Limits{}); err != nil || len(needs) != 1 || !strings.Contains(needs[0].String(), want) {
			t.Errorf("needed is %q, %v, want %s", needs, err, want)
		}
		return s
	}
	wants(" has events and no owner: start a relay")
	pgtest.Exec(t, db.Pool, "insert into holdfast.relay (name, seen_until) values ('r', now() + interval '1 minute')")
	wants(" has events and no owner, although a relay runs: it takes them")

	var pids []int64
	for _, sql := range []string{"select from holdfast.lane where lane = 3 for update", "select from holdfast.lane"} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
		pgtest.Exec(t, tx, sql)
		pids = append(pids, pgtest.Count(t, tx, "select pg_backend_pid()"))
	}
	other, err := migrated.New(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Rollback(t.Context()) })
	pgtest.Exec(t, other, "select from holdfast.lane for update") // of a copy of the same database, whose tables have the same numbers
	waitForLock(t, db, "lock table holdfast.lane in exclusive mode", "holdfast.lane")
	if s := wants(" has events and no owner"); len(s.LaneHolders) != 1 || s.LaneHolders[0].PID != pids[0] {
		t.Errorf("found %v, want process %d alone", s.LaneHolders, pids[0])
	}
}

var (
	logEvents    = flag.Int("log-events", 20_000, "events in the log of TestRead_FewRowsAreReadHoweverManyThereAre")
	storedEvents = flag.Int("stored-events", 20_000, "stored events in it")
)

// planNode is a node of EXPLAIN's JSON.
type planNode struct {
	Type    string     `json:"Node Type"`
	Rows    float64    `json:"Actual Rows"`
	Loops   float64    `json:"Actual Loops"`
	Removed float64    `json:"Rows Removed by Filter"`
	Plans   []planNode `json:"Plans"`
}

// read is how many rows its scans have read.
func (n planNode) read() (rows float64) {
	if strings.Contains(n.Type, "Scan") && len(n.Plans) == 0 {
		rows = (n.Rows + n.Removed) * n.Loops
	}
	for _, child := range n.Plans {
		rows += child.read()
	}
	return rows
}

// fill writes rows 1 to n, so many at a time. $1 and $2 are the first and the last, $3 is n.
func fill(t *testing.T, db *pgtest.DB, n int, insert string) {
	t.Helper()
	const atOnce = 250_000
	for first := 1; first <= n; first += atOnce {
		pgtest.Exec(t, db.Pool, insert, first, min(first+atOnce-1, n), n)
	}
}

// Read reads a bounded number of rows. The log has a backlog in one lane and a half-read window of one large transaction in
// another; stored events are those of one consumer on many keys and of another on one key. The command of docs/project/performance.md
// gives it the sizes of an outage, and logs how long each statement takes.
func TestRead_FewRowsAreReadHoweverManyThereAre(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	db := migrated.New(t)
	fill(t, db, *logEvents/2, `insert into holdfast.event_0 (xid, lane, id, type, topic, key, time)
		select (1000 + n / 10)::text::xid8, n % 7, n::text, 't', 'orders', (n % 5000)::text, now() - interval '2 hours' from generate_series($1::integer, $2::integer) n where $3 > 0`)
	fill(t, db, *logEvents/2, `insert into holdfast.event_1 (xid, lane, id, type, topic, key, time)
		select '900', 7, n::text, 't', 'orders', (n % 5000)::text, now() - interval '3 hours' from generate_series($1::integer, $2::integer) n where $3 > 0`)
	fill(t, db, *storedEvents/2, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at, errors, payload)
		select 'billing', 'orders', 'k' || n % ($3 / 10), n, 's', n::text, 't' || n % 50, now(), '', case when n <= $3 / 10 then now() - interval '1 hour' else 'infinity' end,
		       now() - interval '1 hour', '{boom}', convert_to(repeat('x', 300), 'UTF8') from generate_series($1::integer, $2::integer) n`)
	fill(t, db, *storedEvents/2, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at)
		select 'mail', 'orders', 'one', n, 's', n::text, 't', now(), '', case when n = 1 then now() + interval '1 minute' else 'infinity' end, now() - interval '1 hour'
		  from generate_series($1::integer, $2::integer) n where $3 > 0`)
	fill(t, db, *storedEvents, `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time, partition)
		select n % 8, 'orders', 'k' || n % 5000, n, case when n % 3 = 0 then 'topic' when n % 3 = 1 then 'record' else 'partition' end, now(), now() - interval '1 hour', n::text, '', 't', now(),
		       case when n % 3 = 2 then n % 12 end from generate_series($1::integer, $2::integer) n where $3 > 0`)
	fill(t, db, *storedEvents/2, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash, lane)
		select case n % 2 when 0 then 'relay' else 'inbox' end, case n % 2 when 0 then '' else 'billing' end, 'r', n::text, '', 't', 'orders', 'k', now(), '', n % 8
		  from generate_series($1::integer, $2::integer) n where $3 > 0`)
	for _, sql := range []string{
		"insert into holdfast.consumer_type (consumer, type, node, seen_until, needs) select 'billing', 't' || n, 'n', now() + interval '1 hour', case when n = 7 then '{stripe}' else '{}' end::text[] from generate_series(0, 49) n",
		"insert into holdfast.dependency (consumer, name, away) values ('billing', 'stripe', true), ('mail', 'smtp', true)",
		"update holdfast.lane set owner = 'r', lease_until = now() + interval '1 hour', done = '800:800:', upto = '999:999:', pos = (select last_value - 10 from holdfast.event_seq) where lane = 7",
		"update holdfast.lane set owner = 'r', lease_until = now() + interval '1 hour', done = '1000:1010:1003,1005' where lane < 6",
		"update holdfast.lane set owner = 'r', lease_until = now() + interval '1 hour', done = '900000000:900000000:' where lane = 6",
		"analyze holdfast.event_0", "analyze holdfast.event_1", "analyze holdfast.stored", "analyze holdfast.parked", "analyze holdfast.letter", "analyze holdfast.lane",
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	var asked []string
	for _, q := range []struct {
		sql  string
		args string // literals
		most float64
	}{
		{readLanes, "100", 2_500},
		{readHeld, "100, 10", 2_500},
		{readLongWaiting, "600, 100", 2_500},
		{readLetters, "1000", 2_100},
		{readStored, "1000", 8_100}, // 1,000 of each of two consumers, and three looks at these
		{readOverdue, "20, 20", 3_500},
		{countHeld, "50", 2_500},
		{readOwners, "", 100},
		{readProgress, "", 100},
		{readNames, "500", 100},
		{nodes.Rows, "120000000, 60000000", 100},
		{readBlocked, "100, 200", 2_500},
		{readSegments, "", 100},
		{readSizes, "", 100},
		{readSkipped, "", 100},
		{backfill.Rows, "", 100},
		{readDependencies, "100", 2_500}, // 100 heads of the type that needs it, and what the view looks at for each
		{readPauses, "", 100},
		{readPositions, "1000", 100},
		{readRelays, "", 100},
		{readBehind, "", 1_000},
	} {
		asked = append(asked, q.sql)
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			var text string
			began := time.Now()
			if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				prepared, execute := "prepare asked as "+sqlschema.In("holdfast", q.sql), "explain (analyze, format json) execute asked"
				if q.args != "" {
					execute += " (" + q.args + ")"
				}
				for _, sql := range []string{settings, "set local plan_cache_mode = " + mode, prepared} {
					if _, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
						return err
					}
				}
				defer func() { _, _ = tx.Exec(t.Context(), "deallocate asked") }()
				return tx.QueryRow(t.Context(), execute, pgx.QueryExecModeSimpleProtocol).Scan(&text)
			}); err != nil {
				t.Fatalf("%s: %v", q.sql, err)
			}
			var plans []struct{ Plan planNode }
			if err := json.Unmarshal([]byte(text), &plans); err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(strings.TrimPrefix(q.sql, "-- "), "\n")
			t.Logf("%s, %s: %.0f rows, %v", name, mode, plans[0].Plan.read(), time.Since(began).Round(time.Millisecond))
			if rows := plans[0].Plan.read(); rows > q.most {
				t.Errorf("%s, %s, reads %.0f rows, at most %.0f are allowed:\n%s", name, mode, rows, q.most, text)
			}
		}
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	pgtest.Exec(t, tx, settings)
	began := time.Now()
	limits := Limits{Unpublished: time.Minute, Waiting: time.Minute}
	s := State{Schema: "holdfast"}
	for _, p := range parts {
		at := time.Now()
		if err := p.read(t.Context(), Reader{tx, "holdfast"}, &s, Options{Schema: "holdfast", Limits: limits}); err != nil {
			t.Fatalf("%s: %v", p.name, err)
		}
		t.Logf("%s: %v", p.name, time.Since(at).Round(time.Millisecond))
	}
	t.Logf("all: %v", time.Since(began).Round(time.Millisecond))
	needs := fmt.Sprint(s.Needs(limits))
	for _, want := range []string{"lanes 0 to 5, 7 have events that are not published, the oldest of them for 3h", "consumer billing has ", "consumer mail has "} {
		if !strings.Contains(needs, want) {
			t.Errorf("no need says %q: %q", want, needs)
		}
	}
	plantest.EveryStatement(t, asked, map[string]string{
		"state.settings": "it reads no table", "state.history": "it reads tables of one row", "state.written": "it reads Postgres's own statistics",
		"state.log_holders": "it reads Postgres's own table of locks", "state.lane_holders": "it reads Postgres's own table of locks",
	})
}

// The rows that were written last have waited longest: they came from elsewhere, or from a queue that was moved.
func TestRead_TheOldestIsFoundBeyondWhatIsCounted(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time)
		select n % 8, 'orders', 'k', n, case when n % 2 = 0 then 'record' else 'topic' end, now(), now() - n * interval '1 hour', n::text, '', 't', now() from generate_series(1, 100) n`)
	pgtest.Exec(t, db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, first_at)
		select case when n % 10 = 0 then 'mail' else 'billing' end, 'orders', n::text, n, 's', n::text, case when n % 2 = 0 then 't' else 'u' end, now(), '', now() - n * interval '1 hour' from generate_series(1, 100) n`)
	pgtest.Exec(t, db, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 't', 'n', now() + interval '1 hour'), ('billing', 'u', 'n', now() - interval '1 hour')")
	const most = 7
	r := Reader{db.Pool, "holdfast"}
	lanes, err := r.Lanes(t.Context())
	if err != nil || len(lanes) != 8 || lanes[4].OldestWaiting/3600 != 100 || lanes[4].Waiting != 13 {
		t.Errorf("%+v, %v", lanes, err)
	}
	stored, err := r.Stored(t.Context(), most)
	if err != nil || len(stored) != 2 {
		t.Fatalf("%+v, %v", stored, err)
	}
	for i, want := range []Stored{{"billing", most, most, 99, 4}, {"mail", most, most, 100, most}} { // of the oldest: 99, 98, 97, 96, 95, 94, 93
		of := stored[i]
		if of.Oldest = float64(int(of.Oldest / 3600)); of != want {
			t.Errorf("%+v: want %+v", of, want)
		}
	}
}

func TestRead_TopicsAndPartitionsThatTakeNothingAreCountedOverAllLanes(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	r := Reader{db.Pool, "holdfast"}
	if got, err := r.HeldPlaces(t.Context()); err != nil || got != (HeldPlaces{}) {
		t.Errorf("of nothing: %+v, %v", got, err)
	}
	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, partition)
		select n % 8, 'topic ' || n % 30, 'k', n, case when n % 3 = 0 then 'topic' else 'partition' end, 'infinity', n::text, '', 't', now(), case when n % 3 > 0 then n % 4 end from generate_series(1, 2000) n`)
	topics := pgtest.Count(t, db, "select count(distinct topic) from holdfast.parked where partition is null")
	partitions := pgtest.Count(t, db, "select count(distinct (topic, partition)) from holdfast.parked where partition is not null")
	if got, err := r.HeldPlaces(t.Context()); err != nil || int64(got.Topics) != topics || int64(got.Partitions) != partitions || topics != 10 {
		t.Errorf("%+v, %v: want %d and %d", got, err, topics, partitions)
	}
	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) select n % 8, 'many ' || n, 'k', n, 'topic', 'infinity', n::text, '', 't', now() from generate_series(3001, 5000) n`)
	if got, err := r.HeldPlaces(t.Context()); err != nil || got.Topics+got.Partitions != MostHeld {
		t.Errorf("of many: %+v, %v", got, err)
	}
	if held, err := r.Held(t.Context()); err != nil || len(held) != 8*MostSpots {
		t.Errorf("of many %d are listed, want %d of each lane: %v", len(held), MostSpots, err)
	}
}

// Kafka that does not answer costs the lag, and nothing else.
func TestRead_TheLagIsNotKnownWhileKafkaHangs(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 7), ('billing', 'orders', 1, 7), ('mail', 'orders', 0, 3)")
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Read(t.Context(), db.Pool, Options{Schema: "holdfast", Ends: func(within context.Context, of []source.TopicPartition) (map[source.TopicPartition]int64, error) {
		if open := pgtest.Count(t, db, "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'"); open > 0 {
			t.Error("Kafka is asked in a transaction")
		}
		if deadline, set := within.Deadline(); !set || time.Until(deadline) > endsWithin {
			t.Error("Kafka may take for ever")
		}
		cancel()
		return nil, ctx.Err()
	}})
	if err != nil || s.NoEnds == nil || len(s.Positions) != 3 || s.Positions[0].Known || s.Positions[0].Lag != -1 || len(s.Sizes) == 0 {
		t.Errorf("%+v, %v", s, err)
	}
	s, err = Read(t.Context(), db.Pool, Options{Schema: "holdfast", Ends: func(_ context.Context, of []source.TopicPartition) (map[source.TopicPartition]int64, error) {
		if len(of) != 2 {
			t.Errorf("asked for %v", of)
		}
		return map[source.TopicPartition]int64{{Topic: "orders", Partition: 0}: 5}, nil
	}})
	if err != nil || s.NoEnds != nil || !s.Positions[0].Known || s.Positions[0].Lag != -2 || s.Positions[1].Known || s.Positions[2].Lag != 2 {
		t.Errorf("%+v, %v", s.Positions, err)
	}
}

// The look before is that of --watch, or the first of two.
func TestRead_ALaneThatItsOwnerClaimsAgainIsNoticed(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, "update holdfast.lane set owner = 'twin', epoch = 8, lease_until = now() + interval '1 hour'")
	named := func(o Options) string {
		t.Helper()
		o.Schema = "holdfast"
		s, err := Read(t.Context(), db.Pool, o)
		if err != nil || len(s.After) != 8 {
			t.Fatalf("%+v, %v", s.After, err)
		}
		relay, lanes := SameName(s.Before, s.After)
		return fmt.Sprint(relay, lanes)
	}
	before := Owners{2: {"twin", 7}, 1: {"twin", 7}, 3: {"twin", 8}, 4: {"other", 7}}
	if got := named(Options{Before: before}); got != "twin[1 2]" {
		t.Errorf("after the look before: %s", got)
	}
	if got := named(Options{}); got != "[]" {
		t.Errorf("without a look before: %s", got)
	}
	if got := named(Options{Pause: time.Hour}); got != "[]" { // no relay runs
		t.Errorf("without a relay: %s", got)
	}
	pgtest.Exec(t, db, "insert into holdfast.relay (name, seen_until) values ('twin', now() + interval '1 hour')")
	if got := named(Options{Pause: time.Millisecond}); got != "[]" {
		t.Errorf("of one relay: %s", got)
	}
}

// A reader's rights are enough to read everything.
func TestRead_AReaderMayReadTheState(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	user, _ := roletest.Login(t, db, "", roletest.Make(t, db)+"_reader")
	s, err := Read(t.Context(), user, Options{Schema: "holdfast", Limits: DefaultLimits})
	if err != nil || len(s.Lanes) != 8 || len(s.Needs(DefaultLimits)) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := (Reader{user, "holdfast"}).Written(t.Context()); err != nil {
		t.Error(err)
	}
}
