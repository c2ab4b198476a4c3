package waiting_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/waiting"
)

var anns = waiting.Options{By: "ann", Reason: "it was called off"}

// reminders are n events that are due in an hour, each a second after the one before.
func reminders(n int) (events []holdfast.Event) {
	due := time.Now().Add(time.Hour).Truncate(time.Second)
	for i := range n {
		events = append(events, holdfast.Event{ID: fmt.Sprintf("r%03d", i), Source: "shop", Topic: "reminders", Type: "reminder", Key: fmt.Sprint("k", i%7),
			Payload: fmt.Appendf(nil, "payload %d", i), NotBefore: due.Add(time.Duration(i) * time.Second)})
	}
	return events
}

func TestScheduled_ScheduledEventsAreListedByTheirTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := reminders(25)
	b.write(t, all...)
	list := func(f waiting.Filter) (ids []string) {
		t.Helper()
		f.Why = waiting.Scheduled
		got, err := b.w.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range got {
			i := slices.IndexFunc(all, func(e holdfast.Event) bool { return e.ID == s.Event.ID })
			if e := all[i]; s.Event.Key != e.Key || s.Event.Topic != e.Topic || s.Event.Type != e.Type || s.Event.Source != e.Source || !s.Event.NotBefore.Equal(e.NotBefore) || s.Event.Payload != nil {
				t.Errorf("%+v, want %+v", s, e)
			}
			ids = append(ids, s.Event.ID)
		}
		return ids
	}
	if got := list(waiting.Filter{}); len(got) != 25 || !slices.IsSorted(got) {
		t.Errorf("the list is %q", got)
	}
	if got := list(waiting.Filter{Key: "k3", Topic: "reminders", Type: "reminder", Source: "shop"}); fmt.Sprint(got) != "[r003 r010 r017 r024]" {
		t.Errorf("of a key there are %q", got)
	}
	if got := list(waiting.Filter{EventID: "r011"}); fmt.Sprint(got) != "[r011]" {
		t.Errorf("of an id there is %q", got)
	}
	var paged []string
	f := waiting.Filter{Why: waiting.Scheduled, Limit: 10}
	for {
		page, err := b.w.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page {
			paged, f.After = append(paged, page[i].Event.ID), &page[i]
		}
		if len(page) < 10 {
			break
		}
	}
	if len(paged) != 25 || !slices.IsSorted(paged) {
		t.Errorf("the pages are %q", paged)
	}
}

func TestScheduled_ACancelledEventIsADiscardedDeadLetter(t *testing.T) {
	t.Parallel()
	b, p := setup(t), &topics{}
	b.write(t, reminders(250)...)
	if n, err := b.w.Cancel(t.Context(), waiting.Filter{Key: "k1"}, waiting.Options{DryRun: true}); n != 36 || err != nil {
		t.Errorf("a dry run: %d, %v", n, err)
	}
	if n, err := b.w.Cancel(t.Context(), waiting.Filter{EventID: "r000"}, anns); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	letters, err := b.d.List(t.Context(), dlq.Filter{State: dlq.StateDiscarded})
	if err != nil || len(letters) != 1 {
		t.Fatalf("%v, %v", letters, err)
	}
	if l := letters[0]; l.Origin != dlq.OriginRelay || l.Event.ID != "r000" || string(l.Event.Payload) != "payload 0" || l.Reason != "ann cancelled it before it was due: it was called off" || l.Holds {
		t.Errorf("%+v", l)
	}
	if actions, err := b.d.Actions(t.Context(), letters[0].ID); err != nil || len(actions) != 1 || actions[0].Action != "discard" || actions[0].By != "ann" || actions[0].Reason != anns.Reason {
		t.Errorf("%+v, %v", actions, err)
	}
	if n, err := b.w.Cancel(t.Context(), waiting.Filter{Topic: "reminders", Limit: 105}, anns); n != 105 || err != nil {
		t.Errorf("%d were cancelled, %v", n, err)
	}
	if n, err := b.w.Cancel(t.Context(), waiting.Filter{}, anns); n != 144 || err != nil {
		t.Errorf("%d were cancelled, %v", n, err)
	}
	if _, err := b.w.Cancel(t.Context(), waiting.Filter{}, anns); !errors.Is(err, waiting.ErrNotFound) {
		t.Errorf("nothing is left: %v", err)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.scheduled"); n != 0 {
		t.Errorf("%d are still scheduled", n)
	}
	b.relays(t, p, relay.Config{})
	b.write(t, of("mail", 1, 0, 1)...)
	wait.Until(t, "a relay is there", func() bool { return p.count() == 1 })
}

// The error says where the event is.
func TestScheduled_ACancelThatCameTooLateSaysSo(t *testing.T) {
	t.Parallel()
	b, p := setup(t), &topics{missing: []string{"gone"}}
	b.relays(t, p, relay.Config{})
	past := time.Now().Add(-time.Minute)
	b.write(t, holdfast.Event{ID: "published", Topic: "reminders", Type: "t", NotBefore: past}, holdfast.Event{ID: "parked", Topic: "gone", Type: "t", NotBefore: past})
	wait.Until(t, "one is published, one is parked", func() bool { return p.count() == 1 && b.parked(t, "gone") == 1 })
	later := reminders(3)
	b.write(t, later...)
	if n, err := b.w.Cancel(t.Context(), waiting.Filter{EventID: "r002"}, anns); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := b.w.Cancel(t.Context(), waiting.Filter{EventID: "r000", Topic: "typo"}, anns); n != 0 || !errors.Is(err, waiting.ErrNotFound) || !strings.Contains(err.Error(), "event r000 is scheduled, but the filter has another topic") {
		t.Errorf("another topic: %d, %v", n, err)
	}
	pgtest.Exec(t, b.Pool, "update holdfast.lane set owner = 'nobody', epoch = epoch + 1, lease_until = now() + interval '1 hour'") // no relay moves what is due
	pgtest.Exec(t, b.Pool, "update holdfast.scheduled set due_at = now() - interval '1 second' where id = 'r001'")
	tx, err := b.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	pgtest.Exec(t, tx, "delete from holdfast.scheduled where id = 'r001'") // as a relay does that moves it
	for id, says := range map[string]string{
		"published": "it is in the log: it is published, or about to be",
		"parked":    "it waits in a relay",
		"r002":      "event r002 is a dead letter",
		"r001":      "a relay is moving event r001 into the log",
		"never":     "event never is unknown here",
	} {
		n, err := b.w.Cancel(t.Context(), waiting.Filter{EventID: id}, anns)
		if n != 0 || !errors.Is(err, waiting.ErrNotFound) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %d, %v; want %q", id, n, err, says)
		}
	}
	pgtest.Exec(t, tx, "savepoint before")
	pgtest.Exec(t, tx, "select from holdfast.scheduled where id = 'r000' for update")
	if n, err := b.w.Cancel(t.Context(), waiting.Filter{EventID: "r000"}, anns); n != 0 || !errors.Is(err, waiting.ErrNotFound) || !strings.Contains(err.Error(), "event r000 is scheduled, but the filter has another topic, key or type, or another session has locked the event") {
		t.Errorf("of a locked event: %d, %v", n, err)
	}
	pgtest.Exec(t, tx, "rollback to before")
	if n, err := b.w.Cancel(t.Context(), waiting.Filter{Topic: "reminders"}, anns); n != 1 || err != nil {
		t.Errorf("%d were cancelled beside one that is being moved, %v", n, err)
	}
}
