package dlq_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Three letters that differ in everything, in the order of their values: each field of a filter has to tell the one in the middle from
// both others by itself.
func TestFilter_EveryFieldOfAFilterChoosesByItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	var ids []int64
	for n, consumer := range []string{"", "billing", "mail"} {
		origin := "inbox"
		if consumer == "" {
			origin = "relay"
		}
		ids = append(ids, pgtest.Count(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, hash, last_at)
			values ($1, $2, 'r', 'f' || $3::int, 'e' || $3::int, 's' || $3::int, 't' || $3::int, 'o' || $3::int, 'k' || $3::int, now(), '', $4::timestamptz + $3::int * interval '1 second') returning id`,
			origin, consumer, n, old))
	}
	first, middle, last := ids[0], ids[1], ids[2]
	at := old.Add(time.Second) // of the middle one
	for _, c := range []struct {
		name   string
		filter dlq.Filter
		want   []int64
	}{
		{"nothing", dlq.Filter{}, ids},
		{"ids", dlq.Filter{IDs: []int64{middle, 999}}, ids[1:2]},
		{"origin relay", dlq.Filter{Origin: dlq.OriginRelay}, ids[:1]},
		{"origin inbox", dlq.Filter{Origin: dlq.OriginInbox}, ids[1:]},
		{"consumer", dlq.Filter{Consumer: "billing"}, ids[1:2]},
		{"type", dlq.Filter{Type: "t1"}, ids[1:2]},
		{"topic", dlq.Filter{Topic: "o1"}, ids[1:2]},
		{"key", dlq.Filter{Key: "k1"}, ids[1:2]},
		{"source", dlq.Filter{Source: "s1"}, ids[1:2]},
		{"event id", dlq.Filter{EventID: "e1"}, ids[1:2]},
		{"fingerprint", dlq.Filter{Fingerprint: "f1"}, ids[1:2]},
		{"since", dlq.Filter{Since: at.Add(time.Microsecond)}, ids[2:]},
		{"since is inclusive", dlq.Filter{Since: at}, ids[1:]},
		{"until", dlq.Filter{Until: at.Add(time.Microsecond)}, ids[:2]},
		{"until is exclusive", dlq.Filter{Until: at}, ids[:1]},
		{"after", dlq.Filter{After: middle}, ids[2:]},
		{"limit", dlq.Filter{Limit: 1}, ids[:1]},
	} {
		letters, err := b.d.List(t.Context(), c.filter)
		if got := idsOf(letters, func(l dlq.Letter) int64 { return l.ID }); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: list has letters %v, want %v: %v", c.name, got, c.want, err)
		}
		// A look ahead counts what a walk visits, and an action visits it.
		if n, err := b.d.Replay(t.Context(), c.filter, dlq.ReplayOptions{DryRun: true}); err != nil || n != len(c.want) {
			t.Errorf("%s: %d letters would be replayed, want %d: %v", c.name, n, len(c.want), err)
		}
		n, err := b.d.DiscardAll(t.Context(), c.filter, dlq.DiscardOptions{By: "ann"})
		if err != nil || n != len(c.want) || pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'discarded' and id = any ($1)", c.want) != int64(n) {
			t.Errorf("%s: %d letters were discarded, want %v: %v", c.name, n, c.want, err)
		}
		pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'open', last_at = $1::timestamptz + (id - $2) * interval '1 second'", old, first)
		if c.name == "limit" {
			continue // of groups it means something else
		}
		groups, err := b.d.Groups(t.Context(), c.filter)
		got := idsOf(groups, func(g dlq.Group) int64 { return g.Letter })
		if slices.Sort(got); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: groups have letters %v, want %v: %v", c.name, got, c.want, err)
		}
	}
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'discarded' where id = $1", last)
	for state, want := range map[string][]int64{"": ids[:2], dlq.StateOpen: ids[:2], dlq.StateDiscarded: ids[2:], dlq.StateReplayed: nil, dlq.StateAny: ids} {
		letters, err := b.d.List(t.Context(), dlq.Filter{State: state})
		if got := idsOf(letters, func(l dlq.Letter) int64 { return l.ID }); err != nil || !slices.Equal(got, want) {
			t.Errorf("in state %q: list has letters %v, want %v: %v", state, got, want, err)
		}
		groups, err := b.d.Groups(t.Context(), dlq.Filter{State: state})
		if err != nil || len(groups) != len(want) || slices.ContainsFunc(groups, func(g dlq.Group) bool { return g.Letters != 1 }) {
			t.Errorf("in state %q: groups are %+v: %v", state, groups, err)
		}
	}
}

func idsOf[T any](all []T, of func(T) int64) (ids []int64) {
	for _, one := range all {
		ids = append(ids, of(one))
	}
	return ids
}

func TestFilter_GroupsCountLettersOfOneKindTheMostFrequentFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := time.Now().Add(-3 * time.Hour).UTC().Truncate(time.Second)
	add := func(n int, consumer, kind string) {
		t.Helper()
		pgtest.Exec(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, hash, first_at, last_at, holds)
			select 'inbox', $2, $3 || ' ' || n, $3, gen_random_uuid(), 's', 't', 'orders', '', now(), '', $4::timestamptz + n * interval '1 minute', $4::timestamptz + n * interval '2 minutes', n = 1
			  from generate_series(1, $1::int) n`, n, consumer, kind, first)
	}
	add(3, "billing", "timeout")
	add(5, "billing", "no such customer")
	add(1, "mail", "timeout")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'discarded' where id = 1")
	groups, err := b.d.Groups(t.Context(), dlq.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	want := []dlq.Group{
		{Fingerprint: "no such customer", Consumer: "billing", Letters: 5, Holding: 1, FirstAt: first.Add(time.Minute), LastAt: first.Add(10 * time.Minute), Letter: 8, Reason: "no such customer 5"},
		{Fingerprint: "timeout", Consumer: "billing", Letters: 2, Holding: 0, FirstAt: first.Add(2 * time.Minute), LastAt: first.Add(6 * time.Minute), Letter: 3, Reason: "timeout 3"},
		{Fingerprint: "timeout", Consumer: "mail", Letters: 1, Holding: 1, FirstAt: first.Add(time.Minute), LastAt: first.Add(2 * time.Minute), Letter: 9, Reason: "timeout 1"},
	}
	for i := range groups {
		groups[i].FirstAt, groups[i].LastAt = groups[i].FirstAt.UTC(), groups[i].LastAt.UTC()
	}
	for i := range want {
		want[i].Origin, want[i].Type, want[i].Topic = "inbox", "t", "orders"
	}
	if got, want := fmt.Sprintf("%+v", groups), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if groups, err := b.d.Groups(t.Context(), dlq.Filter{Limit: 1}); err != nil || len(groups) != 1 || groups[0].Letters != 5 {
		t.Errorf("the first group alone is %+v, %v", groups, err)
	}
	if groups, err := b.d.Groups(t.Context(), dlq.Filter{Consumer: "nobody"}); err != nil || len(groups) != 0 {
		t.Errorf("no letters are %+v, %v", groups, err)
	}
	if _, err := b.d.Groups(t.Context(), dlq.Filter{Origin: "kafka"}); err == nil {
		t.Error("a filter that cannot be meant was taken")
	}
}
