package dlq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Two letters that differ in everything: each field of a filter has to tell them apart by itself.
func TestFilter_EveryFieldOfAFilterChoosesByItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	one := pgtest.Count(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, hash, last_at)
		values ('inbox', 'billing', 'r', 'f1', 'e1', 's1', 't1', 'o1', 'k1', now(), '', $1) returning id`, old)
	two := pgtest.Count(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, hash)
		values ('relay', '', 'r', 'f2', 'e2', 's2', 't2', 'o2', 'k2', now(), '') returning id`)
	for _, c := range []struct {
		name   string
		filter dlq.Filter
		want   int64
	}{
		{"ids", dlq.Filter{IDs: []int64{one, 999}}, one},
		{"origin", dlq.Filter{Origin: dlq.OriginRelay}, two},
		{"consumer", dlq.Filter{Consumer: "billing"}, one},
		{"type", dlq.Filter{Type: "t2"}, two},
		{"topic", dlq.Filter{Topic: "o1"}, one},
		{"key", dlq.Filter{Key: "k2"}, two},
		{"source", dlq.Filter{Source: "s1"}, one},
		{"event id", dlq.Filter{EventID: "e2"}, two},
		{"fingerprint", dlq.Filter{Fingerprint: "f1"}, one},
		{"since", dlq.Filter{Since: old.Add(time.Second)}, two},
		{"since is inclusive", dlq.Filter{Since: old, Until: old.Add(time.Microsecond)}, one},
		{"until", dlq.Filter{Until: old.Add(time.Second)}, one},
		{"after", dlq.Filter{After: one}, two},
		{"limit", dlq.Filter{Limit: 1}, one},
	} {
		letters, err := b.d.List(t.Context(), c.filter)
		if err != nil || len(letters) != 1 || letters[0].ID != c.want {
			t.Errorf("%s: list has %d letters, want letter %d alone: %v", c.name, len(letters), c.want, err)
		}
		n, err := b.d.Replay(t.Context(), c.filter, dlq.ReplayOptions{DryRun: true})
		if err != nil || n != 1 {
			t.Errorf("%s: %d letters would be replayed, want 1: %v", c.name, n, err)
		}
		if c.name == "limit" {
			continue // of groups it means something else
		}
		groups, err := b.d.Groups(t.Context(), c.filter)
		if err != nil || len(groups) != 1 || groups[0].Letters != 1 || groups[0].Letter != c.want {
			t.Errorf("%s: groups %+v, want letter %d alone: %v", c.name, groups, c.want, err)
		}
	}
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
