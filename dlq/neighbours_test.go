package dlq_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/waking"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// What is done to a letter changes its event's rows, and none of those that are like it in all but one: its consumer, source or id,
// below and above. The others may be handled meanwhile: that says nothing about this one.
func TestNeighbours_WhatIsDoneToALetterConcernsNoOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		act  func(ctx context.Context, b bundle, id int64) error
		want string // the letter's state, its version, and its event's rows in the inbox and among the stored ones
	}{
		"edited": {func(ctx context.Context, b bundle, id int64) error {
			return b.d.Edit(ctx, id, []byte(`{"a":1}`), "ann", "")
		}, "open 2 dead t, stored 0"},
		"discarded": {func(ctx context.Context, b bundle, id int64) error {
			return b.d.Discard(ctx, id, "ann", "")
		}, "discarded 1 discarded t, stored 0"},
		"replayed": {func(ctx context.Context, b bundle, id int64) error {
			_, err := b.d.Replay(ctx, dlq.Filter{IDs: []int64{id}}, dlq.ReplayOptions{By: "ann"})
			return err
		}, "replaying 1 stored t, stored 1"},
		"replayed and discarded": {func(ctx context.Context, b bundle, id int64) error {
			if _, err := b.d.Replay(ctx, dlq.Filter{IDs: []int64{id}}, dlq.ReplayOptions{By: "ann"}); err != nil {
				return err
			}
			return b.d.Discard(ctx, id, "ann", "")
		}, "discarded 1 discarded t, stored 0"},
	} {
		for _, theirs := range []string{"dead", "handled", "stored"} {
			t.Run(name+", the others are "+theirs, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				event := func(consumer, source, id string) int64 {
					t.Helper()
					pgtest.Exec(t, b.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result, attempts)
						values ($1, $2, $3, 'orders', sha256('{}'), now(), 'dead', 5)`, consumer, source, id)
					return pgtest.Count(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, payload, hash, attempts)
						values ('inbox', $1, 'it failed', $2, $3, 't', 'orders', 'k', now(), '{}', sha256('{}'), 5) returning id`, consumer, id, source)
				}
				var ours int64
				for _, e := range [][3]string{
					{"a", "shop", "e1"}, {"billing", "depot", "e1"}, {"billing", "shop", "e0"}, {"billing", "shop", "e1"},
					{"billing", "shop", "e2"}, {"billing", "zoo", "e1"}, {"mail", "shop", "e1"},
				} {
					if id := event(e[0], e[1], e[2]); e == [3]string{"billing", "shop", "e1"} {
						ours = id
					}
				}
				const others = "not (consumer = 'billing' and source = 'shop' and event_id = 'e1')"
				pgtest.Exec(t, b.Pool, "update holdfast.inbox set result = $1, processed_at = case when $1 <> 'stored' then now() end where "+others, theirs)
				if theirs == "stored" { // Their letters are being replayed.
					pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, letter, next_at)
						select consumer, topic, key, id, source, event_id, type, time, payload, hash, id, 'infinity' from holdfast.letter where `+others)
					pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'replaying' where "+others)
				}
				// Only the head of a queue may become due by what is done to another event of its key.
				theirRows := func() string {
					return pgtest.Text(t, b.Pool, `select concat((select string_agg(l::text, ' ' order by id) from holdfast.letter l where `+others+`),
						(select string_agg(i::text, ' ' order by consumer, source, event_id) from holdfast.inbox i where `+others+`),
						(select string_agg(concat_ws(',', consumer, place, source, event_id, letter, attempts, hash), ' ' order by consumer, place) from holdfast.stored s where `+others+`),
						(select count(*) from holdfast.letter_action where letter <> `+fmt.Sprint(ours)+`))`)
				}
				before := theirRows()
				if err := c.act(t.Context(), b, ours); err != nil {
					t.Fatal(err)
				}
				if after := theirRows(); after != before {
					t.Errorf("the others were\n%s\nand are\n%s", before, after)
				}
				if got := pgtest.Text(t, b.Pool, `select concat(l.state, ' ', l.version, ' ', i.result, ' ', i.hash = l.hash, ', stored ', (select count(*) from holdfast.stored s where s.letter = l.id))
					from holdfast.letter l join holdfast.inbox i using (consumer, source, event_id) where l.id = `+fmt.Sprint(ours)); got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
			})
		}
	}
}

// A replay goes on with its own bound, its own filter and its own count, whatever other names were interrupted, and its end is no other's.
func TestNeighbours_AReplayOfAnotherNameIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var letters []int64
	for n := range 6 {
		letters = append(letters, rows.Dead(t, b.Pool, "billing", "k", fmt.Sprint(n)))
	}
	replays := map[string]int64{}
	interrupted := func(name string, upTo int64, ended string) {
		t.Helper()
		replays[name+ended] = pgtest.Count(t, b.Pool, `insert into holdfast.letter_replay (name, filter, upto, by, reason, ended_at)
			select $1, $2::text::jsonb, $3, 'ann', '', nullif($4::text, '')::timestamptz returning id`, name, `{"NoPayloads": false}`, upTo, ended)
	}
	interrupted("b", letters[5], "2026-01-01")
	interrupted("c", letters[0], "")
	interrupted("b", letters[2], "")
	interrupted("a", letters[4], "")
	for name, moved := range map[string][]int64{"a": letters[4:5], "c": letters[3:5], "b": letters[:1]} {
		for _, letter := range moved {
			pgtest.Exec(t, b.Pool, "insert into holdfast.letter_action (letter, action, by, reason, replay) values ($1, 'replay', 'ann', '', $2)", letter, replays[name])
		}
	}
	var before int
	n, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", Name: "b", ProgressFunc: func(p dlq.Progress) { before = p.Before }})
	if n != 2 || err != nil || before != 1 {
		t.Errorf("replayed %d after %d, want 2 after 1: %v", n, before, err)
	}
	if got := pgtest.Text(t, b.Pool, "select string_agg(event_id, ' ' order by event_id) from holdfast.letter where state = 'replaying'"); got != "1 2" {
		t.Errorf("replayed %s", got)
	}
	if got := pgtest.Text(t, b.Pool, "select string_agg(concat(name, ' ', ended_at is not null, ' ', ended_at < '2026-01-02'), ', ' order by id) from holdfast.letter_replay"); got != "b t t, c f , b t f, a f " {
		t.Errorf("the replays are %s", got)
	}
	// Another begins, and what it finds is its own. If it begins anew, it ends the one of its name alone.
	interrupted("b", letters[0], "")
	if n, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", Name: "b", Anew: true}); n != 4 || err != nil {
		t.Errorf("a new one replayed %d, want the 4 that are open: %v", n, err)
	}
	if got := pgtest.Text(t, b.Pool, "select string_agg(concat(name, ' ', ended_at is not null, ' ', ended_at < '2026-01-02'), ', ' order by id) from holdfast.letter_replay"); got != "b t t, c f , b t f, a f , b t f, b t f" {
		t.Errorf("the replays are %s", got)
	}
}

// A tombstone has no payload either, and one that a person has made of a letter is meant so.
func TestNeighbours_OnlyAValueThatWasLeftOutKeepsALetterFromItsReplay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	leftOut := `headers = '{"` + wire.HeaderValueLeftOut + `": "300"}'`
	for name, c := range map[string]struct {
		set     string
		refused bool
	}{
		"it was left out":                 {"payload = null, " + leftOut, true},
		"a tombstone":                     {"payload = null", false},
		"a tombstone that a person made":  {"payload = null, version = 2, " + leftOut, false},
		"a payload that was given by SQL": {"payload = '{}', " + leftOut, false},
		"no headers at all":               {"payload = null, headers = null", false},
	} {
		id := rows.Dead(t, b.Pool, "billing", "k", name)
		pgtest.Exec(t, b.Pool, "update holdfast.letter set "+c.set+" where id = $1", id)
		n, err := b.d.Replay(t.Context(), dlq.Filter{IDs: []int64{id}}, dlq.ReplayOptions{By: "ann"})
		if c.refused && (n != 0 || whyNot(err) != "left-out") || !c.refused && (n != 1 || err != nil) {
			t.Errorf("%s: replayed %d, %v", name, n, err)
		}
	}
}

// A letter that is closed makes the head of its key due if nothing else holds that, and no other event.
func TestNeighbours_OnlyTheHeadOfALettersKeyIsWoken(t *testing.T) {
	t.Parallel()
	waking.OnlyTheHead(t, func(t *testing.T, db *pgtest.DB, key string) {
		d, err := dlq.New(db.Pool, dlq.Config{})
		if err != nil {
			t.Fatal(err)
		}
		letter := rows.Dead(t, db.Pool, "billing", key, "given up")
		rows.Dead(t, db.Pool, "other", "other", "later") // of another queue, which is not asked about
		if err := d.Discard(t.Context(), letter, "ann", ""); err != nil {
			t.Fatal(err)
		}
	})
}

// A row that says that the event was handled stays so whatever is done to its letter, and the row of another payload says nothing about a
// letter's event.
func TestNeighbours_ARowThatWasHandledStaysHandled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	discarded := rows.Dead(t, b.Pool, "billing", "k", "came again")
	pgtest.Exec(t, b.Pool, "update holdfast.inbox set result = 'handled'")
	if err := b.d.Discard(t.Context(), discarded, "ann", ""); err != nil {
		t.Fatal(err)
	}
	const all = "select string_agg(concat(event_id, ' ', result), ', ' order by event_id) from holdfast.inbox"
	if got := pgtest.Text(t, b.Pool, all); got != "came again handled" {
		t.Errorf("the row is %s", got)
	}
	for _, hash := range []string{`\x00`, `\xff`} { // below and above that of the letter
		id := "conflict " + hash
		letter := b.conflict(t, id, "another payload")
		pgtest.Exec(t, b.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result, attempts)
			values ('billing', 'shop', $1, 'orders', $2::text::bytea, now(), 'handled', 1)`, id, hash)
		b.replay(t, dlq.Filter{IDs: []int64{letter}}, 1)
		if got := pgtest.Text(t, b.Pool, "select result from holdfast.inbox where event_id = '"+id+"'"); got != "handled" {
			t.Errorf("with the hash %s the row of the other payload is %s", hash, got)
		}
	}
}
