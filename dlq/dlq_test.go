package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestDLQ_AListIsTheOpenLettersThatTheFilterChooses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := rows.Dead(t, b.Pool, "billing", "k1", "e1")
	second := rows.Dead(t, b.Pool, "mail", "k2", "e2")
	third := rows.Dead(t, b.Pool, "", "k1", "e3")
	gone := rows.Dead(t, b.Pool, "", "k1", "e4")
	if err := b.d.Discard(t.Context(), gone, "ann", "a test order"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		filter dlq.Filter
		want   []int64
	}{
		{"nothing asked", dlq.Filter{}, []int64{first, second, third}},
		{"by consumer", dlq.Filter{Consumer: "mail"}, []int64{second}},
		{"by origin", dlq.Filter{Origin: dlq.OriginRelay}, []int64{third}},
		{"by key and topic", dlq.Filter{Topic: "orders", Key: "k1"}, []int64{first, third}},
		{"by event", dlq.Filter{EventID: "e2", Source: "shop", Type: "order.placed"}, []int64{second}},
		{"by id", dlq.Filter{IDs: []int64{first, gone}}, []int64{first}},
		{"by state", dlq.Filter{State: dlq.StateDiscarded}, []int64{gone}},
		{"any state, second page", dlq.Filter{State: "any", After: second, Limit: 1}, []int64{third}},
		{"by fingerprint", dlq.Filter{Fingerprint: "order.placed: it failed", Limit: 2}, []int64{first, second}},
		{"of the future", dlq.Filter{Since: time.Now().Add(time.Hour)}, nil},
		{"of the past", dlq.Filter{Until: time.Now().Add(-time.Hour)}, nil},
	} {
		letters, err := b.d.List(t.Context(), c.filter)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, l := range letters {
			got = append(got, l.ID)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	l, err := b.d.Get(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if l.Event.ID != "e1" || l.Event.Headers["a"] != "b" || string(l.Event.Payload) != "{}" || len(l.Errors) != 2 || l.Attempts != 5 || l.Partition != -1 || l.Version != 1 {
		t.Errorf("got %+v", l)
	}
	if _, err := b.d.Get(t.Context(), 999); !errors.Is(err, dlq.ErrNotFound) || !strings.Contains(err.Error(), "999") {
		t.Errorf("got %v, want ErrNotFound and the id", err)
	}
}

func TestDLQ_TwoPeopleWhoReplayAtOnceReplayALetterOnce(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b := setup(t)
	for i := range 40 {
		rows.Dead(t, b.Pool, "billing", fmt.Sprint("k", i%7), fmt.Sprint("inbox ", i))
		rows.Dead(t, b.Pool, "", fmt.Sprint("k", i%7), fmt.Sprint("relay ", i))
	}
	var total atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			n, err := b.d.Replay(context.Background(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", Reason: "fixed"})
			if err != nil {
				t.Error(err)
			}
			total.Add(int64(n))
		})
	}
	wg.Wait()
	if total.Load() != 80 {
		t.Errorf("80 letters were replayed %d times", total.Load())
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored"); n != 40 {
		t.Errorf("%d events are stored, want 40", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.event where letter is not null"); n != 40 {
		t.Errorf("%d events are in the log, want 40", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where action = 'replay' and by = 'ann' and reason = 'fixed'"); n != 80 {
		t.Errorf("%d actions are recorded, want 80", n)
	}
}

func TestDLQ_AReplayGoesToTheHeadOfItsKeyAndKeepsTheOrderOfTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 3 {
		rows.Dead(t, b.Pool, "billing", "k", fmt.Sprint("dead ", i))
		rows.Dead(t, b.Pool, "", "k", fmt.Sprint("dead ", i))
	}
	pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		values ('billing', 'orders', 'k', nextval('holdfast.stored_place'), 'shop', 'follower', 't', now(), '', 'infinity')`)
	if _, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"select string_agg(event_id, ', ' order by place) from holdfast.stored": "dead 0, dead 1, dead 2, follower",
	} {
		var got string
		if err := b.QueryRow(t.Context(), query).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDLQ_ADryRunCountsAndChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rows.Dead(t, b.Pool, "billing", "k", "e")
	n, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{DryRun: true})
	if err != nil || n != 1 {
		t.Errorf("got %d, %v", n, err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'open'"); n != 1 {
		t.Error("the dry run changed the letter")
	}
	if n := pgtest.Count(t, b.Pool, "select (select count(*) from holdfast.stored) + (select count(*) from holdfast.letter_action)"); n != 0 {
		t.Error("the dry run left something behind")
	}
}

func TestDLQ_AnEditKeepsTheOldPayloadAndChangesWhatIdentifiesTheEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inbox, relay := rows.Dead(t, b.Pool, "billing", "k", "e"), rows.Dead(t, b.Pool, "", "k", "e")
	for _, id := range []int64{inbox, relay} {
		if err := b.d.Edit(t.Context(), id, []byte(`{"fixed": true}`), "ann", "a typo"); err != nil {
			t.Fatal(err)
		}
		l, err := b.d.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if string(l.Event.Payload) != `{"fixed": true}` || l.Version != 2 {
			t.Errorf("got %q, version %d", l.Event.Payload, l.Version)
		}
		if changed := l.Event.ID != "e"; changed != (id == relay) {
			t.Errorf("%s: the event id is %q; a relay's edit makes a new one, an inbox's keeps it", l.Origin, l.Event.ID)
		}
	}
	if n := pgtest.Count(t, b.Pool, `select count(*) from holdfast.letter_action where action = 'edit' and payload = '{}' and version = 1 and by = 'ann'`); n != 2 {
		t.Errorf("%d old versions are kept, want 2", n)
	}
	if n := pgtest.Count(t, b.Pool, `select count(*) from holdfast.inbox i join holdfast.letter l using (consumer, event_id) where i.hash = l.hash and i.hash = sha256('{"fixed": true}')`); n != 1 {
		t.Error("the inbox remembers the old payload's hash")
	}
}

func TestDLQ_WhatWasDealtWithIsNotDealtWithAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := rows.Dead(t, b.Pool, "billing", "k", "e")
	if err := b.d.Discard(t.Context(), id, "ann", "not worth it"); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.inbox where result = 'discarded'"); n != 1 {
		t.Error("the inbox does not know that the event was discarded")
	}
	if err := b.d.Discard(t.Context(), id, "bob", ""); !errors.Is(err, dlq.ErrNotOpen) {
		t.Errorf("Discard: got %v", err)
	}
	if err := b.d.Edit(t.Context(), id, nil, "bob", ""); !errors.Is(err, dlq.ErrNotOpen) {
		t.Errorf("Edit: got %v", err)
	}
	if n, err := b.d.Replay(t.Context(), dlq.Filter{IDs: []int64{id}}, dlq.ReplayOptions{By: "bob"}); n != 0 || err != nil {
		t.Errorf("Replay: got %d, %v", n, err)
	}
	if err := b.d.Discard(t.Context(), 999, "bob", ""); !errors.Is(err, dlq.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestDLQ_WhoeverActsHasToSayWho(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := rows.Dead(t, b.Pool, "billing", "k", "e")
	_, replay := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{})
	for name, err := range map[string]error{"Replay": replay, "Discard": b.d.Discard(t.Context(), id, "", "x"), "Edit": b.d.Edit(t.Context(), id, nil, "", "x")} {
		if err == nil || !strings.Contains(err.Error(), "by is empty") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// One form for every problem: field, value and rule.
func TestDLQ_EveryProblemNamesFieldValueAndRule(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := rows.Dead(t, b.Pool, "billing", "k", "e")
	form := regexp.MustCompile(`^[a-z][a-z ]* is .+: it must `)
	_, config := dlq.New(nil, dlq.Config{Schema: "No"})
	_, list := b.d.List(t.Context(), dlq.Filter{State: "lost", Origin: "moon", Limit: -1, Since: time.Unix(2, 0), Until: time.Unix(1, 0)})
	_, page := b.d.List(t.Context(), dlq.Filter{Limit: 1001})
	_, replay := b.d.Replay(t.Context(), dlq.Filter{State: "replayed"}, dlq.ReplayOptions{Rate: -1, Anew: true, Reason: strings.Repeat("x", 2001)})
	_, named := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", Name: "\xff"})
	_, spanless := b.d.Purge(t.Context(), dlq.PurgeOptions{})
	_, batch := b.d.Purge(t.Context(), dlq.PurgeOptions{OlderThan: time.Hour, Batch: -1})
	for prefix, err := range map[string]error{
		"dlq config: ": config, "list letters: ": list, "replay letters: ": replay, fmt.Sprintf("discard letter %d: ", id): b.d.Discard(t.Context(), id, "a\x00", ""),
	} {
		for _, problem := range strings.Split(strings.TrimPrefix(err.Error(), prefix), "\n") {
			if !form.MatchString(problem) {
				t.Errorf("%q: want the form of %q", problem, "limit is -1: it must be positive")
			}
		}
	}
	for _, err := range []error{page, named, spanless, batch} {
		if _, problem, _ := strings.Cut(err.Error(), ": "); !form.MatchString(problem) {
			t.Errorf("%q: want the form of %q", problem, "limit is -1: it must be positive")
		}
	}
}

func TestDLQ_AReplayKeepsToItsRateAndStopsWithItsContext(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b := setup(t)
	for i := range 100 {
		rows.Dead(t, b.Pool, "billing", "", fmt.Sprint("e", i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	n, err := b.d.Replay(ctx, dlq.Filter{}, dlq.ReplayOptions{By: "ann", Rate: 10, ProgressFunc: func(p dlq.Progress) {
		if p.Moved == 11 {
			cancel()
		}
	}})
	if took := time.Since(began); !errors.Is(err, context.Canceled) || n != 11 || took < time.Second {
		t.Errorf("got %d letters in %v at 10/s, %v, want 11 in a second or more", n, took, err)
	}
	m, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"})
	if err != nil || n+m != 100 {
		t.Errorf("calling again replayed %d: %d of 100 in all, %v", m, n+m, err)
	}
}

func TestDLQ_EverythingWorksInEveryExecModeOfPgx(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	b := setup(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			pool := b.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			d, err := dlq.New(pool, dlq.Config{})
			if err != nil {
				t.Fatal(err)
			}
			relay, inbox, third := rows.Dead(t, b.Pool, "", "k", mode.String()), rows.Dead(t, b.Pool, "billing", "k", mode.String()), rows.Dead(t, b.Pool, "mail", "k", mode.String())
			if err := d.Edit(t.Context(), relay, []byte{0, '\'', '\\', 0xff}, "o'neill", `\`); err != nil {
				t.Error(err)
			}
			if err := d.Discard(t.Context(), third, "o'neill", `\`); err != nil {
				t.Error(err)
			}
			if n, err := d.Replay(t.Context(), dlq.Filter{IDs: []int64{relay, inbox}, Since: time.Now().Add(-time.Hour)}, dlq.ReplayOptions{By: "o'neill", Name: `o'neill\`}); n != 2 || err != nil {
				t.Errorf("got %d, %v", n, err)
			}
			if groups, err := d.Groups(t.Context(), dlq.Filter{IDs: []int64{relay, inbox}, State: dlq.StateAny}); len(groups) != 2 || err != nil {
				t.Errorf("got %+v, %v", groups, err)
			}
			if n, err := d.Purge(t.Context(), dlq.PurgeOptions{OlderThan: time.Hour, DryRun: true}); n != 0 || err != nil {
				t.Errorf("got %d, %v", n, err)
			}
			if n, err := d.Purge(t.Context(), dlq.PurgeOptions{OlderThan: time.Hour}); n != 0 || err != nil {
				t.Errorf("got %d, %v", n, err)
			}
		})
	}
}
