package outbox_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

// rolledBack runs f in a transaction of which nothing stays, after some statements.
func rolledBack(t *testing.T, db *pgtest.DB, before string, f func(tx pgx.Tx)) {
	t.Helper()
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, before)
		f(tx)
	})
}

// textsOf are the rows of a query, of one text each, or the code and the message of its error.
func textsOf(t *testing.T, tx pgx.Tx, sql string, args ...any) string {
	t.Helper()
	rows, err := tx.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var text *string
		err := row.Scan(&text)
		if text == nil {
			return "null", err
		}
		return *text, err
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code + " " + refused.Message
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(texts, ", ")
}

// The queues of these tests have the lane 2, 3 or 4, or the consumer a, b or c, and the topic and the key a, b or c each. Ours is 3, b, b, or b, b, b; the
// others are like it in all but one or more of the three, below and above.
const (
	ofQueues     = `from %s o, unnest('{a,b,c}'::text[]) t, unnest('{a,b,c}'::text[]) k where (o, t, k) %s (%s, 'b', 'b')`
	relayLetter  = `insert into holdfast.letter (origin, lane, topic, key, holds, state, reason, event_id, source, type, time, hash) `
	inboxLetter  = `insert into holdfast.letter (origin, consumer, topic, key, place, holds, state, reason, event_id, source, type, time, hash) `
	letterValues = `'r', 'held', 's', 't', now(), '' `
)

var (
	otherLanes     = fmt.Sprintf(ofQueues, "generate_series(2, 4)", "<>", "3")
	ourLane        = fmt.Sprintf(ofQueues, "generate_series(2, 4)", "=", "3")
	otherConsumers = fmt.Sprintf(ofQueues, "unnest('{a,b,c}'::text[])", "<>", "'b'")
	ourConsumer    = fmt.Sprintf(ofQueues, "unnest('{a,b,c}'::text[])", "=", "'b'")
)

// What an event in a relay waits for is of its own lane, topic and key; and it is the head of its queue if nothing of that is before it.
func TestNeighbours_ARelaysEventWaitsForWhatIsOfItsQueue(t *testing.T) {
	t.Parallel()
	db := setup(t)
	parked := func(place int, queues string) string {
		return fmt.Sprintf(`insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) select o, t, k, %d, 'record', now(), 'other', 's', 't', now() %s;`, place, queues)
	}
	letter := func(holds bool, state, queues string) string {
		return relayLetter + fmt.Sprintf("select 'relay', o, t, k, %v, '%s', %s %s;", holds, state, letterValues, queues)
	}
	pause := func(consumer, topic, key string) string {
		return fmt.Sprintf("insert into holdfast.pause (consumer, topic, key, by, reason) values ('%s', '%s', '%s', 'ann', 'r');", consumer, topic, key)
	}
	const (
		dormant = "update holdfast.parked set next_at = 'infinity' where id = 'ours';"
		keyless = "update holdfast.parked set key = '' where id = 'ours';"
		replay  = "update holdfast.parked set letter = 1 where id = 'ours';"
	)
	for name, c := range map[string]struct{ before, want string }{
		"nothing":                                     {"select 1", "turn head"},
		"its topic is paused":                         {pause("", "b", ""), "paused head"},
		"other topics are paused":                     {pause("", "a", "") + pause("", "c", ""), "turn head"},
		"a consumer's key is paused":                  {pause("b", "b", "b"), "turn head"},
		"its partition takes nothing":                 {"update holdfast.parked set partition = 5 where id = 'ours'", "partition head"},
		"its topic takes nothing":                     {"update holdfast.parked set why = 'topic' where id = 'ours'", "topic head"},
		"one is before it":                            {parked(10, ourLane), "behind-event"},
		"one is behind it":                            {parked(30, ourLane), "turn head"},
		"others are in lower places elsewhere":        {parked(10, otherLanes), "turn head"},
		"one is before it, but it has no key":         {parked(10, ourLane) + "update holdfast.parked set key = ''", "turn head"},
		"a letter holds the key":                      {dormant + letter(true, "open", ourLane), "behind-letter head"},
		"a letter that is replayed holds the key":     {dormant + letter(true, "replaying", ourLane), "behind-letter head"},
		"a letter that is closed":                     {dormant + letter(true, "discarded", ourLane), "turn head"},
		"a letter that holds nothing":                 {dormant + letter(false, "open", ourLane), "turn head"},
		"letters hold other keys":                     {dormant + letter(true, "open", otherLanes), "turn head"},
		"it is dormant and nothing holds it":          {dormant, "turn head"},
		"a letter holds the key, it is due":           {letter(true, "open", ourLane), "turn head"},
		"a letter holds the key of a replay":          {dormant + replay + letter(true, "open", ourLane), "turn head"},
		"a letter without a key holds no other":       {dormant + keyless + letter(true, "open", ourLane) + "update holdfast.letter set key = ''", "turn head"},
		"it waits for its next attempt":               {"update holdfast.parked set next_at = now() + interval '1 minute' where id = 'ours'", "failed head"},
		"its attempt is due just now":                 {"update holdfast.parked set next_at = now() where id = 'ours'", "turn head"},
		"it failed, and the key was held later":       {letter(true, "open", ourLane) + "update holdfast.parked set next_at = now() + interval '1 minute' where id = 'ours'", "failed head"},
		"one is before it, and the topic is paused":   {parked(10, ourLane) + pause("", "b", ""), "paused"},
		"one is before it, which is of another topic": {parked(10, ourLane) + "update holdfast.parked set topic = 'a' where id = 'other'", "turn head"},
	} {
		t.Run(name, func(t *testing.T) {
			rolledBack(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
				values (3, 'b', 'b', 20, 'follows', now() - interval '1 minute', 'ours', 's', 't', now());`+c.before, func(tx pgx.Tx) {
				got := textsOf(t, tx, "select concat_ws(' ', coalesce(nullif(why, ''), 'turn'), case when head then 'head' end) from holdfast.waiting_in_relays where event_id = 'ours'")
				if got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
			})
		})
	}
}

// What an event in a consumer waits for is of its own consumer, topic and key, or a node that handles its type.
func TestNeighbours_AConsumersEventWaitsForWhatIsOfItsQueue(t *testing.T) {
	t.Parallel()
	db := setup(t)
	stored := func(place int, queues string) string {
		return fmt.Sprintf(`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash) select o, t, k, %d, 's', concat(o, t, k), 't', now(), '' %s;`, place, queues)
	}
	letter := func(place, holds, state, queues string) string {
		return inboxLetter + fmt.Sprintf("select 'inbox', o, t, k, %s, %s, '%s', 'r', concat(o, t, k), 's', 't', now(), '' %s;", place, holds, state, queues)
	}
	pause := func(queues string) string {
		return "insert into holdfast.pause (consumer, topic, key, by, reason) select o, t, k, 'ann', 'r' " + queues + ";"
	}
	pauseAll := func(consumers ...string) string {
		return "insert into holdfast.pause (consumer, topic, key, by, reason) select c, '', '', 'ann', 'r' from unnest('{" + strings.Join(consumers, ",") + "}'::text[]) c;"
	}
	const (
		keyless    = "update holdfast.stored set key = '';"
		replay     = "update holdfast.stored set letter = 1 where event_id = 'ours';"
		noNode     = "delete from holdfast.consumer_type;"
		node       = "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('%s', '%s', 'm', now() + interval '%s');"
		leased     = "update holdfast.stored set lease_until = now() + interval '%s' where event_id = 'ours';"
		later      = "update holdfast.stored set next_at = now() + interval '1 minute' where event_id = 'ours';"
		topicPause = "insert into holdfast.pause (topic, by, reason) values ('b', 'ann', 'r');"
	)
	for name, c := range map[string]struct{ before, want string }{
		"nothing":                                  {"select 1", "turn head"},
		"a worker has it":                          {fmt.Sprintf(leased, "1 minute") + noNode, "turn head running"},
		"its lease ends just now":                  {fmt.Sprintf(leased, "0") + noNode, "no-handler head"},
		"its lease has run out":                    {fmt.Sprintf(leased, "-1 minute") + noNode, "no-handler head"},
		"no node handles anything":                 {noNode, "no-handler head"},
		"nodes handle other types":                 {noNode + fmt.Sprintf(node, "b", "s", "1 minute") + fmt.Sprintf(node, "b", "u", "1 minute"), "no-handler head"},
		"nodes of others handle the type":          {noNode + fmt.Sprintf(node, "a", "t", "1 minute") + fmt.Sprintf(node, "c", "t", "1 minute"), "no-handler head"},
		"a node handled the type until now":        {noNode + fmt.Sprintf(node, "b", "t", "0"), "no-handler head"},
		"a node handled the type":                  {noNode + fmt.Sprintf(node, "b", "t", "-1 minute"), "no-handler head"},
		"its consumer is paused":                   {pauseAll("b"), "paused head"},
		"its consumer is paused, and it a replay":  {pauseAll("b") + replay, "paused head"},
		"other consumers are paused":               {pauseAll("a", "c"), "turn head"},
		"its key is paused":                        {pause(ourConsumer), "paused head"},
		"its key is paused, and it is a replay":    {pause(ourConsumer) + replay, "turn head"},
		"other keys are paused":                    {pause(otherConsumers), "turn head"},
		"its topic is paused for relays":           {topicPause, "turn head"},
		"one is before it":                         {stored(10, ourConsumer), "behind-event"},
		"one is behind it":                         {stored(30, ourConsumer), "turn head"},
		"others are in lower places elsewhere":     {stored(10, otherConsumers), "turn head"},
		"one is before it, but it has no key":      {stored(10, ourConsumer) + keyless, "turn head"},
		"a letter before it holds the key":         {letter("10", "true", "open", ourConsumer), "behind-letter head"},
		"a letter holds all of the key":            {letter("null", "true", "open", ourConsumer), "behind-letter head"},
		"a letter of its own place holds the key":  {letter("20", "true", "open", ourConsumer), "turn head"},
		"a letter behind it holds the key":         {letter("30", "true", "open", ourConsumer), "turn head"},
		"a letter before it that is replayed":      {letter("10", "true", "replaying", ourConsumer), "behind-letter head"},
		"a letter before it that is closed":        {letter("10", "true", "discarded", ourConsumer), "turn head"},
		"a letter before it that holds nothing":    {letter("10", "false", "open", ourConsumer), "turn head"},
		"letters hold other keys":                  {letter("10", "true", "open", otherConsumers), "turn head"},
		"a letter before a replay holds the key":   {letter("10", "true", "open", ourConsumer) + replay, "turn head"},
		"a letter without a key holds no other":    {letter("10", "true", "open", ourConsumer) + keyless + "update holdfast.letter set key = ''", "turn head"},
		"it waits for its next attempt":            {later, "failed head"},
		"its attempt is due just now":              {"update holdfast.stored set next_at = now() where event_id = 'ours'", "turn head"},
		"it is dormant and nothing is before it":   {"update holdfast.stored set next_at = 'infinity' where event_id = 'ours'", "turn head"},
		"it waits for an attempt, but a worker":    {later + fmt.Sprintf(leased, "1 minute"), "turn head running"},
		"one is before it in each way that counts": {stored(10, ourConsumer) + letter("5", "true", "open", ourConsumer) + later, "behind-event"},
	} {
		t.Run(name, func(t *testing.T) {
			rolledBack(t, db, fmt.Sprintf(node, "b", "t", "1 minute")+`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
				values ('b', 'b', 'b', 20, 's', 'ours', 't', now(), '', now() - interval '1 minute');`+c.before, func(tx pgx.Tx) {
				got := textsOf(t, tx, `select concat_ws(' ', coalesce(nullif(why, ''), 'turn'), case when head then 'head' end, case when running then 'running' end)
					from holdfast.waiting_in_consumers where event_id = 'ours'`)
				if got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
			})
		})
	}
}

// A key of a consumer is held by letters of that consumer and by its own pause, and by no letter of a relay or pause of more than a key.
func TestNeighbours_AKeyIsHeldByItsLettersAndItsPause(t *testing.T) {
	t.Parallel()
	db := setup(t)
	rolledBack(t, db, relayLetter+"select 'relay', 3, 'b', 'b', true, 'open', "+letterValues+";"+
		inboxLetter+"select 'inbox', 'b', 'b', 'b', n, n <> 14, (array['open', 'replaying', 'replayed', 'discarded', 'open'])[n - 9], 'r', 'e' || n, 's', 't', now(), '' from generate_series(10, 14) n;"+
		"insert into holdfast.pause (consumer, topic, key, by, reason) values ('', 'b', '', 'ann', 'r'), ('b', '', '', 'ann', 'r'), ('b', 'b', 'k', 'ann', 'r')", func(tx pgx.Tx) {
		if got, want := textsOf(t, tx, `select concat_ws(' ', o.consumer, o.topic, o.key, o.after, l.event_id) from holdfast.consumer_hold o left join holdfast.letter l on l.id = o.letter order by o.key, o.after`),
			"b b b 10 e10, b b b 11 e11, b b k -9223372036854775808"; got != want {
			t.Errorf("at the consumer %s, want %s", got, want)
		}
		if got, want := textsOf(t, tx, `select concat_ws(' ', o.lane, o.topic, o.key, o.state) from holdfast.lane_hold o where o.lane is not null`), "3 b b open"; got != want {
			t.Errorf("at the relay %s, want %s", got, want)
		}
	})
}

// A lane's backlog is of that lane: what came after the end of its cursor, or was in flight at it, and is not published of its window.
func TestNeighbours_ALanesBacklogIsWhatItHasNotPublished(t *testing.T) {
	t.Parallel()
	db := setup(t)
	const (
		lanes = "update holdfast.lane set done = '100:200:150,160', owner = 'relay', lease_until = now() + interval '1 minute';"
		// The transactions 200 to 299 are in the window, which is published up to 50.
		window    = "update holdfast.lane set upto = '100:300:', pos = 50;"
		scheduled = "insert into holdfast.scheduled (lane, due_at, id, type, topic, time) select lane, now() - make_interval(mins => minutes), 'e' || lane, 't', 'o', now() from (values (2, 9), (3, 5), (3, 4), (4, 8)) v (lane, minutes);"
		idle      = "relay"
	)
	ago := func(minutes int) string { return fmt.Sprintf("now() - interval '%d minutes'", minutes) }
	event := func(lane, xid, seq int, at string) string {
		return fmt.Sprintf("insert into holdfast.event_1 (lane, xid, seq, id, type, topic, time) values (%d, '%d', %d, 'e', 't', 'o', %s);", lane, xid, seq, at)
	}
	many := func(n, xid int) string {
		return fmt.Sprintf("insert into holdfast.event_1 (lane, xid, seq, id, type, topic, time) select 3, '%d', n, 'e', 't', 'o', now() - make_interval(mins => n) from generate_series(1, %d) n;", xid, n)
	}
	parked := func(lane int, why, firstAt string) string {
		return fmt.Sprintf("insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time) values (%d, 'o', '%s', nextval('holdfast.parked_place'), '%[2]s', 'infinity', %s, 'e', 's', 't', now());", lane, why, firstAt)
	}
	for name, c := range map[string]struct{ before, want string }{
		"nothing":                                 {"", idle},
		"nobody has the lane any more":            {"update holdfast.lane set lease_until = now() - interval '1 minute'", ""},
		"its lease ends just now":                 {"update holdfast.lane set lease_until = now()", ""},
		"the first that came after the cursor":    {event(3, 200, 40, ago(7)), "relay unread 7"},
		"the last before the cursor":              {event(3, 199, 40, ago(7)), idle},
		"one that was in flight":                  {event(3, 150, 40, ago(7)), "relay unread 7"},
		"one that was not in flight":              {event(3, 155, 40, ago(7)) + event(3, 165, 41, ago(7)), idle},
		"others of other lanes":                   {event(2, 200, 40, ago(7)) + event(4, 200, 40, ago(7)) + event(2, 150, 40, ago(7)) + event(4, 150, 40, ago(7)), idle},
		"one beside older ones of other lanes":    {event(2, 200, 40, ago(9)) + event(3, 200, 40, ago(7)) + event(4, 200, 40, ago(9)), "relay unread 7"},
		"two":                                     {event(3, 150, 40, ago(7)) + event(3, 200, 41, ago(8)), "relay unread 8"},
		"one whose time is not yet":               {event(3, 200, 40, ago(-7)), "relay unread"},
		"one whose time is now":                   {event(3, 200, 40, ago(0)), "relay unread 0"},
		"one whose time is no time":               {event(3, 200, 40, "'-infinity'") + event(3, 200, 41, ago(7)), "relay unread 7"},
		"a window, up to its position":            {window + event(3, 200, 49, ago(7)) + event(3, 200, 50, ago(7)) + event(3, 150, 48, ago(7)) + event(3, 160, 50, ago(7)), idle},
		"a window, past its position":             {window + event(3, 299, 51, ago(7)), "relay unread 7"},
		"a window, past its position, in flight":  {window + event(3, 150, 51, ago(7)), "relay unread 7"},
		"after a window":                          {window + event(3, 300, 40, ago(7)), "relay unread 7"},
		"in flight, and after a window":           {"update holdfast.lane set upto = '100:300:160', pos = 50;" + event(3, 160, 40, ago(7)), "relay unread 7"},
		"19 that are published":                   {window + many(19, 200) + "update holdfast.lane set pos = 100;", idle},
		"20 that are published":                   {window + many(20, 200) + "update holdfast.lane set pos = 100;", "relay unread 20"},
		"19 that were in flight, are published":   {window + many(19, 150) + "update holdfast.lane set pos = 100;", idle},
		"20 that were in flight, are published":   {window + many(20, 150) + "update holdfast.lane set pos = 100;", "relay unread 20"},
		"parked":                                  {parked(2, "record", ago(9)) + parked(3, "record", ago(5)) + parked(3, "topic", ago(6)) + parked(4, "record", ago(9)), "relay waits 6"},
		"parked in other lanes":                   {parked(2, "record", "now()") + parked(4, "record", "now()"), idle},
		"parked at no time":                       {parked(3, "record", "'-infinity'"), idle},
		"parked at a time, and others at no time": {parked(3, "record", "'-infinity'") + parked(3, "follows", ago(5)), "relay waits 5"},
		"scheduled":                               {scheduled, "relay due 5"},
		"scheduled in other lanes":                {scheduled + "delete from holdfast.scheduled where lane = 3", idle},
	} {
		t.Run(name, func(t *testing.T) {
			rolledBack(t, db, lanes+c.before, func(tx pgx.Tx) {
				got := textsOf(t, tx, `select concat_ws(' ', owner, case when unread then 'unread' end, extract(epoch from now() - oldest_at)::int / 60, 'waits ' || extract(epoch from now() - waiting_since)::int / 60,
					'due ' || extract(epoch from now() - scheduled_for)::int / 60) from holdfast.backlog where lane = 3`)
				if got != c.want {
					t.Errorf("it is %q, want %q", got, c.want)
				}
			})
		})
	}
}

// A segment is unread as long as it has an event that one lane has not read: of that lane, after the end of its cursor, or in flight at it.
func TestNeighbours_ASegmentIsUnreadForTheLaneOfAnEvent(t *testing.T) {
	t.Parallel()
	db := setup(t)
	const lanes = "update holdfast.lane set done = case lane when 3 then '100:200:150,160' when 4 then '100:300:' else '100:150:' end::pg_snapshot;"
	for name, c := range map[string]struct {
		lane, xid int
		want      string
	}{
		"at the end of the cursor":              {3, 200, "true"},
		"before the end of the cursor":          {3, 199, "false"},
		"in flight":                             {3, 150, "true"},
		"not in flight":                         {3, 155, "false"},
		"after what was in flight":              {3, 165, "false"},
		"read by its lane, which is further":    {4, 250, "false"},
		"in flight at another lane's cursor":    {4, 150, "false"},
		"in flight at a higher lane's cursor":   {2, 140, "false"},
		"read by no lane, below all of them":    {-1, 1, "true"},
		"read by no lane, above all of them":    {8, 1, "true"},
		"unread by its lane, which lags behind": {2, 160, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			rolledBack(t, db, lanes+fmt.Sprintf("insert into holdfast.event_1 (lane, xid, id, type, topic) values (%d, '%d', 'e', 't', 'o')", c.lane, c.xid), func(tx pgx.Tx) {
				if got := textsOf(t, tx, "select holdfast.unread(n)::text from generate_series(0, 2) n"); got != "false, "+c.want+", false" {
					t.Errorf("the segments 0 to 2 are unread: %s, want %s of the second", got, c.want)
				}
			})
		})
	}
}

// A segment is emptied unless new events go there, the incarnation is another one, or a cursor is ahead of the server.
func TestNeighbours_ASegmentIsEmptiedUnlessItMayBeNeeded(t *testing.T) {
	t.Parallel()
	db := setup(t)
	const (
		lanes = "update holdfast.segments set current = 1; update holdfast.incarnation set token = '" + token5 + "';" +
			"insert into holdfast.event_0 (lane, xid, id, type, topic) select lane, '1', 'e', 't', 'o' from holdfast.lane; insert into holdfast.event_2 select * from only holdfast.event_0;" +
			"update holdfast.lane set done = pg_current_snapshot();"
		ahead = "update holdfast.lane set done = '4:900000000000:' where lane = 3;"
	)
	for name, c := range map[string]struct {
		before  string
		segment int
		token   string
		want    string
	}{
		"one below the current one":   {"", 0, token5, "emptied 8"},
		"one above the current one":   {"", 2, token5, "emptied 8"},
		"the current one":             {"", 1, token5, "refused: it is the current segment 16"},
		"another incarnation, before": {"", 0, "44444444-0000-0000-0000-000000000000", "refused: the database was restarted after a crash 16"},
		"another incarnation, later":  {"", 0, "66666666-0000-0000-0000-000000000000", "refused: the database was restarted after a crash 16"},
		"a cursor is ahead":           {ahead, 0, token5, "refused: a cursor lies in the future 16"},
		"a lane has not read it":      {"update holdfast.event_0 set xid = pg_current_xact_id() where lane = 3;", 0, token5, "unread 16"},
	} {
		t.Run(name, func(t *testing.T) {
			// In one call, so that few other transactions begin between the cursors' snapshots and the server's. The answers are the same if some do.
			rolledBack(t, db, lanes+c.before+fmt.Sprintf("create temporary table said on commit drop as select holdfast.reclaim(%d, '%s', 5000)", c.segment, c.token), func(tx pgx.Tx) {
				if got := textsOf(t, tx, "select reclaim || ' ' || (select count(*) from holdfast.event) from said"); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		})
	}
}

const token5 = "55555555-0000-0000-0000-000000000000"

// user makes a role that may call every function, and says how a transaction becomes a session of it, and is its own again.
func user() (name, create, become string) {
	name = "user_" + strings.ToLower(rand.Text())
	return name, fmt.Sprintf("create role %[1]s; grant usage on schema holdfast to %[1]s; grant execute on all functions in schema holdfast to %[1]s;", name),
		"set local session authorization " + name + ";"
}

const itself = "set session authorization default"

// bind binds a role to consumers.
func bind(role string, consumers ...string) (sql string) {
	for _, c := range consumers {
		sql += fmt.Sprintf("insert into holdfast.consumer_binding (role, consumer, letter_topic) values ('%s', '%s', 'dead-%[2]s');", role, c)
	}
	return sql
}

// Letters are purged that were closed before the age that is given, of the user's own consumers; what was done to others keeps its payloads.
func TestNeighbours_LettersArePurgedByStateAgeAndConsumer(t *testing.T) {
	t.Parallel()
	db := setup(t)
	name, create, become := user()
	const letters = `insert into holdfast.letter (origin, consumer, topic, key, state, reason, event_id, source, type, time, hash, last_at)
			select case when c = '' then 'relay' else 'inbox' end, c, 'o', 'k', s, 'r', concat_ws('/', s, c, age), 's', 't', now(), '', now() - make_interval(secs => age)
			  from unnest('{discarded,open,replaying,replayed}'::text[]) s, unnest('{a,b,c,""}'::text[]) c, unnest('{61,60,59}'::int[]) age order by age = 61, s, c;
		insert into holdfast.letter_action (letter, action, by, reason, payload) select id, 'edit', 'ann', event_id, 'before' from holdfast.letter;
		insert into holdfast.letter_replay (name, filter, upto, by, reason, ended_at) select coalesce(age::text, 'never'), '{}', 1, 'ann', 'r', now() - make_interval(secs => age) from unnest('{61,60,59,null}'::int[]) age;`
	all := "discarded//61 discarded/a/61 discarded/b/61 discarded/c/61 replayed//61 replayed/a/61 replayed/b/61 replayed/c/61"
	const minute = "60000000"
	for what, c := range map[string]struct{ before, age, most, gone, replays string }{
		"all":                           {"", minute, "100", "8 " + all, "59 60 never"},
		"one more than there are":       {"", minute, "9", "8 " + all, "59 60 never"},
		"as many as there are":          {"", minute, "8", "8 " + all, "59 60 61 never"},
		"older than all":                {"", "62000000", "100", "0 ", "59 60 61 never"},
		"who is bound to nothing":       {become, minute, "100", "8 " + all, "59 60 never"},
		"of one consumer":               {bind(name, "b") + become, minute, "100", "2 discarded/b/61 replayed/b/61", "59 60 61 never"},
		"of a consumer without letters": {bind(name, "aa") + become, minute, "100", "0 ", "59 60 61 never"},
	} {
		t.Run(what, func(t *testing.T) {
			rolledBack(t, db, create+letters+c.before, func(tx pgx.Tx) {
				n := textsOf(t, tx, "select holdfast.purge_letters($1, $2)::text", c.age, c.most)
				pgtest.Exec(t, tx, itself)
				if got := n + " " + textsOf(t, tx, "select coalesce(string_agg(a.reason, ' ' order by a.reason collate \"C\"), '') from holdfast.letter_action a where not exists (select from holdfast.letter l where l.id = a.letter)"); got != c.gone {
					t.Errorf("gone are %s, want %s", got, c.gone)
				}
				if got := n + " " + textsOf(t, tx, "select coalesce(string_agg(a.reason, ' ' order by a.reason collate \"C\"), '') from holdfast.letter_action a where a.payload is null"); got != c.gone {
					t.Errorf("payloads are gone of %s, want %s", got, c.gone)
				}
				if got := textsOf(t, tx, "select string_agg(r.name, ' ' order by r.name) from holdfast.letter_replay r"); got != c.replays {
					t.Errorf("the replays %s are left, want %s", got, c.replays)
				}
			})
		})
	}
	for _, c := range []struct{ args, want string }{
		{"null, 1", "22023 purge letters: age is <NULL> microseconds: at least 60000000"},
		{"59999999, 1", "22023 purge letters: age is 59999999 microseconds: at least 60000000"},
		{"60000000, null", "22023 purge letters: most is <NULL>: it must be between 1 and 10000"},
		{"60000000, 0", "22023 purge letters: most is 0: it must be between 1 and 10000"},
		{"60000000, 10001", "22023 purge letters: most is 10001: it must be between 1 and 10000"},
		{"60000000, 10000", "8"},
		{"60000000, 1", "1"},
	} {
		rolledBack(t, db, letters, func(tx pgx.Tx) {
			if got := textsOf(t, tx, "select holdfast.purge_letters("+c.args+")::text"); got != c.want {
				t.Errorf("%s: %s, want %s", c.args, got, c.want)
			}
		})
	}
}

// A letter is published that has the number, by who may work on its consumer, and to the topic to which the user may publish those.
func TestNeighbours_ALetterIsPublishedByItsNumberAndConsumer(t *testing.T) {
	t.Parallel()
	db := setup(t)
	name, create, become := user()
	const letters = `insert into holdfast.letter (id, origin, consumer, topic, key, reason, event_id, source, type, time, hash) overriding system value
		select id, case when c = '' then 'relay' else 'inbox' end, c, 'o', 'k', 'r', 'e' || id, 's', 't', now(), '' from (values (40, 'c'), (30, 'b'), (20, 'a'), (10, '')) v (id, c);`
	const absent = "it is not there, log "
	for what, c := range map[string]struct {
		before string
		letter int
		topic  string
		want   string
	}{
		"by anybody":                             {"", 30, "x", "null, log 30 to x"},
		"of a relay, by anybody":                 {"", 10, "x", "null, log 10 to x"},
		"by a user who is not bound":             {become, 30, "x", "null, log 30 to x"},
		"below all":                              {"", 5, "x", absent},
		"between others":                         {"", 25, "x", absent},
		"above all":                              {"", 45, "x", absent},
		"of one's own consumer":                  {bind(name, "b") + become, 30, "dead-b", "null, log 30 to dead-b"},
		"of one's own consumer, to no own topic": {bind(name, "b") + become, 30, "x", "dead letter topic is 'x': user " + name + " may publish those of consumer b to dead-b only (table consumer_binding), log "},
		"of a consumer before one's own":         {bind(name, "b") + become, 20, "dead-b", absent},
		"of a consumer after one's own":          {bind(name, "b") + become, 40, "dead-b", absent},
		"of a relay, by who has a consumer":      {bind(name, "b") + become, 10, "dead-b", absent},
		"of a relay, by who works on those":      {bind(name, "b", "") + become, 10, "x", "null, log 10 to x"},
	} {
		t.Run(what, func(t *testing.T) {
			rolledBack(t, db, create+letters+c.before, func(tx pgx.Tx) {
				said := textsOf(t, tx, "select holdfast.publish_letter($1, $2, 100)", c.letter, c.topic)
				pgtest.Exec(t, tx, itself)
				if got := said + ", log " + textsOf(t, tx, "select concat(headers ->> 'hf_letter', ' to ', topic) from holdfast.event"); got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
			})
		})
	}
}

// A published letter has its type, and of its headers those that have room in 8,192 bytes, none of them by a name of ours.
func TestNeighbours_APublishedLetterHasTheHeadersThatHaveRoom(t *testing.T) {
	t.Parallel()
	db := setup(t)
	sized := func(a, b int) string {
		return fmt.Sprintf(`{"a": "%s", "b": "%s"}`, strings.Repeat("x", a-1), strings.Repeat("x", b-1))
	}
	for what, c := range map[string]struct{ kind, headers, want string }{
		"as it is":             {"t", `{"a": "x"}`, "t a"},
		"no type":              {"", `{}`, "none"},
		"as much as has room":  {"t", sized(4096, 4096), "t a b"},
		"one byte more":        {"t", sized(4096, 4097), "t a left out 1"},
		"nothing has room":     {"t", sized(8193, 8194), "t left out 2"},
		"a name of ours":       {"t", `{"a": "x", "HF_own": "x"}`, "t a"},
		"a name like ours":     {"t", `{"a": "x", "my_hf_own": "x"}`, "t a my_hf_own"},
		"a letter of a letter": {"t", `{"hf_letter": "1"}`, "it is the letter of a published letter"},
	} {
		t.Run(what, func(t *testing.T) {
			rolledBack(t, db, "select 1", func(tx pgx.Tx) {
				pgtest.Exec(t, tx, `insert into holdfast.letter (id, origin, topic, key, reason, event_id, source, type, time, hash, headers) overriding system value
					values (1, 'relay', 'o', 'k', 'r', 'e', 's', $1, now(), '', $2::text::jsonb)`, c.kind, c.headers)
				got := textsOf(t, tx, "select holdfast.publish_letter(1, 'x', 100)")
				if got == "null" {
					got = textsOf(t, tx, `select concat_ws(' ', e.type, (select string_agg(k, ' ' order by k) from jsonb_object_keys(e.headers) k where k !~ '^hf_'), 'left out ' || (e.headers ->> 'hf_headers_left_out')) from holdfast.event e`)
				}
				if got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
			})
		})
	}
}

// The open letter of a relay that has the number is replayed, if the user works on those, and no other.
func TestNeighbours_ALetterIsReplayedByItsNumberAndState(t *testing.T) {
	t.Parallel()
	db := setup(t)
	name, create, become := user()
	const (
		letters = `insert into holdfast.letter (id, origin, consumer, state, topic, key, reason, event_id, source, type, time, hash) overriding system value
			select id, o, c, s, 'o', 'k', 'r', 'e' || id, 's', 't', now(), '' from (values (1, 'relay', '', 'open'), (2, 'relay', '', 'open'), (3, 'relay', '', 'open'), (4, 'inbox', 'b', 'open'),
				(5, 'relay', '', 'replaying'), (6, 'relay', '', 'replayed'), (7, 'relay', '', 'discarded')) v (id, o, c, s);`
		did = "true, changed 2 replaying, log 2"
		not = "false, changed , log "
	)
	for what, c := range map[string]struct {
		before string
		letter int
		want   string
	}{
		"an open letter":                           {"", 2, did},
		"by a user who is not bound":               {become, 2, did},
		"by a user who works on relays' letters":   {bind(name, "b", "") + become, 2, did},
		"by a user who works on a consumer's":      {bind(name, "b") + become, 2, not},
		"below all":                                {"", 0, not},
		"above all":                                {"", 8, not},
		"of a consumer":                            {"", 4, not},
		"of a consumer, by a user who has no such": {bind(name, "") + become, 4, not},
		"that is being replayed":                   {"", 5, not},
		"that was replayed":                        {"", 6, not},
		"that was discarded":                       {"", 7, not},
	} {
		t.Run(what, func(t *testing.T) {
			rolledBack(t, db, create+letters+"create temporary table was on commit drop as select id, state from holdfast.letter;"+c.before, func(tx pgx.Tx) {
				said := textsOf(t, tx, "select holdfast.replay_letter($1)::text", c.letter)
				pgtest.Exec(t, tx, itself)
				got := said + ", changed " + textsOf(t, tx, "select concat(l.id, ' ', l.state) from holdfast.letter l join was w on w.id = l.id where w.state <> l.state order by l.id") +
					", log " + textsOf(t, tx, "select letter::text from holdfast.event order by letter")
				if got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
			})
		})
	}
}

// What is redirected is what the call names by lane, topic, key and place, with the letters of the replays among it, by who works on relays.
func TestNeighbours_WhatIsRedirectedIsWhatTheCallNames(t *testing.T) {
	t.Parallel()
	db := setup(t)
	name, create, become := user()
	const (
		rows = `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, letter)
				select l, t, k, p, 'record', now(), concat_ws('/', l, t, k, p), 's', 't', now(), case when (l, t, k, p) = (3, 'b', 'b', 20) then 5 end
				  from generate_series(2, 4) l, unnest('{a,b,c}'::text[]) t, unnest('{a,b,c}'::text[]) k, unnest('{10,20,30}'::bigint[]) p;
			insert into holdfast.letter (id, origin, state, topic, key, reason, event_id, source, type, time, hash) overriding system value
				select id, 'relay', 'replaying', 'b', 'b', 'r', 'e' || id, 's', 't', now(), '' from generate_series(4, 6) id;`
		done     = "ok, gone 3/b/b/20, log 3/b/b/20 to %s with 5, letters 5 %[1]s {why}"
		nothing  = "ok, gone , log , letters "
		without  = "ok, gone 3/b/b/20, log 3/b/b/20 to z with 5, letters "
		theTopic = "22023 redirect parked events: to is %s: it must be the name of another Kafka topic"
		not      = ", gone , log , letters "
	)
	long := strings.Repeat("t", 249)
	ours := func(to string) string { return "3::smallint, 'b', '{b}', '{20}', '" + to + "', 'why'" }
	for what, c := range map[string]struct{ before, who, args, want string }{
		"to a later topic":                  {"", "", ours("z"), fmt.Sprintf(done, "z")},
		"to an earlier topic":               {"", "", ours("a"), fmt.Sprintf(done, "a")},
		"to the longest topic":              {"", "", ours(long), fmt.Sprintf(done, long)},
		"by a user who is not bound":        {"", become, ours("z"), fmt.Sprintf(done, "z")},
		"by a user who works on relays":     {"", bind(name, "b", "") + become, ours("z"), fmt.Sprintf(done, "z")},
		"by a user who works on a consumer": {"", bind(name, "b") + become, ours("z"), "42501 redirect parked events: this user may work on the consumers {b} only" + not},
		"to its own topic":                  {"", "", ours("b"), fmt.Sprintf(theTopic, "'b'") + not},
		"to a dot":                          {"", "", ours("."), fmt.Sprintf(theTopic, "'.'") + not},
		"to two dots":                       {"", "", ours(".."), fmt.Sprintf(theTopic, "'..'") + not},
		"to no name of a topic":             {"", "", ours("a b"), fmt.Sprintf(theTopic, "'a b'") + not},
		"to a name that is too long":        {"", "", ours(long + "t"), fmt.Sprintf(theTopic, "'"+long[:59]) + not},
		"of a lane that has nothing":        {"delete from holdfast.parked where lane = 3;", "", ours("z"), nothing},
		"of a topic that has nothing":       {"delete from holdfast.parked where topic = 'b';", "", ours("z"), nothing},
		"of a key that has nothing":         {"delete from holdfast.parked where key = 'b';", "", ours("z"), nothing},
		"of a place that has nothing":       {"delete from holdfast.parked where place = 20;", "", ours("z"), nothing},
		"of several keys and places": {
			before: "update holdfast.parked set letter = null;",
			args:   "3::smallint, 'b', '{a,c,b}', '{10,30,20}', 'z', 'why'",
			want:   "ok, gone 3/b/a/10, 3/b/b/20, 3/b/c/30, log 3/b/a/10 to z with , 3/b/b/20 to z with , 3/b/c/30 to z with , letters ",
		},
		"its letter was discarded meanwhile":    {"update holdfast.letter set state = 'discarded' where id = 5;", "", ours("z"), without},
		"its letter was opened again meanwhile": {"update holdfast.letter set state = 'open' where id = 5;", "", ours("z"), without},
	} {
		t.Run(what, func(t *testing.T) {
			rolledBack(t, db, create+rows+c.before+"create temporary table was on commit drop as select id from holdfast.parked;"+c.who, func(tx pgx.Tx) {
				// Its error is caught, so that the transaction goes on.
				pgtest.Exec(t, tx, fmt.Sprintf(`do $do$ begin perform holdfast.redirect_parked(%s); perform set_config('said.what', 'ok', true);
					exception when others then perform set_config('said.what', sqlstate || ' ' || sqlerrm, true); end $do$`, c.args))
				said := textsOf(t, tx, "select current_setting('said.what')")
				pgtest.Exec(t, tx, itself)
				got := said + ", gone " + textsOf(t, tx, "select w.id from was w where not exists (select from holdfast.parked p where p.id = w.id) order by w.id") +
					", log " + textsOf(t, tx, "select concat(id, ' to ', topic, ' with ', letter) from holdfast.event order by seq") +
					", letters " + textsOf(t, tx, "select concat(id, ' ', topic, ' ', errors) from holdfast.letter where topic <> 'b' or errors <> '{}' order by id")
				if got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
			})
		})
	}
}

// A user is bound by its own bindings, and to the letters of relays besides if it may run one, once it is bound at all.
func TestNeighbours_AUserIsBoundByItsOwnBindings(t *testing.T) {
	t.Parallel()
	db := setup(t)
	name, create, become := user()
	other, createOther, _ := user()
	bindings := bind(other, "a", "b", "d") + bind(name, "b", "c")
	for what, c := range map[string]struct{ before, sql, want string }{
		"a user":                                 {bindings + become, "select holdfast.own_consumers()::text", "{b,c}"},
		"a user who may run a relay":             {bindings + "grant update on holdfast.lane to " + name + ";" + become, "select holdfast.own_consumers()::text", `{b,c,""}`},
		"a relay that is not bound":              {bind(other, "a") + "grant update on holdfast.lane to " + name + ";" + become, "select holdfast.own_consumers()::text", "null"},
		"who owns the schema":                    {bindings, "select holdfast.own_consumers()::text", "null"},
		"a letter, to the consumer's topic":      {bindings + become, "select holdfast.letter_topic_refusal('b', 'o', 'dead-b')", "null"},
		"a letter, to a later consumer's topic":  {bindings + become, "select holdfast.letter_topic_refusal('b', 'o', 'dead-c')", "dead letter topic is 'dead-c': user " + name + " may publish those of consumer b to dead-b only (table consumer_binding)"},
		"a letter, to an other consumer's topic": {bindings + become, "select holdfast.letter_topic_refusal('c', 'o', 'dead-b')", "dead letter topic is 'dead-b': user " + name + " may publish those of consumer c to dead-c only (table consumer_binding)"},
		"a letter, to another user's topic":      {bindings + "update holdfast.consumer_binding set letter_topic = 'theirs' where consumer = 'b' and role = '" + other + "'::regrole;" + become, "select holdfast.letter_topic_refusal('b', 'o', 'theirs')", "dead letter topic is 'theirs': user " + name + " may publish those of consumer b to dead-b only (table consumer_binding)"},
		"a letter of others' consumers":          {bindings + become, "select holdfast.letter_topic_refusal('d', 'o', 'x')", "null"},
		"a letter, by who owns the schema":       {bindings, "select holdfast.letter_topic_refusal('b', 'o', 'x')", "null"},
	} {
		t.Run(what, func(t *testing.T) {
			rolledBack(t, db, create+createOther+c.before, func(tx pgx.Tx) {
				if got := textsOf(t, tx, c.sql); got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
			})
		})
	}
}

// A producer writes to the topics, and under the sources, of its own bindings, in each way in which it writes; others write as before.
func TestNeighbours_AProducerWritesToTheTopicsOfItsBindings(t *testing.T) {
	t.Parallel()
	db := setup(t)
	name, create, become := user()
	other, createOther, _ := user()
	binding := func(role, topic, source string) string {
		return fmt.Sprintf("insert into holdfast.producer_binding (role, topic, source) values ('%s', '%s', '%s');", role, topic, source)
	}
	ours, theirs := binding(name, "orders.*", "shop")+binding(name, "mail", "*"), binding(other, "payments", "bank")
	topics := "'payments': user " + name + " may write to mail, orders.* only (table producer_binding)"
	for what, c := range map[string]struct{ before, topic, source, want string }{
		"nobody is bound":          {become, "payments", "bank", ""},
		"to a topic of its own":    {ours + theirs + become, "orders.placed", "shop", ""},
		"to a topic, any source":   {ours + theirs + become, "mail", "bank", ""},
		"to a topic of another":    {ours + theirs + become, "payments", "bank", "topic is " + topics},
		"to a topic like its own":  {ours + theirs + become, "mail2", "shop", "topic is " + strings.Replace(topics, "payments", "mail2", 1)},
		"to a prefix of its own":   {ours + theirs + become, "mai", "shop", "topic is " + strings.Replace(topics, "payments", "mai", 1)},
		"under another source":     {ours + theirs + become, "orders.placed", "bank", "source is 'bank': user " + name + " may write to topic orders.placed with source 'shop' only (table producer_binding)"},
		"by who is not bound":      {theirs + become, "orders.placed", "bank", ""},
		"by who owns the schema":   {ours + theirs, "elsewhere", "bank", ""},
		"the bindings are removed": {ours + theirs + "delete from holdfast.producer_binding;" + become, "payments", "bank", ""},
	} {
		t.Run(what, func(t *testing.T) {
			for _, write := range []string{
				"select holdfast.append_one('e', $2, 't', $1, '', null, null, null)::text",
				"select holdfast.append('{e}', array[$2], '{t}', array[$1], '{\"\"}', '{null}', null, null, null, null)::text",
				"select left(holdfast.write_once('d', $1, '', 't', null, source => $2)::text, 0)",
			} {
				rolledBack(t, db, create+createOther+c.before, func(tx pgx.Tx) {
					want := c.want
					if want != "" {
						want = "42501 write event: " + want
					}
					if got := textsOf(t, tx, write, c.topic, c.source); got != want {
						t.Errorf("%s: %q, want %q", write, got, want)
					}
				})
			}
		})
	}
	// One topic of five is not its own, whichever that is.
	for i := range 5 {
		all := []string{"mail", "orders.a", "orders.b", "orders.c", "orders.d"}
		all[i] = "payments"
		rolledBack(t, db, create+ours+become, func(tx pgx.Tx) {
			got := textsOf(t, tx, "select holdfast.append(array_fill('e'::text, '{5}'), array_fill('shop'::text, '{5}'), array_fill('t'::text, '{5}'), $1, array_fill(''::text, '{5}'), null, null, null, null, null)::text", all)
			if want := "42501 write event: topic is " + topics; got != want {
				t.Errorf("%v: %q, want %q", all, got, want)
			}
		})
	}
	rolledBack(t, db, "select 1", func(tx pgx.Tx) {
		if got, want := textsOf(t, tx, `select holdfast.fits(p, v)::text from (values ('order', 'order'), ('order', 'orde'), ('order', 'orders'), ('order', 'ordex'), ('order*', 'order'), ('order*', 'orders'), ('order*', 'orde'), ('*', '')) v (p, v)`),
			"true, false, false, false, true, true, false, true"; got != want {
			t.Errorf("texts fit patterns: %s, want %s", got, want)
		}
	})
}

// The first binding of a consumer puts row security on for the tables of this installation that have its policy, and for no others; the
// second one locks none of them.
func TestNeighbours_ABindingSecuresTheTablesOfItsInstallation(t *testing.T) {
	t.Parallel()
	db := setup(t)
	pgtest.Exec(t, db, `create table holdfast.theirs (x int); create policy their_rows on holdfast.theirs using (true);
		create table holdfast.zz (x int); create policy zz_rows on holdfast.zz using (true);
		create schema later; create table later.theirs (x int); create policy own_rows on later.theirs using (true)`)
	const secured = "select concat(count(*), ' ', string_agg(distinct nullif(relnamespace::regnamespace::text, 'holdfast'), ' '), string_agg(relname, ' ') filter (where relname in ('theirs', 'zz'))) from pg_class where relrowsecurity"
	rolledBack(t, db, bind("pg_monitor", "b"), func(tx pgx.Tx) {
		want := textsOf(t, tx, "select concat(count(*), ' ') from pg_policy p where p.polname = 'own_rows' and p.polrelid in (select oid from pg_class where relnamespace = 'holdfast'::regnamespace)")
		count, err := strconv.Atoi(strings.Fields(want)[0])
		if got := textsOf(t, tx, secured); got != want || err != nil || count < 14 {
			t.Errorf("secured are %s, want %s, and 14 at least", got, want)
		}
		pgtest.Exec(t, tx, "delete from holdfast.consumer_binding")
		if got := textsOf(t, tx, secured); got != "0 " {
			t.Errorf("without a binding secured are %s", got)
		}
	})
	pgtest.Exec(t, db, bind("pg_monitor", "b"))
	rolledBack(t, db, bind("pg_monitor", "c"), func(tx pgx.Tx) {
		if got := textsOf(t, tx, "select string_agg(distinct relation::regclass::text, ' ') from pg_locks where pid = pg_backend_pid() and mode = 'AccessExclusiveLock'"); got != "null" {
			t.Errorf("the second binding locks %s", got)
		}
	})
}

// An event is refused past a bound, and not at it: what is at the bound is within it.
func TestNeighbours_AnEventIsRefusedPastABoundAndNotAtIt(t *testing.T) {
	t.Parallel()
	db := setup(t)
	const (
		aYear       = ": a year from 1 to 9999"
		first, past = "'0001-01-01 00:00:00+00'", "'10000-01-01 00:00:00+00'"
		aMoment     = "'0001-12-31 23:59:59+00 BC'"
	)
	n := func(letter string, n int) string { return "repeat('" + letter + "', " + fmt.Sprint(n) + ")" }
	padded := func(bytes int) string { // of spaces
		return `'{"a": ' || ` + n(" ", bytes-len(`{"a": "b"}`)) + ` || '"b"}'`
	}
	names := func(n, bytes int) string {
		return fmt.Sprintf("(select json_object_agg('h' || n, rpad('', %d - length('h' || n), 'x'))::text from generate_series(1, %d) n)", bytes, n)
	}
	rolledBack(t, db, "set local time zone 'UTC'", func(tx pgx.Tx) {
		for _, c := range []struct{ change, want string }{
			{"", "null"},
			{"id => " + n("i", 255), "null"}, {"id => " + n("i", 256), "id has 256 bytes"}, {"id => ''", "id has 0 bytes"},
			{"source => " + n("s", 255), "null"}, {"source => " + n("s", 256), "source has 256 bytes"},
			{"type => ''", "type is empty"}, {"type => " + n("t", 255), "null"}, {"type => " + n("t", 256), "type has 256 bytes"},
			{"topic => ''", "topic is empty"}, {"topic => " + n("t", 249), "null"}, {"topic => " + n("t", 250), "topic is '" + strings.Repeat("t", 59)},
			{"topic => 'a b'", "topic is 'a b'"}, {"topic => '.'", "topic is '.'"}, {"topic => '..'", "topic is '..'"}, {"topic => '...'", "null"},
			{"key => " + n("k", 1024), "null"}, {"key => " + n("k", 1025), "key has 1025 bytes"},
			{`"time" => ` + first, "null"}, {`"time" => ` + aMoment, "time is 0001-12-31 23:59:59+00 BC" + aYear},
			{`"time" => ` + past, "time is 10000-01-01 00:00:00+00" + aYear}, {`"time" => '9999-12-31 23:59:59+00'`, "null"},
			{"not_before => " + first, "null"}, {"not_before => " + aMoment, "not before is 0001-12-31 23:59:59+00 BC" + aYear},
			{"not_before => " + past, "not before is 10000-01-01 00:00:00+00" + aYear}, {"not_before => '9999-12-31 23:59:59+00'", "null"},
			{"payload_bytes => holdfast.max_payload()", "null"}, {"payload_bytes => holdfast.max_payload() + 1", "payload has 1032193 bytes"},

			{`headers => '{"a": "b"}'`, "null"}, {`headers => '{}'`, "null"}, {`headers => '["a"]'`, "headers is a JSON array"}, {`headers => '{"a": 1}'`, "header a is a JSON number"},
			{`headers => '{"ce_id": "b"}'`, "header ce_id is reserved"}, {`headers => '{"a": "b", "Hf_x": "c"}'`, "header Hf_x is reserved"},
			{`headers => '{"": "b"}'`, `header "" is not an HTTP token`}, {`headers => '{"a b": "c"}'`, `header "a b" is not an HTTP token`},
			{`headers => '{"' || ` + n("n", 255) + ` || '": "c"}'`, "null"}, {`headers => '{"' || ` + n("n", 256) + ` || '": "c"}'`, `header "` + strings.Repeat("n", 60) + `" is not an HTTP token`},
			{"headers => " + padded(65536), "null"}, {"headers => " + padded(65537), "headers has 65537 bytes of JSON"},
			{"headers => " + names(64, 10), "null"}, {"headers => " + names(65, 10), "headers has 65 names"},
			{"headers => " + names(2, 4096), "null"}, {"headers => " + names(1, 8193), "headers has 8193 bytes"},
		} {
			args := map[string]string{"id": "'e'", "source": "'s'", "type": "'t'", "topic": "'o'", "key": "'k'", `"time"`: "now()", "headers": "null"}
			if name, value, changed := strings.Cut(c.change, " => "); changed {
				args[name] = value
			}
			var named []string
			for name, value := range args {
				named = append(named, name+" => "+value)
			}
			if got := textsOf(t, tx, "select holdfast.refusal("+strings.Join(named, ", ")+")"); got != c.want && (c.want == "null" || !strings.HasPrefix(got, c.want)) {
				t.Errorf("%.60s: %q, want %q", c.change, got, c.want)
			}
		}
	})
}

// A call writes its events into the segment that is current, in their order and with at most one cut, but those that are not due: these wait for
// their time. What is due now is due.
func TestNeighbours_ACallWritesWhatIsDueAndSchedulesTheRest(t *testing.T) {
	t.Parallel()
	db := setup(t)
	const arrays = "array_agg('e' || n), array_agg('s'::text), array_agg('t'::text), array_agg('o'::text), array_agg('k'::text), null, null, null, "
	for current := range 4 {
		for _, write := range []string{"append", "append_unchecked"} {
			where := func(tx pgx.Tx) string {
				return textsOf(t, tx, "select concat_ws(' ', tableoid::regclass, id) from holdfast.event order by seq") + "; " + textsOf(t, tx, "select concat_ws(' ', id, extract(epoch from due_at - now())::int) from holdfast.scheduled order by seq")
			}
			became := fmt.Sprintf("update holdfast.segments set current = %d;", current)
			segment := fmt.Sprintf("holdfast.event_%d ", current)
			rolledBack(t, db, became+"select holdfast."+write+"("+arrays+"array_agg(now() + make_interval(secs => s)), null) from (values (1, null), (2, -1), (3, 60), (4, 0), (5, 1)) v (n, s)", func(tx pgx.Tx) {
				if got, want := where(tx), segment+"e1, "+segment+"e2, "+segment+"e4; e3 60, e5 1"; got != want {
					t.Errorf("%s in segment %d: %s, want %s", write, current, got, want)
				}
			})
			rolledBack(t, db, became+"select holdfast."+write+"("+arrays+"null, null) from generate_series(1, 2) n", func(tx pgx.Tx) {
				if got, want := where(tx), segment+"e1, "+segment+"e2; "; got != want {
					t.Errorf("%s in segment %d, nothing scheduled: %s, want %s", write, current, got, want)
				}
			})
			// Of a thousand events one has a cut, the first.
			rolledBack(t, db, became+"select holdfast."+write+"("+arrays+"null, null) from generate_series(1, 1000) n", func(tx pgx.Tx) {
				if got := textsOf(t, tx, "select id from holdfast.event where snap is not null"); got != "e1" {
					t.Errorf("%s in segment %d: cuts are at %s", write, current, got)
				}
			})
		}
		rolledBack(t, db, fmt.Sprintf("update holdfast.segments set current = %d; select holdfast.append_one('e1', 's', 't', 'o', 'k', null, null, null)", current), func(tx pgx.Tx) {
			if got, want := textsOf(t, tx, "select concat_ws(' ', tableoid::regclass, id) from holdfast.event"), fmt.Sprintf("holdfast.event_%d e1", current); got != want {
				t.Errorf("append_one in segment %d: %s, want %s", current, got, want)
			}
		})
	}
	for _, c := range []struct{ args, want string }{
		{arrays + "null, null) from generate_series(1, 10000) n", "10000"},
		{arrays + "null, null) from generate_series(1, 10001) n", "22023 write event: there are 10001 events: at most 10000 in one call"},
		{arrays + "array_fill(now(), '{10000}'), null) from generate_series(1, 10000) n", "10000"},
		{arrays + "array_fill(now(), '{10001}'), null) from generate_series(1, 10001) n", "22023 write event: there are 10001 events: at most 10000 in one call"},
		{arrays + "null, '{1}') from generate_series(1, 1) n", "22023 write event: letters is given: it must be null, because only the function replay_letter sends a dead letter again: replay it by a newer build of holdfast"},
		{strings.Replace(arrays, "'t'", "case n when 2 then '' else 't' end", 1) + "array_fill(now(), '{3}'), null) from generate_series(1, 3) n", "22023 write event: type is empty: say what happened"},
		{strings.Replace(arrays, "'t'", "case n when 2 then '' else 't' end", 1) + "null, null) from generate_series(1, 3) n", "22023 write event: type is empty: say what happened"},
	} {
		rolledBack(t, db, "select 1", func(tx pgx.Tx) {
			if got := textsOf(t, tx, "select holdfast.append("+c.args); got != c.want && !(got == "" && c.want == textsOf(t, tx, "select count(*)::text from holdfast.event")) {
				t.Errorf("%s: %s, want %s", c.args, got, c.want)
			}
		})
	}
}

// An event has the lane of its key, one without a key that of its id, however many lanes there are.
func TestNeighbours_AnEventHasTheLaneOfItsKeyOrItsID(t *testing.T) {
	t.Parallel()
	db := setup(t)
	rolledBack(t, db, "select 1", func(tx pgx.Tx) {
		for _, lanes := range []int{1, 5, 6, 7, 8, 100, 128, 256} {
			for i := range 20 {
				for _, key := range []string{"", fmt.Sprint("key ", i)} {
					id := fmt.Sprint("id ", i)
					if got, want := textsOf(t, tx, "select holdfast.lane_of($1, $2, $3)::text", key, id, lanes), fmt.Sprint(lane.Of(key, id, lanes)); got != want {
						t.Errorf("key %q, id %q, of %d lanes: %s, want %s", key, id, lanes, got, want)
					}
				}
			}
		}
	})
}

// A dedupe key is known for its topic and type, and forgotten once it has expired, and no other is.
func TestNeighbours_ADedupeKeyIsKnownForItsTopicAndType(t *testing.T) {
	t.Parallel()
	db := setup(t)
	// The last is written first, so that what a scan meets first is not ours.
	const (
		known = `insert into holdfast.written_once (dedupe_key, topic, type, event_id, source, key, hash, expires_at)
			select d, o, t, concat(d, o, t), 's', 'k', sha256(convert_to(concat(d, o, t), 'UTF8')), now() + interval '1 minute'
			  from unnest('{a,b,c}'::text[]) d, unnest('{a,b,c}'::text[]) o, unnest('{a,b,c}'::text[]) t order by d desc, o desc, t desc;`
		scans = "set local enable_indexscan = off; set local enable_bitmapscan = off;"
		write = "select concat_ws(' ', written, event_id) from holdfast.write_once('b', 'b', 'k', 't', 'bbb', source => 's', id => 'new'%s)"
		ours  = "(dedupe_key, topic, type) = ('b', 'b', 'b')"
	)
	once := strings.Replace(write, "'t', 'bbb'", "'b', 'bbb'", 1)
	for what, c := range map[string]struct{ before, sql, want, left string }{
		"a key that is known":                     {known + scans, fmt.Sprintf(once, ""), "f bbb", "1 and 26"},
		"a key that is known, by its index":       {known, fmt.Sprintf(once, ""), "f bbb", "1 and 26"},
		"a key of others":                         {known + "delete from holdfast.written_once where " + ours, fmt.Sprintf(once, ""), "t new", "1 and 26"},
		"no key":                                  {"", "select concat(written) from holdfast.write_once(null, 'o', 'k', 't', null)", "22023 write event: dedupe key has 0 bytes: it must have 1 to 255", ""},
		"an empty key":                            {"", "select concat(written) from holdfast.write_once('', 'o', 'k', 't', null)", "22023 write event: dedupe key has 0 bytes: it must have 1 to 255", ""},
		"the longest key":                         {"", "select concat(written) from holdfast.write_once(repeat('d', 255), 'o', 'k', 't', null)", "t", "0 and 1"},
		"a key that is longer":                    {"", "select concat(written) from holdfast.write_once(repeat('d', 256), 'o', 'k', 't', null)", "22023 write event: dedupe key has 256 bytes: it must have 1 to 255", ""},
		"kept for no time":                        {"", fmt.Sprintf(once, ", keep => null"), "22023 write event: keep is null: it must be positive, and at most 10 years", ""},
		"kept for 0":                              {"", fmt.Sprintf(once, ", keep => '0'"), "22023 write event: keep is 00:00:00: it must be positive, and at most 10 years", ""},
		"kept for less":                           {"", fmt.Sprintf(once, ", keep => '-1 s'"), "22023 write event: keep is -00:00:01: it must be positive, and at most 10 years", ""},
		"kept for a moment":                       {"", fmt.Sprintf(once, ", keep => '1 us'"), "t new", "1 and 0"},
		"kept for 10 years":                       {"", fmt.Sprintf(once, ", keep => '10 years'"), "t new", "1 and 0"},
		"kept for longer":                         {"", fmt.Sprintf(once, ", keep => '10 years 1 us'"), "22023 write event: keep is 10 years 00:00:00.000001: it must be positive, and at most 10 years", ""},
		"expiry of ours":                          {known + "update holdfast.written_once set expires_at = now() - interval '1 s' where " + ours, "select holdfast.expire_written_once(100)::text", "1", "0 and 26"},
		"expiry of all but ours":                  {known + "update holdfast.written_once set expires_at = now() - interval '1 s' where not " + ours, "select holdfast.expire_written_once(100)::text", "26", "1 and 0"},
		"expiry of the oldest":                    {known + "update holdfast.written_once set expires_at = now() - interval '1 s' - interval '1 s' * (" + ours + ")::int", "select holdfast.expire_written_once(1)::text", "1", "0 and 26"},
		"expiry of what ends just now":            {known + "update holdfast.written_once set expires_at = now()", "select holdfast.expire_written_once(100)::text", "0", "1 and 26"},
		"expiry, none has expired":                {known, "select holdfast.expire_written_once(100)::text", "0", "1 and 26"},
		"a key that has expired is still known":   {known + "update holdfast.written_once set expires_at = now() - interval '1 s'", fmt.Sprintf(once, ""), "f bbb", "1 and 26"},
		"a key of another key, topic and of type": {"", fmt.Sprintf(write, ""), "t new", "0 and 1"},
	} {
		t.Run(what, func(t *testing.T) {
			rolledBack(t, db, c.before, func(tx pgx.Tx) {
				if got := textsOf(t, tx, c.sql); got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
				if c.left == "" {
					return // An error has ended the transaction.
				}
				got := textsOf(t, tx, "select concat(count(*) filter (where "+ours+"), ' and ', count(*) filter (where not "+ours+")) from holdfast.written_once")
				if got != c.left {
					t.Errorf("known are %s, want %s: our key, and others", got, c.left)
				}
			})
		})
	}
}

// Events without a key have no order to keep: a lock of no key is refused, beside keys too.
func TestNeighbours_ALockOfNoKeyIsRefused(t *testing.T) {
	t.Parallel()
	db := setup(t)
	for keys, want := range map[string]string{
		"{}": "", "{a}": "", "{a,b}": "",
		`{""}`: "22023 lock key: the key is empty: events without a key have no order to keep", `{a,""}`: "22023 lock key: the key is empty: events without a key have no order to keep",
		"{null}": "22023 lock key: the key is empty: events without a key have no order to keep", "{a,null}": "22023 lock key: the key is empty: events without a key have no order to keep",
	} {
		rolledBack(t, db, "select 1", func(tx pgx.Tx) {
			if got := textsOf(t, tx, "select holdfast.lock(variadic $1::text::text[])::text", keys); got != want {
				t.Errorf("%s: %q, want %q", keys, got, want)
			}
		})
	}
}

// Where arguments are texts and array_nulls is off, a tombstone among the events of a call is refused; whatever else is written as it is.
func TestNeighbours_ATombstoneIsRefusedWhereANullIsAText(t *testing.T) {
	t.Parallel()
	db := setup(t)
	pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol })
	for _, c := range []struct {
		nulls   string
		payload []byte
		want    string
	}{{"on", nil, "null, x"}, {"on", []byte("NULL"), "NULL, x"}, {"off", []byte("y"), "y, x"}, {"off", nil, "refused"}} {
		rolledBack(t, &pgtest.DB{Pool: pool}, "set local array_nulls = "+c.nulls, func(tx pgx.Tx) {
			first, second := good(), good()
			first.Payload, second.Payload = c.payload, []byte("x")
			err := outbox.Write(t.Context(), tx, first, second)
			if c.want == "refused" {
				if err == nil || !strings.Contains(err.Error(), "array_nulls is off") {
					t.Errorf("array_nulls %s, payload %q: %v, want a refusal", c.nulls, c.payload, err)
				}
				return
			}
			if err != nil {
				t.Fatalf("array_nulls %s, payload %q: %v", c.nulls, c.payload, err)
			}
			if got := textsOf(t, tx, "select convert_from(payload, 'UTF8') from holdfast.event order by seq"); got != c.want {
				t.Errorf("array_nulls %s, payload %q: the log has %s, want %s", c.nulls, c.payload, got, c.want)
			}
		})
	}
}
