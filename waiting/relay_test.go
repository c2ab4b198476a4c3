package waiting_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/waiting"
)

var ann = waiting.Options{By: "ann", Reason: "it was retired"}

// lettersByKey are the payloads of the open dead letters of a topic, in the order of their ids.
func (b bundle) lettersByKey(t testing.TB, topic, state string) map[string][]string {
	t.Helper()
	rows, err := b.Query(t.Context(), "select key, convert_from(payload, 'UTF8') from holdfast.letter where topic = $1 and state = $2 order by id", topic, state)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	var key, payload string
	if _, err := pgx.ForEachRow(rows, []any{&key, &payload}, func() error { all[key] = append(all[key], payload); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRelay_WhatWaitsIsSummedUpByPlaceTopicAndReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if groups, err := b.w.Groups(t.Context(), waiting.Filter{}); len(groups) != 0 || err != nil {
		t.Errorf("of nothing: %v, %v", groups, err)
	}
	pgtest.Exec(t, b.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, errors, id, source, type, time, headers, payload)
		select n % 8, 'gone', case when n < 6 then 'k' || n % 2 else '' end, n, case when n < 7 then 'topic' else 'record' end, case when n < 7 then 'infinity' else '2100-01-01' end::timestamptz, now() - n * interval '1 hour',
		       case when n < 9 then array['older', 'error ' || n] else '{}' end, n, 's', 't', now(), '{"a":"b"}', '12345' from generate_series(1, 9) n`)
	b.stored(t, "k1", "head", "order.split", "now")
	b.stored(t, "k1", "follower", "order.placed", "infinity")
	for i, of := range []string{"order.split", "order.merged"} { // of the first type there are two then
		b.stored(t, fmt.Sprint("j", i), fmt.Sprint("unhandled ", i), of, "infinity")
	}
	pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 'order.placed', 'n', now() + interval '1 minute')")
	b.write(t, reminders(3)...)
	got, err := b.w.Groups(t.Context(), waiting.Filter{})
	if err != nil || len(got) != 6 {
		t.Fatalf("%+v, %v", got, err)
	}
	if g := got[0]; g.Origin != dlq.OriginRelay || g.Topic != "gone" || g.Why != waiting.Failed || g.Events != 3 || g.Keys != 0 || g.Bytes != 3*15 || g.Error != "error 7" || time.Since(g.OldestAt).Round(time.Hour) != 9*time.Hour {
		t.Errorf("got %+v", g)
	}
	if g := got[1]; g.Why != waiting.Topic || g.Events != 6 || g.Keys != 2 || g.Error != "error 1" || !g.NextAt.IsZero() {
		t.Errorf("got %+v", g)
	}
	if g := got[2]; g.Origin != dlq.OriginInbox || g.Consumer != "billing" || g.Topic != "orders" || g.Why != waiting.BehindEvent || g.Events != 1 || g.Keys != 1 || g.Bytes != 2 {
		t.Errorf("got %+v", g)
	}
	if g := got[3]; g.Why != waiting.NoHandler || g.Type != "order.merged" || g.Events != 1 || g.Keys != 1 || !g.NextAt.IsZero() {
		t.Errorf("got %+v", g)
	}
	if g := got[4]; g.Why != waiting.NoHandler || g.Type != "order.split" || g.Events != 2 || g.Keys != 2 || g.Error != "two" || g.NextAt.IsZero() {
		t.Errorf("got %+v", g)
	}
	for _, i := range []int{0, 1, 2, 5} {
		if got[i].Type != "" {
			t.Errorf("what waits for something else is by type: %+v", got[i])
		}
	}
	if g := got[5]; g.Origin != dlq.OriginRelay || g.Topic != "reminders" || g.Why != waiting.Scheduled || g.Events != 3 || g.Keys != 3 || g.NextAt.Before(time.Now()) {
		t.Errorf("got %+v", g)
	}
	for name, row := range map[string]struct {
		filter waiting.Filter
		groups int
	}{
		"of relays":     {waiting.Filter{Origin: dlq.OriginRelay}, 3},
		"of consumers":  {waiting.Filter{Origin: dlq.OriginInbox}, 3},
		"of a type":     {waiting.Filter{Type: "order.split"}, 1},
		"of a consumer": {waiting.Filter{Consumer: "mail"}, 0},
		"of a topic":    {waiting.Filter{Topic: "gone"}, 2},
		"of a reason":   {waiting.Filter{Why: waiting.Scheduled}, 1},
		"of heads":      {waiting.Filter{Heads: true, Consumer: "billing"}, 2},
	} {
		if got, err := b.w.Groups(t.Context(), row.filter); len(got) != row.groups || err != nil {
			t.Errorf("%s: %+v, %v; want %d", name, got, err, row.groups)
		}
	}
	if _, err := b.w.Groups(t.Context(), waiting.Filter{Limit: 3}); err == nil {
		t.Error("a limit is no error")
	}
}

// A page ends where the limit is, wherever that is, and the next one goes on there.
func TestRelay_OneListHasAllThatWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.park(t, "gone", "a", 1, "p1", 0)
	b.park(t, "gone", "a", 2, "p2", 0)
	b.park(t, "orders", "", 3, "p3", 0)
	b.stored(t, "k1", "s1", "order.split", "now")
	b.stored(t, "k1", "s2", "order.split", "infinity")
	b.write(t, reminders(3)...)
	for limit := 1; limit <= 9; limit++ {
		var got []string
		f := waiting.Filter{Limit: limit}
		for {
			page, err := b.w.List(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			got = append(got, ids(page))
			f.After = &page[len(page)-1]
		}
		if got := strings.Join(got, " "); got != "p1 p2 p3 s1 s2 r000 r001 r002" {
			t.Errorf("in pages of %d it is %s", limit, got)
		}
	}
}

// Each row is as a relay or an inbox leaves it, or time does.
func TestRelay_TheReasonForWhichAnEventWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	relayRow := func(id, key string, place int, why, nextAt string, attempts int, partition any, letter any) {
		pgtest.Exec(t, b.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, attempts, partition, letter)
			values (0, 'orders', $1, $2, $3, $4::timestamptz, $5, 's', 't', now(), $6, $7::integer, $8::bigint)`, key, place, why, nextAt, id, attempts, partition, letter)
	}
	consumerRow := func(id, key, eventType, nextAt string, attempts int) {
		b.stored(t, key, id, eventType, nextAt)
		pgtest.Exec(t, b.Pool, "update holdfast.stored set attempts = $1 where event_id = $2", attempts, id)
	}
	relayRow("refused", "r", 1, "record", "2100-01-01", 3, nil, nil)
	relayRow("after refused", "r", 2, "follows", "infinity", 0, nil, nil)
	relayRow("no topic", "t", 3, "topic", "infinity", 0, nil, nil)
	relayRow("no partition", "p", 4, "partition", "2100-01-01", 0, 7, nil)
	held := b.relayLetter(t, "orders", "h", "dead", "open", true)
	relayRow("held", "h", 5, "follows", "infinity", 0, nil, nil)
	relayRow("its turn", "x", 6, "follows", "now", 0, nil, nil)
	relayRow("replay", "h", -7, "record", "now", 0, nil, held)
	relayRow("due again", "again", 8, "record", "now", 3, nil, nil)
	pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 'known', 'n', now() + interval '1 minute'), ('billing', 'gone', 'n', now() - interval '1 minute')")
	pgtest.Exec(t, b.Pool, `insert into holdfast.consumer_type (consumer, type, node, seen_until, needs) values ('billing', 'needy', 'n', now() + interval '1 minute', '{mail,stripe}'), ('billing', 'well', 'n', now() + interval '1 minute', '{mail}'),
		('other', 'known', 'n', now() + interval '1 minute', '{stripe}')`)
	pgtest.Exec(t, b.Pool, "insert into holdfast.dependency (consumer, name, away) values ('billing', 'stripe', true), ('billing', 'mail', false), ('billing', 'unneeded', true), ('other', 'mail', true)")
	consumerRow("retried", "r", "known", "2100-01-01", 2)
	consumerRow("connection lost", "l", "known", "2100-01-01", 0)
	consumerRow("after retried", "r", "known", "infinity", 0)
	consumerRow("new", "n", "known", "now", 0)
	consumerRow("needs stripe", "s", "needy", "now", 0)
	consumerRow("needs it, and failed", "f", "needy", "2100-01-01", 2)
	consumerRow("needs it, after another", "s", "needy", "now", 0)
	consumerRow("needs what is there", "w", "well", "now", 0)
	consumerRow("unknown", "u", "gone", "now", 0)
	consumerRow("after unknown", "u", "gone", "infinity", 0)
	consumerRow("running", "run", "known", "now", 1)
	pgtest.Exec(t, b.Pool, "update holdfast.stored set lease_until = now() + interval '1 hour' where event_id = 'running'")
	consumerRow("behind a letter", "d", "known", "infinity", 0)
	pgtest.Exec(t, b.Pool, "update holdfast.letter set holds = true, place = 0 where id = $1", rows.Dead(t, b.Pool, "billing", "d", "its letter"))
	consumerRow("of a paused key", "paused", "known", "infinity", 0)
	consumerRow("due again there", "again", "known", "now", 2)
	b.pause(t, waiting.Pausable{Consumer: "billing", Topic: "orders", Key: "paused"})
	b.write(t, reminders(1)...)
	want := map[string]waiting.Why{
		"refused": waiting.Failed, "after refused": waiting.BehindEvent, "no topic": waiting.Topic, "no partition": waiting.Partition, "held": waiting.BehindEvent,
		"its turn": "", "replay": "", "due again": "", "due again there": "", "retried": waiting.Failed, "connection lost": waiting.Failed, "after retried": waiting.BehindEvent, "new": "", "unknown": waiting.NoHandler,
		"needs stripe": waiting.Dependency, "needs it, and failed": waiting.Dependency, "needs it, after another": waiting.BehindEvent, "needs what is there": "",
		"after unknown": waiting.NoHandler, "running": "", "behind a letter": waiting.BehindLetter, "of a paused key": waiting.Paused, "r000": waiting.Scheduled,
	}
	check := func(when string) {
		t.Helper()
		all, err := b.w.List(t.Context(), waiting.Filter{})
		if err != nil || len(all) != len(want) {
			t.Fatalf("%s: %d events, %v; want %d", when, len(all), err, len(want))
		}
		for _, w := range all {
			if w.Why != want[w.Event.ID] || w.Running != (w.Event.ID == "running") {
				t.Errorf("%s: %q waits for %q, running %t; want %q", when, w.Event.ID, w.Why, w.Running, want[w.Event.ID])
			}
			if some, err := b.w.List(t.Context(), waiting.Filter{Why: w.Why, EventID: w.Event.ID}); ids(some) != w.Event.ID || err != nil {
				t.Errorf("%s: by its reason, %q, there is %q, %v", when, w.Why, ids(some), err)
			}
			if shown, err := b.w.Show(t.Context(), waiting.Filter{EventID: w.Event.ID}, false); err != nil || len(shown) != 1 || shown[0].Why != w.Why || shown[0].Origin != w.Origin {
				t.Errorf("%s: %q is shown as %+v, %v", when, w.Event.ID, shown, err)
			}
		}
	}
	check("as they are")
	pgtest.Exec(t, b.Pool, "update holdfast.stored set letter = $1, next_at = now() where event_id = 'of a paused key'", held)
	want["of a paused key"] = ""
	check("when what is paused is the replay of a letter")
	pgtest.Exec(t, b.Pool, "update holdfast.stored set letter = null where event_id = 'of a paused key'")
	want["of a paused key"] = waiting.Paused
	pgtest.Exec(t, b.Pool, "delete from holdfast.parked where id = 'replay'")
	delete(want, "replay")
	want["held"] = waiting.BehindLetter
	check("without the replay")
	b.pause(t, waiting.Pausable{Topic: "orders"})
	for _, id := range []string{"refused", "after refused", "no topic", "no partition", "held", "its turn", "due again"} {
		want[id] = waiting.Paused
	}
	check("when the topic is paused")
	b.pause(t, waiting.Pausable{Consumer: "billing"})
	for _, id := range []string{"retried", "connection lost", "after retried", "new", "behind a letter", "due again there", "needs stripe", "needs it, and failed", "needs it, after another", "needs what is there"} {
		want[id] = waiting.Paused
	}
	check("when the consumer is paused")
}

// A relay publishes another topic all the time. Its events wait a moment, and are published once and in order.
func TestRelay_ParkedEventsAreGivenUpBesideARelay(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	t.Parallel()
	b := setup(t)
	p := &topics{missing: []string{"gone"}}
	b.relays(t, p, relay.Config{})
	gone := of("gone", 37, 0, 20_000)
	for chunk := range slices.Chunk(gone, 10_000) {
		b.write(t, chunk...)
	}
	wait.Until(t, "all of them are parked", func() bool { return b.parked(t, "gone") == 20_000 })

	ctx, stop := context.WithCancel(t.Context())
	var orders []holdfast.Event
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			e := of("orders", 37, n, 1)[0]
			b.write(t, e)
			orders = append(orders, e)
		}
	})
	n, err := b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann)
	stop()
	writing.Wait()
	if n != 20_000 || err != nil {
		t.Fatalf("%d were given up, %v", n, err)
	}
	wantKeys(t, b.lettersByKey(t, "gone", "open"), gone...)
	if n := pgtest.Count(t, b.Pool, `select count(*) from holdfast.letter where origin = 'relay' and not holds and lane is not null
		and reason = 'ann gave up what waits for its topic: it was retired' and errors[cardinality(errors)] like '%missing%' and hash = sha256(payload)`); n == 0 {
		t.Error("the letters do not say why")
	}
	if n := b.parked(t, "gone"); n != 0 {
		t.Errorf("%d are still parked", n)
	}
	wait.Until(t, "the others are published", func() bool { return p.count() >= len(orders) })
	wantKeys(t, p.published("orders"), orders...)

	later := of("gone", 37, 20_000, 3)
	b.write(t, later...)
	wait.Until(t, "later events are parked", func() bool { return b.parked(t, "gone") == 3 })
	if n, err := b.w.Discard(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann); n != 3 || err != nil {
		t.Fatalf("%d were discarded, %v", n, err)
	}
	wantKeys(t, b.lettersByKey(t, "gone", "discarded"), later...)
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where action = 'discard' and by = 'ann' and reason = 'it was retired'"); n != 3 {
		t.Errorf("%d actions are kept", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.pause_action where action in ('give-up', 'discard') and topic = 'gone' and by = 'ann' and reason = 'it was retired'"); n != 2 {
		t.Errorf("of two commands %d are kept", n)
	}
	if _, err := b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann); !errors.Is(err, waiting.ErrNotFound) {
		t.Errorf("nothing is left: %v", err)
	}

	p.miss()
	few := dlq.Filter{Key: "k0", Limit: 20}
	if n, err := b.d.Replay(t.Context(), few, dlq.ReplayOptions{By: "ann"}); n != 20 || err != nil {
		t.Fatal(n, err)
	}
	wait.Until(t, "replays are published", func() bool { return len(p.published("gone")["k0"]) == 20 })
	var first []holdfast.Event
	for _, e := range gone {
		if e.Key == "k0" && len(first) < 20 {
			first = append(first, e)
		}
	}
	wantKeys(t, p.published("gone"), first...)
}

// The other topic has parked events of the same keys, which come first, and gets new ones, which come last.
func TestRelay_ParkedEventsAreRedirectedInTheOrderOfTheirKeys(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	b := setup(t)
	p := &topics{missing: []string{"ordres", "orders"}}
	b.relays(t, p, relay.Config{})
	before, wrong := of("orders", 37, 0, 500), of("ordres", 37, 0, 20_000)
	b.write(t, before...)
	wait.Until(t, "some of the other topic are parked", func() bool { return b.parked(t, "orders") == 500 })
	for chunk := range slices.Chunk(wrong, 10_000) {
		b.write(t, chunk...)
	}
	wait.Until(t, "all of them are parked", func() bool { return b.parked(t, "ordres") == 20_000 })
	n, err := b.w.Redirect(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "ordres"}, "orders", ann)
	if n != 20_000 || err != nil {
		t.Fatalf("%d were redirected, %v", n, err)
	}
	after := of("orders", 37, 500, 500)
	b.write(t, after...)
	p.miss("ordres")
	wait.Until(t, "everything is published", func() bool { return p.count() >= 21_000 })
	wait.Until(t, "nothing is parked", func() bool { return pgtest.Count(t, b.Pool, "select count(*) from holdfast.parked") == 0 })
	wantKeys(t, p.published("orders"), slices.Concat(before, wrong, after)...)

	b.write(t, of("ordres", 37, 20_000, 1)...)
	wait.Until(t, "a later event is parked", func() bool { return b.parked(t, "ordres") == 1 })
}

// The topic takes events just now: what is in a call is published there, once, and everything else is redirected.
func TestRelay_AnEventInACallIsNeitherLostNorPublishedTwice(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(w *waiting.Room) (int, error){
		"given up": func(w *waiting.Room) (int, error) {
			return w.GiveUp(context.Background(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann)
		},
		"redirected": func(w *waiting.Room) (int, error) {
			return w.Redirect(context.Background(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, "orders", ann)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			p := &topics{missing: []string{"gone"}}
			b.relays(t, p, relay.Config{})
			events := of("gone", 3, 0, 300)
			b.write(t, events...)
			wait.Until(t, "all of them are parked", func() bool { return b.parked(t, "gone") == 300 })

			inCall, answer := make(chan string, 1), make(chan struct{})
			release := sync.OnceFunc(func() { close(answer) })
			t.Cleanup(release)
			var key atomic.Pointer[string] // of the first call
			p.onCall(func(events []holdfast.Event) {
				if events[0].Topic != "gone" {
					return
				}
				if key.CompareAndSwap(nil, &events[0].Key) {
					inCall <- string(events[0].Payload)
				}
				if events[0].Key == *key.Load() {
					<-answer
				}
			})
			<-inCall
			p.miss()
			var n int
			var err error
			acted := make(chan struct{})
			go func() { n, err = act(b.w); close(acted) }()
			wait.Until(t, "what is not in the call is changed", func() bool { return b.parked(t, "gone") == 100 || ended(acted) })
			wait.For(300*time.Millisecond, func() bool { return ended(acted) })
			if ended(acted) {
				t.Fatalf("it did not wait for the call: %d, %v", n, err)
			}
			release()
			<-acted
			if err != nil {
				t.Fatal(err)
			}
			wait.Until(t, "all are published or letters", func() bool {
				return int64(p.count())+pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter") >= 300
			})
			all := p.published("gone")
			for key, payloads := range p.published("orders") {
				all[key] = append(all[key], payloads...)
			}
			for key, payloads := range b.lettersByKey(t, "gone", "open") {
				all[key] = append(all[key], payloads...)
			}
			wantKeys(t, all, events...)
			if in := p.published("gone"); len(in) == 0 || n == 300 {
				t.Errorf("%d were changed, and none was in a call", n)
			}
		})
	}
}

func ended(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestRelay_AnInterruptedChangeOfParkedEventsGoesOn(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	b := setup(t)
	p := &topics{missing: []string{"gone", "orders"}}
	stop := b.relays(t, p, relay.Config{})
	events := of("gone", 37, 0, 20_000)
	for chunk := range slices.Chunk(events, 10_000) {
		b.write(t, chunk...)
	}
	wait.Until(t, "all of them are parked", func() bool { return b.parked(t, "gone") == 20_000 })
	ctx, cancel := context.WithCancel(t.Context())
	o := ann
	o.ProgressFunc = func(p waiting.Progress) {
		if p.Changed >= p.Total/2 {
			cancel()
		}
	}
	first, err := b.w.Redirect(ctx, waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, "orders", o)
	if !errors.Is(err, context.Canceled) || first == 0 || first == 20_000 || !strings.Contains(err.Error(), fmt.Sprintf("after %d of 20000", first)) {
		t.Fatalf("%d, %v", first, err)
	}
	wait.Until(t, "what is redirected is parked anew", func() bool { return b.parked(t, "orders") == int64(first) })
	stop() // It needs no relay.
	second, err := b.w.Redirect(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, "orders", ann)
	if first+second != 20_000 || err != nil {
		t.Fatalf("%d after %d, %v", second, first, err)
	}
	if n := pgtest.Count(t, b.Pool, `select count(*) from holdfast.parked p where p.next_at < 'infinity' and p.place > (
		select min(h.place) from holdfast.parked h where h.topic = p.topic and h.key = p.key)`); n != 0 {
		t.Errorf("%d followers are due", n)
	}
	p.miss()
	b.relays(t, p, relay.Config{})
	wait.Until(t, "everything is published", func() bool { return p.count() >= 20_000 })
	wantKeys(t, p.published("orders"), events...)
}

// park writes rows as a relay does, in lane 0.
func (b bundle) park(t testing.TB, topic, key string, place int, id string, letter int64) {
	t.Helper()
	pgtest.Exec(t, b.Pool, "select setval('holdfast.parked_place', 1000)")
	pgtest.Exec(t, b.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload, attempts, errors, letter)
		values (0, $1, $2, $3, 'topic', 'infinity', $4, 's', 't', now(), '{}', 1, '{refused}', nullif($5::bigint, 0))`, topic, key, place, id, letter)
}

// relayLetter makes a dead letter of a relay in lane 0.
func (b bundle) relayLetter(t testing.TB, topic, key, id, state string, holds bool) int64 {
	t.Helper()
	return pgtest.Count(t, b.Pool, `insert into holdfast.letter (origin, reason, event_id, source, type, topic, key, time, payload, hash, lane, state, holds, attempts)
		values ('relay', 'refused', $1, 's', 't', $2, $3, now(), '{}', '', 0, $4, $5, 5) returning id`, id, topic, key, state, holds)
}

func TestRelay_AParkedReplayBelongsToItsLetter(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		act         func(ctx context.Context, w *waiting.Room) (int, error)
		state       string
		topic       string
		holds       bool
		letters     int64
		redirection bool
	}{
		"given up": {func(ctx context.Context, w *waiting.Room) (int, error) {
			return w.GiveUp(ctx, waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann)
		}, "open", "gone", true, 2, false},
		"discarded": {func(ctx context.Context, w *waiting.Room) (int, error) {
			return w.Discard(ctx, waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann)
		}, "discarded", "gone", true, 2, false},
		"redirected": {func(ctx context.Context, w *waiting.Room) (int, error) {
			return w.Redirect(ctx, waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, "orders", ann)
		}, "replaying", "orders", true, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			id := b.relayLetter(t, "gone", "k", "bad", "replaying", true)
			b.park(t, "gone", "k", -5000, "bad", id)
			b.park(t, "gone", "k", 7, "follower", 0)
			if n, err := row.act(t.Context(), b.w); n != 2 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where id = $1 and state = $2 and topic = $3 and holds and attempts = 5 + $4::int and cardinality(errors) = 1",
				id, row.state, row.topic, map[bool]int{false: 1}[row.redirection]); n != 1 {
				t.Error("its letter does not say so")
			}
			if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter"); n != row.letters {
				t.Errorf("there are %d letters, want %d", n, row.letters)
			}
			if !row.redirection {
				return
			}
			p := &topics{}
			b.relays(t, p, relay.Config{})
			wait.Until(t, "both are published", func() bool { return p.count() == 2 })
			if p.got[0].ID != "bad" || p.got[1].ID != "follower" || p.got[1].Topic != "orders" {
				t.Errorf("published are %+v", p.got)
			}
			wait.Until(t, "the letter is closed", func() bool {
				return pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'replayed'") == 1
			})
		})
	}
}

// A person has to decide about the dead letter first: what comes after it would lose its place.
func TestRelay_AKeyThatALetterHoldsIsNotRedirected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	held := b.relayLetter(t, "gone", "held", "bad", "open", true)
	b.park(t, "gone", "held", 1, "h1", 0)
	b.park(t, "gone", "held", 2, "h2", 0)
	b.park(t, "gone", "free", 3, "f1", 0)
	b.park(t, "gone", "", 4, "alone", 0)
	b.relayLetter(t, "orders", "free", "also bad", "open", true)
	n, err := b.w.Redirect(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, "orders", ann)
	if n != 2 || !errors.Is(err, waiting.ErrBehindLetter) || !strings.Contains(err.Error(), "2 events of the topic gone were left") {
		t.Fatalf("%d, %v", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.event where topic = 'orders' and id in ('f1', 'alone') and source = 's' and type = 't' and payload = '{}' and letter is null"); n != 2 {
		t.Errorf("%d are in the log again", n)
	}
	if err := b.d.Discard(t.Context(), held, "ann", "r"); err != nil {
		t.Fatal(err)
	}
	if n, err := b.w.Redirect(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone", Key: "held"}, "orders", ann); n != 2 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.pause_action where action = 'redirect' and topic = 'gone' and by = 'ann' and reason = 'to orders: it was retired'"); n != 2 {
		t.Errorf("of two commands %d are kept", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.event a join holdfast.event z on a.seq < z.seq where a.topic = 'orders' and a.id = 'h1' and z.id = 'h2'"); n != 1 {
		t.Error("the key's events are not in the log in their order")
	}
}

func TestRelay_EventsThatADeadLetterHoldsAreGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	held := b.relayLetter(t, "gone", "held", "bad", "open", true)
	b.park(t, "gone", "held", 1, "h1", 0)
	b.park(t, "gone", "other", 2, "o1", 0)
	o := ann
	o.DryRun = true
	if n, err := b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, o); n != 2 || err != nil || b.parked(t, "gone") != 2 {
		t.Fatalf("a dry run: %d, %v", n, err)
	}
	if n, err := b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone", Key: "held"}, ann); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where event_id = 'h1' and id > $1 and state = 'open' and not holds", held); n != 1 {
		t.Error("it is no letter")
	}
	if n := b.parked(t, "gone"); n != 1 {
		t.Errorf("%d of the other key are parked", n)
	}
}

// What is left of a key has a head, whatever became of the one that it had.
func TestRelay_WhatComesAfterAGivenUpBatchIsDue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.park(t, "gone", "k", 1, "first", 0)
	b.park(t, "gone", "k", 2000, "parked since then", 0)
	pgtest.Exec(t, b.Pool, "update holdfast.parked set why = 'follows' where id = 'parked since then'")
	if n, err := b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.parked where id = 'parked since then' and next_at <= now()"); n != 1 {
		t.Error("it waits for ever")
	}
}

func TestRelay_ATransactionChangesFewBytesOfParkedEvents(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	b := setup(t)
	for i := range 4 {
		b.park(t, "gone", "k", i, fmt.Sprint(i), 0)
		b.park(t, "orders", "k", i, fmt.Sprint(i), 0)
	}
	pgtest.Exec(t, b.Pool, "update holdfast.parked set payload = convert_to(repeat('x', case when place = 0 then 9 else 1 end * 1500000), 'UTF8')")
	var moved []int
	o := ann
	o.ProgressFunc = func(p waiting.Progress) { moved = append(moved, p.Changed) }
	if n, err := b.w.Redirect(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, "orders", o); n != 4 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "orders"}, o); n != 4 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if fmt.Sprint(moved) != "[1 3 4 1 3 4]" {
		t.Errorf("after each transaction so many were changed: %v; want the large one alone, then two of the others", moved)
	}
}

// A key has more events than a transaction changes. They keep their order, and only the first is due after each.
func TestRelay_ATransactionChangesFewParkedEvents(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b := setup(t)
	pgtest.Exec(t, b.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select 0, topic, 'k', nextval('holdfast.parked_place'), 'follows', 'infinity', n, 's', 't', now() from generate_series(1, 12000) n, unnest('{gone,orders}'::text[]) topic`)
	var moved []int
	o := ann
	o.ProgressFunc = func(p waiting.Progress) {
		moved = append(moved, p.Changed)
		if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.parked where next_at < 'infinity'"); n != map[bool]int64{true: 1}[p.Changed < p.Total] {
			t.Errorf("%d events of the key are due", n)
		}
	}
	if n, err := b.w.Redirect(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, "orders", o); n != 12_000 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from (select id::integer - lag(id::integer, 1, 0) over (order by seq) as step from holdfast.event) s where step <> 1"); n != 0 {
		t.Errorf("%d events are out of order", n)
	}
	if n, err := b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "orders"}, o); n != 12_000 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from (select event_id::integer - lag(event_id::integer, 1, 0) over (order by id) as step from holdfast.letter) s where step <> 1"); n != 0 {
		t.Errorf("%d letters are out of order", n)
	}
	if fmt.Sprint(moved) != "[5000 10000 12000 5000 10000 12000]" {
		t.Errorf("after each transaction so many were changed: %v", moved)
	}
}

func TestRelay_WhatIsWrongWithAChangeOfParkedEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.park(t, "gone", "k", 1, "first", 0)
	gone := waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}
	for want, act := range map[string]func() (int, error){
		"topic is empty: it must name": func() (int, error) { return b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay}, ann) },
		"by is empty: it must":         func() (int, error) { return b.w.Discard(t.Context(), gone, waiting.Options{}) },
		`nothing like that waits of the topic "orders": holdfast waiting groups lists the topics`: func() (int, error) {
			return b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "orders"}, ann)
		},
		`nothing like that waits of the key "x" of the topic "gone"`: func() (int, error) {
			return b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone", Key: "x"}, ann)
		},
		"consumer is empty: it must name": func() (int, error) { return b.w.Discard(t.Context(), waiting.Filter{Topic: "gone"}, ann) },
		"a consumer's events are meant": func() (int, error) {
			return b.w.Redirect(t.Context(), waiting.Filter{Consumer: "billing", Topic: "gone"}, "orders", ann)
		},
		"type is set: in relays": func() (int, error) {
			return b.w.GiveUp(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone", Type: "t"}, ann)
		},
		"only Cancel changes": func() (int, error) {
			return b.w.Discard(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone", Why: waiting.Scheduled}, ann)
		},
		"Retry is for events that nothing is before": func() (int, error) {
			return b.w.Retry(t.Context(), waiting.Filter{Consumer: "billing", Why: waiting.BehindEvent}, ann)
		},
		"no event of a consumer waits for that": func() (int, error) {
			return b.w.Retry(t.Context(), waiting.Filter{Consumer: "billing", Why: waiting.Topic}, ann)
		},
		`nothing like that waits in the consumer "billing"`: func() (int, error) {
			return b.w.Retry(t.Context(), waiting.Filter{Consumer: "billing"}, ann)
		},
		"the filter selects nothing that is scheduled": func() (int, error) {
			return b.w.Cancel(t.Context(), waiting.Filter{Consumer: "billing"}, ann)
		},
		`to is "gone": it must be another topic`:       func() (int, error) { return b.w.Redirect(t.Context(), gone, "gone", ann) },
		`to is "a b": it must be a Kafka topic's name`: func() (int, error) { return b.w.Redirect(t.Context(), gone, "a b", ann) },
		`to is "..": it must`:                          func() (int, error) { return b.w.Redirect(t.Context(), gone, "..", ann) },
		`to is "": it must`:                            func() (int, error) { return b.w.Redirect(t.Context(), gone, "", ann) },
	} {
		if n, err := act(); n != 0 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d, %v; want %s", n, err, want)
		}
	}
}
