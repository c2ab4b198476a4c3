package relay

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// queuedAt is a destination with one event, not to be sent before retryAt.
func queuedAt(retryAt time.Time) *destination {
	return &destination{queue: []*pending{{event: &logEvent{Event: holdfast.Event{Key: "acme/1"}}}}, retryAt: retryAt}
}

// inCallSince is a destination whose call has been under way since began.
func inCallSince(began time.Time, share *laneShare) *destination {
	return &destination{call: []*pending{{}}, began: began, share: share}
}

// A time in the past for what cannot be sent would make a lane turn without a pause until something else happens.
func TestSending_SomethingCanBeSentWhenTimeOrAnAnswerSaysSo(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	never := time.Time{}
	many := func(n int, began time.Time, share *laneShare, also ...*destination) []*destination {
		for range n {
			also = append(also, inCallSince(began, share))
		}
		return also
	}
	for name, c := range map[string]struct {
		s    *sending
		want time.Time
	}{
		"nothing is queued":                            {&sending{destinations: []*destination{{}}}, never},
		"what is queued has a call under way":          {&sending{calls: 1, destinations: []*destination{{queue: queuedAt(never).queue, call: []*pending{{}}}}}, never},
		"the first of two":                             {&sending{destinations: []*destination{queuedAt(in(2)), queuedAt(in(1)), queuedAt(in(3))}}, in(1)},
		"its turn for a call is announced":             {&sending{refused: true, destinations: []*destination{queuedAt(in(1))}}, never},
		"a noisy tenant's turn is":                     {&sending{separator: "/", noisy: []string{"acme"}, refusedNoisy: true, destinations: []*destination{queuedAt(in(1))}}, never},
		"another tenant waits for no turn":             {&sending{separator: "/", noisy: []string{"beta"}, refusedNoisy: true, destinations: []*destination{queuedAt(in(1))}}, in(1)},
		"a noisy tenant without a turn to wait for":    {&sending{separator: "/", noisy: []string{"acme"}, destinations: []*destination{queuedAt(in(1))}}, in(1)},
		"an outage, with a call that tells of its end": {&sending{outage: &hold{nextAt: in(5)}, calls: 1, destinations: []*destination{queuedAt(in(1))}}, never},
		"an outage":                      {&sending{outage: &hold{nextAt: in(5)}, destinations: []*destination{queuedAt(in(1))}}, in(5)},
		"an outage that ends before":     {&sending{outage: &hold{nextAt: in(5)}, destinations: []*destination{queuedAt(in(9))}}, in(9)},
		"one call more":                  {&sending{calls: maxCalls - 1, destinations: many(maxCalls-1, now, nil, queuedAt(in(1)))}, in(1)},
		"all calls are under way":        {&sending{calls: maxCalls, destinations: many(maxCalls-1, now, nil, queuedAt(in(1)), inCallSince(in(-1), nil))}, in(slowAfter - 1)},
		"one of them is slow":            {&sending{calls: maxCalls, destinations: many(maxCalls-1, now, nil, queuedAt(in(1)), inCallSince(in(-slowAfter), nil))}, in(1)},
		"all of them, and shared ones":   {&sending{calls: maxCalls + 1, sharing: 1, destinations: many(maxCalls, now, nil, queuedAt(in(1)), inCallSince(in(-slowAfter+1), &laneShare{}))}, in(slowAfter)},
		"all that count, and a slow one": {&sending{calls: maxCalls + 1, destinations: many(maxCalls, in(-300*time.Millisecond), nil, queuedAt(in(time.Second)), inCallSince(in(-2*time.Second), nil))}, in(700 * time.Millisecond)},
		"an outage, and nothing to send": {&sending{outage: &hold{nextAt: in(-1)}}, never},
		"shared calls do not count":      {&sending{calls: maxCalls + 8, sharing: maxCalls + 8, destinations: many(maxCalls+8, in(-slowAfter), &laneShare{}, queuedAt(in(1)))}, in(1)},
	} {
		if got := c.s.sendAt(now); !got.Equal(c.want) {
			t.Errorf("%s: it can send in %v, want %v", name, got.Sub(now), c.want.Sub(now))
		}
	}
}

func TestSending_ACallThatIsSlowGivesItsSlotBackOnce(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	slots := newCallSlots(1)
	l := &lane{}
	slow := &destination{call: []*pending{{}}, began: now.Add(-slowAfter), slot: slots.take(l)}
	s := sending{destinations: []*destination{{}, inCallSince(now, nil), slow}}
	s.freeSlow(now.Add(-1))
	if slow.slot == nil || slots.take(l) != nil {
		t.Fatal("a call gives its slot back before it is slow")
	}
	s.freeSlow(now)
	if slow.slot != nil || slots.take(l) == nil {
		t.Fatal("a slow call keeps its slot")
	}
	s.freeSlow(now)
	if slots.take(l) != nil {
		t.Error("there are more slots than one")
	}
}

func TestSending_CallsAreCountedAndSharedOnesApart(t *testing.T) {
	t.Parallel()
	var s sending
	s.started(false)
	s.started(true)
	if s.calls != 2 || s.sharing != 1 || s.quiet() {
		t.Errorf("%d calls, %d shared, quiet: %v", s.calls, s.sharing, s.quiet())
	}
	s.returned(false)
	s.returned(true)
	if s.calls != 0 || s.sharing != 0 || !s.quiet() {
		t.Errorf("%d calls, %d shared, quiet: %v; want none", s.calls, s.sharing, s.quiet())
	}
	for _, waits := range []*sending{{refused: true}, {refusedNoisy: true}} {
		if waits.quiet() {
			t.Errorf("it is quiet and waits for a slot: %v, of a noisy tenant: %v", waits.refused, waits.refusedNoisy)
		}
	}
	queued := queuedAt(time.Time{})
	s.destinations = []*destination{{}, queued, inCallSince(time.Time{}, nil), {}}
	if !s.anyQueued() || s.wide(2) || !s.wide(1) {
		t.Errorf("of two partitions with something: any queued %v, more than two %v, more than one %v", s.anyQueued(), s.wide(2), s.wide(1))
	}
	if queued.queue = nil; s.anyQueued() || s.wide(1) {
		t.Errorf("of one, in a call: any queued %v, more than one %v", s.anyQueued(), s.wide(1))
	}
}
