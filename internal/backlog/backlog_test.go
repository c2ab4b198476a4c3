package backlog

import (
	"math"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A window of which the lane has published some: only what is left of it is unread. Of a long one, whose first 20 events are published, it
// is not known without reading it, so it counts as unread.
func TestBacklog_WhatALaneHasPublishedOfItsWindowIsNotUnread(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for _, c := range []struct {
		name           string
		events, read   int // of one transaction in the window, and how many of them are published
		later, flying  bool
		lanes, minutes int
	}{
		{"nothing is read", 3, 0, false, false, 1, 3},
		{"some is read", 3, 2, false, false, 1, 1},
		{"all is read", 3, 3, false, false, 0, 0},
		{"all is read, and more came", 3, 3, true, false, 1, 0},
		{"nineteen of nineteen", 19, 19, false, false, 0, 0},
		{"twenty-five of thirty", 30, 25, false, false, 1, 11},
		{"a long window to its end", 30, 30, false, false, 1, 11},
		{"nothing is read of what was in flight", 3, 0, false, true, 1, 3},
		{"some is read of what was in flight", 3, 2, false, true, 1, 1},
		{"all is read of what was in flight", 3, 3, false, true, 0, 0},
		{"all is read of a long one that was in flight", 30, 30, false, true, 1, 11},
	} {
		pgtest.Exec(t, db, "truncate holdfast.event_0")
		pgtest.Exec(t, db, `insert into holdfast.event_0 (xid, lane, id, type, topic, key, time)
			select '1000', 3, n::text, 't', 'orders', '', now() - ($1::integer - n + 1) * interval '1 minute' from generate_series(1, $1::integer) n`, c.events)
		done := "900:900:"
		if c.flying {
			done = "1000:1001:1000"
		}
		pgtest.Exec(t, db, `update holdfast.lane set done = $2::text::pg_snapshot, upto = '1001:1001:',
			pos = coalesce((select max(seq) from (select seq from holdfast.event_0 order by seq limit $1::integer) e), 0) where lane = 3`, c.read, done)
		if c.later {
			pgtest.Exec(t, db, `insert into holdfast.event_0 (xid, lane, id, type, topic, key, time) values ('1002', 3, 'later', 't', 'orders', '', now())`)
		}
		b, err := Read(t.Context(), db.Pool, "holdfast", 1)
		if err != nil || b.Lanes != c.lanes || int(b.Oldest+1)/60 != c.minutes {
			t.Errorf("%s: %d lanes, the oldest for %.0f min, %v; want %d and %d", c.name, b.Lanes, b.Oldest/60, err, c.lanes, c.minutes)
		}
	}
}

// The rows that were written last have waited longest: they came from elsewhere, or from a queue that was moved.
func TestBacklog_TheOldestIsFoundBeyondWhatIsCounted(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	if b, err := Read(t.Context(), db.Pool, "holdfast", math.MaxInt64); err != nil || b != (Sum{}) {
		t.Errorf("of nothing: %+v, %v", b, err)
	}
	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time)
		select n % 8, 'orders', 'k', n, case when n % 2 = 0 then 'record' else 'topic' end, now(), now() - n * interval '1 hour', n::text, '', 't', now() from generate_series(1, 100) n`)
	pgtest.Exec(t, db, `insert into holdfast.scheduled (lane, due_at, id, type, topic, time) values (3, now() - interval '1 minute', 'd', 't', 'orders', now()), (4, now() + interval '1 minute', 'l', 't', 'orders', now())`)
	for _, most := range []int64{7, math.MaxInt64} {
		if b, err := Read(t.Context(), db.Pool, "holdfast", most); err != nil || b.Waiting != int(min(most, 100)) || int(b.OldestWaiting/3600) != 100 || b.Scheduled != 1 {
			t.Errorf("%+v, %v: want %d, the oldest of 100 hours", b, err, min(most, 100))
		}
	}
}

// Of much that is unread, or due in one lane, little is read.
func TestBacklog_LittleIsReadOfALargeBacklog(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		`insert into holdfast.event_0 (xid, lane, id, type, topic, key, time) select (12000 + n / 100)::text::xid8, n % 8, n::text, 't', 'orders', (n % 2000)::text, now() from generate_series(1, 20000) n`,
		`insert into holdfast.event_1 (xid, lane, id, type, topic, key, time) select '12003', 3, n::text, 't', 'orders', '', now() from generate_series(1, 20000) n`,
		`insert into holdfast.scheduled (lane, due_at, id, type, topic, time) select 3, now() - interval '1 minute', n::text, 't', 'orders', now() from generate_series(1, 20000) n`,
		"update holdfast.lane set done = '12000:12010:12003,12005', upto = '12100:12100:', pos = 1", "analyze holdfast.event_0", "analyze holdfast.event_1", "analyze holdfast.scheduled",
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	for _, plan := range plantest.Of(t, db.Pool, read, "1000") { // which counts what waits in relays
		plan.Uses("event_0_lane_xid_seq", "event_1_lane_xid_seq", "event_2_lane_xid_seq", "event_3_lane_xid_seq", "scheduled_pkey")
		plan.NeverReadsAllOf("event_[0-3]", "scheduled")
	}
}

func TestBacklog_ARelayAndAReaderMayReadTheBacklog(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	prefix := roletest.Make(t, db)
	for _, role := range []string{"relay", "operator", "reader"} {
		plantest.Allowed(t, db.Pool, prefix+"_"+role, read, "1")
	}
	plantest.EveryStatement(t, []string{read}, map[string]string{})
}
