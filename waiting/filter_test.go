package waiting_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/waiting"
)

// In each place three events wait that differ in everything, in the order of their values: each field of a filter has to tell the one in
// the middle from both others by itself.
func TestFilter_EveryFieldOfAFilterChoosesByItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pgtest.Exec(t, b.Pool, `insert into holdfast.parked (lane, topic, key, place, why, partition, next_at, id, source, type, time, payload, attempts)
		select n, 'o' || n, 'k' || n, 1000 + n, 'partition', n, 'infinity', 'e' || n, 's' || n, 't' || n, now(), '{}', 1 from generate_series(0, 2) n`)
	pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, next_at, attempts, errors)
		select (array['a', 'billing', 'mail'])[n + 1], 'o' || n, 'k' || n, n, 's' || n, 'e' || n, 't' || n, now(), '{}', '', now() + interval '1 hour', 2, '{no}' from generate_series(0, 2) n`)
	pgtest.Exec(t, b.Pool, `insert into holdfast.consumer_type (consumer, type, node, seen_until)
		select (array['a', 'billing', 'mail'])[n + 1], 't' || n, 'n', now() + interval '1 hour' from generate_series(0, 2) n`)
	for n := range 3 {
		of := func(name string) string { return name + strconv.Itoa(n) }
		b.write(t, holdfast.Event{
			ID:        of("e"),
			Source:    of("s"),
			Type:      of("t"),
			Topic:     of("o"),
			Key:       of("k"),
			Payload:   []byte(`{}`),
			NotBefore: time.Now().Add(time.Duration(n+1) * time.Hour),
		})
	}
	name := func(consumer string, why waiting.Why, topic string) string {
		where := map[waiting.Why]string{waiting.Scheduled: "schedule", waiting.Partition: "relay", waiting.Failed: consumer}[why]
		return where + " " + topic
	}
	zero, one := 0, 1
	const all = "relay o0, relay o1, relay o2, a o0, billing o1, mail o2, schedule o0, schedule o1, schedule o2"
	const middle = "relay o1, billing o1, schedule o1"
	for field, row := range map[string]struct {
		filter waiting.Filter
		want   string
	}{
		"nothing":              {waiting.Filter{}, all},
		"the topic":            {waiting.Filter{Topic: "o1"}, middle},
		"the key":              {waiting.Filter{Key: "k1"}, middle},
		"the type":             {waiting.Filter{Type: "t1"}, middle},
		"the source":           {waiting.Filter{Source: "s1"}, middle},
		"the event id":         {waiting.Filter{EventID: "e1"}, middle},
		"the consumer":         {waiting.Filter{Consumer: "billing"}, "billing o1"},
		"the partition":        {waiting.Filter{Partition: &one}, "relay o1"},
		"the first partition":  {waiting.Filter{Partition: &zero}, "relay o0"},
		"heads, as all are":    {waiting.Filter{Heads: true}, all},
		"a reason in a relay":  {waiting.Filter{Why: waiting.Partition}, "relay o0, relay o1, relay o2"},
		"one in consumers":     {waiting.Filter{Why: waiting.Failed}, "a o0, billing o1, mail o2"},
		"one in the schedule":  {waiting.Filter{Why: waiting.Scheduled}, "schedule o0, schedule o1, schedule o2"},
		"a reason that is not": {waiting.Filter{Why: waiting.Paused}, ""},
	} {
		var listed, grouped []string
		f := row.filter
		for f.Limit = 2; ; { // A page ends in a place, and between two.
			page, err := b.w.List(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				listed = append(listed, name(e.Consumer, e.Why, e.Event.Topic))
			}
			if len(page) < f.Limit || len(listed) > 9 {
				break
			}
			f.After = &page[len(page)-1]
		}
		if got := strings.Join(listed, ", "); got != row.want {
			t.Errorf("%s: the list has %s; want %s", field, got, row.want)
		}
		groups, err := b.w.Groups(t.Context(), row.filter)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			if g.Events != 1 {
				t.Errorf("%s: %+v", field, g)
			}
			grouped = append(grouped, name(g.Consumer, g.Why, g.Topic))
		}
		want := strings.Split(row.want, ", ")
		if row.want == "" {
			want = nil
		}
		slices.Sort(grouped)
		if slices.Sort(want); fmt.Sprint(grouped) != fmt.Sprint(want) {
			t.Errorf("%s: the groups have %q; want %q", field, grouped, want)
		}
	}
	for n := range 3 {
		details, err := b.w.Show(t.Context(), waiting.Filter{EventID: "e" + strconv.Itoa(n), Source: "s" + strconv.Itoa(n)}, true)
		if err != nil || len(details) != 3 {
			t.Errorf("of e%d are shown %+v, %v", n, details, err)
		}
		for _, d := range details {
			if d.Event.Event.ID != "e"+strconv.Itoa(n) || string(d.Event.Event.Payload) != "{}" {
				t.Errorf("of e%d is shown %+v", n, d)
			}
		}
	}
}
