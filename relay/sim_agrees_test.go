package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	hash "github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// side is one of two databases on which the same history runs. A cursor is in the side's own words: transaction ids
// differ, and only what a statement answers about events is compared.
type side struct {
	name    string
	db      database
	begin   func(t *testing.T) writerTx
	expire  func(t *testing.T, lane int)
	due     func(t *testing.T)
	refill  func(t *testing.T) // the token of another incarnation
	pause   func(t *testing.T, topics []string)
	leases  func(t *testing.T) []string
	relays  [2]*Relay
	cursors map[string]cursor // of a relay's lane
	pages   map[string]page   // the last one of each
	open    map[string]writerTx
}

// writerTx is a writer's transaction on a side.
type writerTx interface {
	draw(t *testing.T)
	append(t *testing.T, id, topic, key string)
	end(t *testing.T, how string)
}

type fakeWriter struct {
	db    *simdb.DB
	tx    *simdb.Tx
	lanes int
}

func (w fakeWriter) draw(*testing.T) { w.tx.Draw() }

func (w fakeWriter) append(_ *testing.T, id, topic, key string) {
	w.tx.Append(w.db.Segment(), simdb.Event{ID: id, Topic: topic, Key: key, Lane: hash.Of(key, id, w.lanes), Payload: make([]byte, 50)})
}

func (w fakeWriter) end(t *testing.T, how string) {
	switch how {
	case "commit", "commit prepared":
		if err := w.tx.Commit(); err != nil {
			t.Fatal(err)
		}
	case "prepare":
		w.tx.Prepare()
	default:
		w.tx.Rollback()
	}
}

type pgWriter struct {
	conn *pgxpool.Conn
	name string
}

func (w pgWriter) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := w.conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (w pgWriter) draw(t *testing.T) { w.exec(t, "select pg_current_xact_id()") }

func (w pgWriter) append(t *testing.T, id, topic, key string) {
	// A transaction that holds the lock of a segment may not hear of a rotation, and go on writing there. Postgres hears of it with
	// any lock that is new to it.
	w.exec(t, "select pg_relation_size('holdfast.installation')")
	w.exec(t, "select holdfast.append(array[$1], array[''], array['t'], array[$2], array[$3], null, null, array[$4::bytea], null, null)", id, topic, key, make([]byte, 50))
	// The function keeps a cut by chance. Where a window may be cut depends on the transactions of others on the server, so
	// there are none here. Only the current segment is touched, so that no other one is locked.
	var current int
	if err := w.conn.QueryRow(context.Background(), "select current from holdfast.segments").Scan(&current); err != nil {
		t.Fatal(err)
	}
	w.exec(t, "update holdfast.event_"+fmt.Sprint(current)+" set snap = null where id = $1", id)
}

func (w pgWriter) end(t *testing.T, how string) {
	switch how {
	case "prepare":
		w.exec(t, "prepare transaction '"+w.name+"'")
	case "commit prepared", "rollback prepared":
		w.exec(t, how+" '"+w.name+"'")
	default:
		w.exec(t, how)
	}
	if how != "prepare" {
		w.conn.Release()
	}
}

func TestSimAgrees_TheFakeAndPostgresAgree(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	const lanes = 2
	db := migrated.Lanes(t, lanes)
	for segment := range 4 { // The fake has nobody whose lock on a segment keeps it from being reclaimed.
		pgtest.Exec(t, db.Pool, fmt.Sprintf("alter table holdfast.event_%d set (autovacuum_enabled = off)", segment))
	}
	pool := db.PoolOf(t, 12)
	var prepares bool
	if err := pool.QueryRow(t.Context(), "select current_setting('max_prepared_transactions')::int > 0").Scan(&prepares); err != nil {
		t.Fatal(err)
	}
	seed := seed.New(t)
	if *simSeed != 0 {
		seed = *simSeed
	}
	t.Logf("seed %d: to repeat it, go test ./relay -run TestSimAgrees_TheFakeAndPostgresAgree -sim.seed %d; prepared transactions: %v", seed, seed, prepares)
	rng := rand.New(rand.NewPCG(seed, 3))
	fake := simdb.New(lanes, time.Now, rng)

	began, asked := time.Now(), map[string]bool{}
	sides := []*side{
		{name: "fake", db: &simdb.Conn{DB: fake, Hooks: simdb.Hooks{Before: func(name string) error { asked[name] = true; return nil }}}, begin: func(*testing.T) writerTx { return fakeWriter{fake, fake.Begin(), lanes} },
			expire: func(_ *testing.T, lane int) { fake.Expire(lane) }, due: func(*testing.T) { fake.Due() }, refill: func(*testing.T) { fake.Reincarnate() },
			pause: func(_ *testing.T, topics []string) { fake.Paused = topics },
			leases: func(*testing.T) (all []string) {
				for _, l := range fake.Leases() {
					all = append(all, leaseOf(l.Lane, l.Topic, l.Key, l.Place))
				}
				return all
			}},
		{name: "postgres", db: pool, begin: func(t *testing.T) writerTx {
			conn, err := pool.Acquire(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			w := pgWriter{conn, fmt.Sprint("fake ", rng.Uint64())}
			w.exec(t, "begin")
			return w
		},
			expire: func(t *testing.T, lane int) {
				pgtest.Exec(t, pool, "update holdfast.lane set lease_until = now() - interval '1 s' where lane = $1", lane)
			},
			due: func(t *testing.T) {
				pgtest.Exec(t, pool, "update holdfast.parked set next_at = now() - interval '1 s' where next_at < 'infinity'")
			},
			refill: func(t *testing.T) {
				pgtest.Exec(t, pool, "update holdfast.incarnation set token = gen_random_uuid()")
			},
			pause: func(t *testing.T, topics []string) {
				pgtest.Exec(t, pool, "delete from holdfast.pause")
				pgtest.Exec(t, pool, "insert into holdfast.pause (consumer, topic, by, reason) select '', t, 'ann', '' from unnest($1::text[]) t", topics)
			},
			leases: func(t *testing.T) (all []string) {
				rows, _ := pool.Query(t.Context(), "select lane, topic, key, place from holdfast.parked_lease") // ForEachRow returns its error.
				var lane int
				var topic, key string
				var place int64
				if _, err := pgx.ForEachRow(rows, []any{&lane, &topic, &key, &place}, func() error { all = append(all, leaseOf(lane, topic, key, place)); return nil }); err != nil {
					t.Fatal(err)
				}
				return all
			}},
	}
	for _, s := range sides {
		s.cursors, s.pages, s.open = map[string]cursor{}, map[string]page{}, map[string]writerTx{}
		for i := range s.relays {
			// What is tried again is due only where a step of the history says so: each side asks its own clock, one after the other.
			later := retry.Policy{Base: time.Hour, Cap: time.Hour}
			c := Config{Name: fmt.Sprint("relay ", i), Lease: time.Hour, BatchSize: 3, HoldKey: i == 0, Retry: later, Logger: noLog}.withDefaults()
			r := newRelay(s.db, nil, c, simStatements)
			r.env.chance = func() float64 { return 0.5 }
			r.bounds.pageBytes, r.bounds.listed = 100, 3
			r.env.now = func() time.Time { return began }
			r.env.start = func(_ context.Context, l *lane) { l.lost = func(error) {}; r.enter(l) }
			s.relays[i] = r
		}
	}
	h := &comparison{t: t, rng: rng, sides: sides, prepares: prepares, lanes: lanes}
	t.Cleanup(func() { // before the pool is closed, which waits for connections
		for _, w := range h.writers {
			how := "rollback"
			if h.prepared[w] {
				how = "rollback prepared"
			}
			h.each(func(s *side) { s.open[w].end(t, how) })
		}
	})
	// What the history has no step for, or comes to by chance only.
	beside := map[string]string{
		"planned_page": "a long window", "sized_planned_page": "a long window", "transactions": "a long window", "places": "a long window", "cuts": "a backlog", "holders": "whose locks are Postgres's own", "segments": "the sizes are Postgres's own",
		"incarnation": "a crash", "expire_written_once": "dedupe keys", "move_scheduled": "scheduled events", "name_scheduled": "scheduled events", "dead_letter_scheduled": "scheduled events", "close_letters": "replays", "resume_queues": "letters that a person has dealt with",
	}
	missing := func() (names []string) {
		for _, kind := range []string{"page", "quiet_page", "next_row", "dead_letter_events", "claim", "save", "late save", "park", "due", "list_due", "due_of", "outcomes", "reclaim", "probe", "probe_held", "resume_held", "release", "heartbeat", "paused"} {
			if h.kinds[kind] == 0 {
				names = append(names, "to compare a "+kind)
			}
		}
		for _, name := range simdb.Statements() {
			if beside[name] == "" && !asked[name] {
				names = append(names, "to ask "+name)
			}
		}
		return names
	}
	for h.steps = 0; h.steps < 600 || h.steps < 6000 && len(missing()) > 0; h.steps++ {
		h.step()
	}
	t.Logf("%d answers compared in %d steps: %v", h.compared, h.steps, h.kinds)
	for _, what := range missing() {
		t.Errorf("the history never came %s", what)
	}
}

// comparison runs one history on two sides.
type comparison struct {
	t        *testing.T
	rng      *rand.Rand
	sides    []*side
	prepares bool
	lanes    int
	steps    int
	ids      int
	compared int
	kinds    map[string]int
	writers  []string        // open transactions
	prepared map[string]bool // of these
}

// both asks both sides and compares what they say.
func (co *comparison) both(kind string, ask func(s *side) any) any {
	co.t.Helper()
	a, b := ask(co.sides[0]), ask(co.sides[1])
	if diff := cmp.Diff(a, b); diff != "" {
		co.t.Fatalf("step %d, %s: the fake (-) and Postgres (+) disagree:\n%s", co.steps, kind, diff)
	}
	if co.kinds == nil {
		co.kinds = map[string]int{}
	}
	co.kinds[kind]++
	co.compared++
	return a
}

func (co *comparison) each(do func(s *side)) {
	for _, s := range co.sides {
		do(s)
	}
}

func (co *comparison) step() {
	relay := co.rng.IntN(2)
	number := co.rng.IntN(co.lanes)
	owned := func(s *side) *lane { return s.relays[relay].lanes[number] }
	name := fmt.Sprint(relay, "/", number)
	switch n := co.rng.IntN(26); n {
	case 0, 1, 2: // a writer begins, and perhaps draws its id
		if len(co.writers) < 4 {
			co.ids++
			w, early := fmt.Sprint("tx ", co.ids), co.rng.IntN(2) == 0
			co.writers = append(co.writers, w)
			co.each(func(s *side) {
				if s.open[w] = s.begin(co.t); early {
					s.open[w].draw(co.t)
				}
			})
		}
	case 3, 4, 5, 6: // it writes
		if len(co.writers) > 0 {
			w := co.writers[co.rng.IntN(len(co.writers))]
			if co.prepared[w] {
				return
			}
			co.ids++
			id, key, topic := fmt.Sprint("e", co.ids), []string{"", "a", "b", "c/1"}[co.rng.IntN(4)], []string{"orders", "other"}[co.rng.IntN(2)]
			co.each(func(s *side) { s.open[w].append(co.t, id, topic, key) })
		}
	case 7, 8: // it ends
		if len(co.writers) > 0 {
			i := co.rng.IntN(len(co.writers))
			w := co.writers[i]
			how := []string{"commit", "commit", "commit", "rollback", "prepare"}[co.rng.IntN(5)]
			switch {
			case co.prepared[w] && how != "rollback":
				how = "commit prepared"
			case co.prepared[w]:
				how = "rollback prepared"
			case how == "prepare" && co.prepares:
				if co.prepared == nil {
					co.prepared = map[string]bool{}
				}
				co.prepared[w] = true
				co.each(func(s *side) { s.open[w].draw(co.t); s.open[w].end(co.t, how) })
				return
			case how == "prepare":
				how = "commit"
			}
			co.writers = slices.Delete(co.writers, i, i+1)
			co.each(func(s *side) { s.open[w].end(co.t, how); delete(s.open, w) })
		}
	case 9: // claims, of what is free and what is not
		if co.rng.IntN(2) == 0 {
			co.each(func(s *side) { s.expire(co.t, number) })
		}
		co.both("claim", func(s *side) any {
			r := s.relays[relay]
			for n, l := range r.lanes { // whatever is in the memory of both is lost to the other by now
				if co.lost(s, r, l) {
					delete(r.lanes, n)
				}
			}
			if err := r.claim(co.t.Context(), co.t.Context(), co.t.Context(), co.token(s), co.lanes, numbersOf(r), co.lanes); err != nil {
				return err.Error()
			}
			var got []string
			for _, l := range r.owned() {
				got = append(got, fmt.Sprint(l.number, " epoch ", l.epoch, " pos ", l.cursor.pos, " published ", l.published.Load(), " in a window: ", l.cursor.upto != "", " parked ", l.queues.parked, l.queues.held, len(l.holds), len(l.dormantQueues)))
			}
			return got
		})
	case 10, 11, 12: // a page
		if owned(co.sides[0]) == nil {
			return
		}
		co.both("page", func(s *side) any {
			l := owned(s)
			p, err := l.reader.next(co.t.Context())
			if err != nil {
				return reasonOf(err)
			}
			s.cursors[name], s.pages[name] = p.after, p
			var ids []string
			for _, rec := range p.events {
				ids = append(ids, rec.ID+" "+rec.Topic+" "+rec.Key)
			}
			return []any{ids, p.last, p.after.upto == ""}
		})
		noisy := [][]string{{"c"}, {""}, {"", "c"}, {"d"}}[co.rng.IntN(4)]
		co.both("quiet_page", func(s *side) any { // from where the first reader stands
			r, at := &owned(s).reader, s.cursors[name]
			r.fair = &overtaking{separator: "/", noisy: noisy, from: at, at: cursor{done: at.done}}
			defer func() { r.fair = nil }()
			if at.done == "" {
				return nil
			}
			events, upto, full, err := r.readQuiet(co.t.Context())
			if err != nil {
				return reasonOf(err)
			}
			var ids []string
			for _, e := range events {
				ids = append(ids, e.ID+" "+e.Topic+" "+e.Key)
			}
			return []any{ids, upto == "", full}
		})
		co.both("next_row", func(s *side) any {
			l, c := owned(s), s.cursors[name]
			if c.done == "" {
				c = l.cursor
			}
			var until *string
			if c.upto != "" {
				until = &c.upto
			}
			var upto, segment, xid string
			var e logEvent
			err := s.db.QueryRow(co.t.Context(), simStatements.In(readNext), number, c.done, until, c.pos, l.token).Scan(&upto, &segment, &xid, &e.seq, &e.ID, &e.Type, &e.Topic, &e.Key)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return err.Error()
			}
			return []any{segment, e.ID, e.Type, e.Topic, e.Key}
		})
	case 24: // events of a page become letters
		if owned(co.sides[0]) == nil || len(co.sides[0].pages[name].events) == 0 {
			return
		}
		every := 1 + co.rng.IntN(2)
		co.both("dead_letter_events", func(s *side) any {
			l, p := owned(s), s.pages[name]
			var leave []*pending
			for i := 0; i < len(p.events); i += every {
				e := p.events[i]
				e.malformed = "scripted"
				leave = append(leave, &pending{event: &e, item: item{queue: queue{e.Topic, e.Key}}, page: &pageProgress{page: p}, disposition: malformed})
			}
			b := l.deadBatches(leave)[0]
			err := l.inTx(co.t.Context(), func(batch *pgx.Batch) { b.queue(l, batch) })
			buried := []string{}
			for _, p := range leave {
				if to, was := b.letters[p.event.seq]; was {
					buried = append(buried, fmt.Sprint(p.event.ID, " ", to.id > 0, " ", to.segment))
				}
			}
			return []any{buried, reasonOf(err)}
		})
		co.compareParked()
	case 13: // a save, of what was read
		if owned(co.sides[0]) == nil {
			return
		}
		co.both("save", func(s *side) any {
			l := owned(s)
			if c, read := s.cursors[name]; read {
				l.cursor = c
			}
			l.published.Add(int64(len(s.pages[name].events)))
			lost := false
			l.lost = func(error) { lost = true }
			if err := s.relays[relay].saver.save(co.t.Context(), []*lane{l}); err != nil {
				return err.Error()
			}
			return []any{lost, l.cursor.pos, l.cursor.upto == "", l.cursor.done == l.saved.done}
		})
	case 20: // a save that was given up arrives, in order or after others
		if owned(co.sides[0]) == nil {
			return
		}
		back := co.rng.Int64N(4)
		co.both("late save", func(s *side) any {
			l, saver := owned(s), s.relays[relay].saver
			if back == 0 {
				saver.next()
			}
			rows, err := s.db.Query(co.t.Context(), simStatements.In(saveLanes), l.r.c.Name, l.r.c.Lease, []int16{int16(number)}, []int64{l.epoch},
				[]*string{&l.cursor.done}, []*string{&l.cursor.upto}, []int64{l.cursor.pos}, l.token, saver.number.Load()-max(back-1, 0), []int64{l.published.Load()})
			if err != nil {
				return err.Error()
			}
			saved := 0
			for rows.Next() {
				saved++
			}
			return []any{saved, rows.Err() == nil}
		})
	case 21: // a topic that was held answers again
		topic, partition := []string{"orders", "other"}[co.rng.IntN(2)], []int{wholeTopic, -1}[co.rng.IntN(2)]
		after := []int64{math.MinInt64, 0, co.rng.Int64N(30)}[co.rng.IntN(3)]
		co.both("probe_held", func(s *side) any {
			l := &lane{r: s.relays[relay], ownership: ownership{number: number}}
			rows, _ := l.r.pool.Query(co.t.Context(), simStatements.In(readProbe), number, topic, partition, after) // CollectRows returns its error.
			got, err := collectParked(rows)
			if err != nil {
				return err.Error()
			}
			var ids []string
			for _, p := range got {
				ids = append(ids, fmt.Sprint(p.ID, p.Topic, p.Key, p.why, p.attempts, p.letter))
			}
			return ids
		})
		heads := co.rng.IntN(2) == 0
		co.both("name_waiting", func(s *side) any {
			l := &lane{r: s.relays[relay], ownership: ownership{number: number}}
			return nameOf(l.nameRow(co.t.Context(), nameWaiting, number, topic, partition, &after, heads))
		})
		if owned(co.sides[0]) == nil {
			return
		}
		past := []*int64{nil, nil, &after}[co.rng.IntN(3)]
		most := []int{1, 2, 100}[co.rng.IntN(3)]
		co.both("resume_held", func(s *side) any {
			var n int
			err := owned(s).inTx(co.t.Context(), func(b *pgx.Batch) {
				b.Queue(simStatements.In(resumeHeld), number, topic, partition, most, past).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
			})
			return fmt.Sprint(n, reasonOf(err))
		})
		co.compareParked()
	case 22: // a lane is given back, or all of a relay
		leaves := co.rng.IntN(3) == 0
		co.both("release", func(s *side) any {
			r := s.relays[relay]
			if l := owned(s); l != nil {
				l.doubtful.Store(false)
				r.yield(co.t.Context(), l)
				delete(r.lanes, number)
			}
			if !leaves {
				return nil
			}
			clear(r.lanes)
			_, err := s.db.Exec(co.t.Context(), simStatements.In(leaveRelay), r.c.Name)
			return reasonOf(err)
		})
	case 23: // a sign of life, and how lanes are shared
		co.both("heartbeat", func(s *side) any {
			var relays, lanes, free int
			r := s.relays[relay]
			err := s.db.QueryRow(co.t.Context(), simStatements.In(heartbeatRelay), r.c.Name, r.c.Lease, numbersOf(r), "", time.Second).Scan(&relays, &lanes, &free)
			return []any{relays, lanes, free, err == nil}
		})
	case 25: // people pause and resume topics
		topics := [][]string{nil, {"orders"}, {"other"}, {"orders", "other"}}[co.rng.IntN(4)]
		co.each(func(s *side) { s.pause(co.t, topics) })
		co.both("paused", func(s *side) any {
			rows, _ := s.db.Query(co.t.Context(), simStatements.In(readPaused)) // CollectRows returns its error.
			paused, err := pgx.CollectRows(rows, pgx.RowTo[string])
			slices.Sort(paused)
			return []any{paused, reasonOf(err)}
		})
	case 14: // parking, with the cursor
		if owned(co.sides[0]) == nil {
			return
		}
		co.ids++
		var events []*logEvent
		var chosen []disposition
		for i := range 1 + co.rng.IntN(3) {
			topics, keys := []string{"orders", "other"}, []string{"", "a", "b"}
			rec := &logEvent{Event: holdfast.Event{ID: fmt.Sprint("p", co.ids, "/", i), Type: "t", Topic: topics[co.rng.IntN(2)], Key: keys[co.rng.IntN(3)], Time: time.Unix(0, 0)}}
			dispositions := []disposition{recordRefused, follows, partitionDown, topicHeld}
			if co.rng.IntN(3) == 0 {
				rec.letter = 1 + co.rng.Int64N(6)
				// A letter is of one topic and key: replays of one letter in two queues would have the same place.
				if rec.Topic, rec.Key = topics[rec.letter%2], keys[rec.letter%3]; rec.Key != "" {
					dispositions = append(dispositions, first, first)
				}
			}
			events, chosen = append(events, rec), append(chosen, dispositions[co.rng.IntN(len(dispositions))])
		}
		co.both("park", func(s *side) any {
			l := owned(s)
			c := l.cursor
			if read, known := s.cursors[name]; known {
				c = read
			}
			var leave []*pending
			for i, e := range events {
				p := &pending{event: e, item: item{queue: queue{e.Topic, e.Key}}}
				l.leave(p, chosen[i], errors.New("scripted"))
				leave = append(leave, p)
			}
			return reasonOf(l.park(co.t.Context(), leave, c))
		})
		co.compareParked()
	case 15, 16: // what is due, and what becomes of it
		if owned(co.sides[0]) == nil {
			return
		}
		co.each(func(s *side) { s.due(co.t) })
		shift, most, rows := co.rng.IntN(1000), 1+co.rng.IntN(8), map[string][]parkedEvent{}
		skip := rowKeys{topics: []string{}, keys: []string{}, places: []int64{}}
		if co.rng.IntN(4) == 0 { // a queue that is in memory
			skip = rowKeys{topics: []string{"orders"}, keys: []string{"a"}, places: []int64{0}}
		}
		co.both("due", func(s *side) any {
			l := owned(s)
			got, err := l.readLeased(co.t.Context(), s.relays[relay].sql.In(readDue), l.number, []string{}, 50, skip.topics, skip.keys, skip.places, most, 1<<20)
			if err != nil {
				return err.Error()
			}
			slices.SortFunc(got, func(a, b parkedEvent) int { return strings.Compare(a.ID, b.ID) }) // they fell due by two clocks
			rows[s.name] = got
			var ids []string
			for _, p := range got {
				ids = append(ids, fmt.Sprint(p.ID, p.Topic, p.Key, p.why, p.attempts, p.letter))
			}
			return ids
		})
		var heads [2]rowKeys
		co.both("list_due", func(s *side) any {
			var q queue
			var place int64
			var keys []rowKey
			err := s.relays[relay].readRows(co.t.Context(), simStatements.In(listDue), []any{number, []string{}, 50, skip.topics, skip.keys, skip.places}, []any{&q.topic, &q.key, &place}, func() {
				keys = append(keys, rowKey{q, place})
			})
			slices.SortFunc(keys, func(a, b rowKey) int { // they fell due by two clocks
				if by := strings.Compare(a.topic+"\x00"+a.key, b.topic+"\x00"+b.key); by != 0 {
					return by
				}
				return int(a.place - b.place)
			})
			var to rowKeys
			var all []string
			for _, key := range keys {
				to.addKey(key)
				all = append(all, fmt.Sprint(key.queue))
			}
			heads[slices.Index(co.sides, s)] = to
			return []any{all, reasonOf(err)}
		})
		co.both("due_of", func(s *side) any {
			l, of := owned(s), heads[slices.Index(co.sides, s)]
			got, err := l.readLeased(co.t.Context(), simStatements.In(readHeads), number, of.topics, of.keys, of.places, most, 1<<20)
			var all []string
			for i := range got {
				all = append(all, nameOf(l.pendingOf(&got[i]), nil))
			}
			for i := range of.topics {
				all = append(all, nameOf(l.nameRow(co.t.Context(), nameHead, number, of.topics[i], of.keys[i], of.places[i])))
			}
			for i := range rows[s.name] {
				if key := rows[s.name][i].rowKey(); shift%3 > 0 {
					l.leases.endOf(key)
				}
			}
			return []any{all, reasonOf(err)}
		})
		co.compareParked()
		co.both("outcomes", func(s *side) any {
			l, got := owned(s), rows[s.name]
			if len(got) == 0 {
				return "nothing"
			}
			slices.SortFunc(got, func(a, b parkedEvent) int { return int(a.place - b.place) })
			outcomes, answers := make([]outcome, len(got)), make([]answer, len(got))
			stuck := map[queue]bool{}
			for i := range got {
				q := queue{got[i].Topic, got[i].Key}
				outcomes[i] = []outcome{acknowledged, retryLater, dead, held}[(shift+len(got[i].ID)+int(got[i].ID[len(got[i].ID)-1]))%4]
				if q.ordered() && stuck[q] {
					outcomes[i] = untouched
				}
				stuck[q] = stuck[q] || outcomes[i] != acknowledged
				answers[i] = answer{fault: publish.FaultRecord, err: errors.New("scripted")}
			}
			events := make([]*pending, len(got))
			for i := range got {
				events[i] = l.pendingOf(&got[i])
				events[i].to = &destination{spot: spot{got[i].Topic, -1}}
				if outcomes[i] == held && shift%2 == 0 {
					answers[i].fault = publish.FaultTopic
				}
			}
			return reasonOf(l.writeOutcomes(co.t.Context(), events, answers, outcomes))
		})
		co.compareParked()
	case 17: // the poller's probe
		co.both("probe", func(s *side) any {
			l := owned(s)
			done := "1:1:"
			if l != nil {
				done = l.cursor.done
			}
			rows, err := s.db.Query(co.t.Context(), simStatements.In(probeLanes), []int16{int16(number)}, []*string{&done}, co.token(s))
			if err != nil {
				return err.Error()
			}
			got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
				var n int
				var unread, parked, scheduled bool
				var fresh *string
				err := row.Scan(&n, &unread, &parked, &scheduled, &fresh)
				return fmt.Sprint(n, unread, parked, scheduled), err
			})
			return []any{got, err == nil}
		})
	case 18: // the segments
		if co.rng.IntN(2) == 0 {
			to := co.rng.IntN(4)
			co.both("rotate", func(s *side) any {
				for from := range 4 {
					if from != to {
						if _, err := s.db.Exec(co.t.Context(), simStatements.In(rotateSegments), to, from); err != nil {
							return err.Error()
						}
					}
				}
				return to
			})
			return
		}
		segment := co.rng.IntN(4)
		co.both("reclaim", func(s *side) any {
			var result string
			if err := s.db.QueryRow(co.t.Context(), simStatements.In(reclaimSegment), segment, co.token(s), 20).Scan(&result); err != nil {
				return err.Error()
			}
			return result
		})
	case 19: // another incarnation
		if co.rng.IntN(6) > 0 {
			return
		}
		co.each(func(s *side) { s.refill(co.t) })
		co.both("incarnation", func(s *side) any {
			if l := owned(s); l != nil {
				return reasonOf(l.park(co.t.Context(), nil, l.cursor))
			}
			return nil
		})
	}
}

func (co *comparison) token(s *side) string {
	var got server
	if err := s.db.QueryRow(co.t.Context(), simStatements.In(readServer)).Scan(&got.token, &got.standby, &got.isolation, &got.identifier, &got.adopted, &got.born, &got.bornXmin, &got.doneXmax, &got.nowXmax, &got.version); err != nil {
		co.t.Fatal(err)
	}
	return got.token
}

func (co *comparison) lost(s *side, r *Relay, l *lane) bool {
	tx, err := s.db.BeginTx(co.t.Context(), pgx.TxOptions{})
	if err != nil {
		co.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(co.t.Context()) }()
	rows, err := tx.Query(co.t.Context(), simStatements.In(fenceLane), l.number, r.c.Name, l.epoch, l.token)
	if err != nil {
		co.t.Fatal(err)
	}
	defer rows.Close()
	return !rows.Next()
}

func numbersOf(r *Relay) []int16 {
	numbers := []int16{}
	for _, l := range r.owned() {
		numbers = append(numbers, int16(l.number))
	}
	return numbers
}

// nameOf is a parked row in words that both sides share.
func nameOf(p *pending, err error) string {
	if p == nil {
		return reasonOf(err)
	}
	return fmt.Sprint(p.event.ID, " ", p.event.Type, " ", p.item.queue, p.row.attempts, p.event.letter)
}

// leaseOf is a lease in words that both sides share: each counts the places of events without a key by itself.
func leaseOf(lane int, topic, key string, place int64) string {
	if topic != "" && key == "" {
		place = -1
	}
	return fmt.Sprint(lane, " ", topic, " ", key, " ", place)
}

// reasonOf is an error in words that both sides share.
func reasonOf(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, errLost):
		return "lost"
	case errors.Is(err, errCrashed):
		return "crashed"
	}
	return err.Error()
}

// compareParked compares the tables of parked events and letters.
func (co *comparison) compareParked() {
	co.t.Helper()
	co.both("leases", func(s *side) any {
		all := s.leases(co.t)
		slices.Sort(all)
		return all
	})
	co.both("parked", func(s *side) any {
		var all []string
		for lane := range co.lanes {
			for of, args := range map[string][]any{loadHeld: {lane}, loadHolds: {lane}, listQueues: {lane, 3, "orders", "a"},
				keylessGone: {lane, []string{"orders", "gone"}}} {
				sql := simStatements.In(of)
				rows, err := s.db.Query(co.t.Context(), sql, args...)
				if err != nil {
					return err.Error()
				}
				for rows.Next() {
					var topic, key string
					var n int64
					var dormant bool
					switch of {
					case keylessGone:
						err = rows.Scan(&topic)
					case loadHeld:
						err = rows.Scan(&topic, &key)
					case loadHolds:
						err = rows.Scan(&topic, &n)
					default:
						err = rows.Scan(&topic, &key, &dormant)
					}
					if err != nil {
						return err.Error()
					}
					all = append(all, fmt.Sprint(of[:20], lane, topic, " ", key, n, dormant))
				}
				rows.Close()
			}
		}
		slices.Sort(all)
		return all
	})
}
