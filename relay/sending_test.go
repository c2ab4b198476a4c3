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
		"what is queued has a call under way":          {&sending{calls: 1, destinations: []*destination{{queue: queuedAt(never).queue, retryAt: in(1), call: []*pending{{}}}}}, never},
		"the first of two":                             {&sending{destinations: []*destination{queuedAt(in(2)), queuedAt(in(1)), queuedAt(in(3))}}, in(1)},
		"its turn for a call is announced":             {&sending{refused: true, destinations: []*destination{queuedAt(in(1))}}, never},
		"a noisy tenant's turn is":                     {&sending{separator: "/", noisy: []string{"acme"}, refusedNoisy: true, destinations: []*destination{queuedAt(in(1))}}, never},
		"another tenant waits for no turn":             {&sending{separator: "/", noisy: []string{"beta"}, refusedNoisy: true, destinations: []*destination{queuedAt(in(1))}}, in(1)},
		"a noisy tenant without a turn to wait for":    {&sending{separator: "/", noisy: []string{"acme"}, destinations: []*destination{queuedAt(in(1))}}, in(1)},
		"an outage, with a call that tells of its end": {&sending{outage: &hold{nextAt: in(5)}, calls: 1, destinations: []*destination{queuedAt(in(1))}}, never},
		"an outage":                         {&sending{outage: &hold{nextAt: in(5)}, destinations: []*destination{queuedAt(in(1))}}, in(5)},
		"an outage that ends before":        {&sending{outage: &hold{nextAt: in(5)}, destinations: []*destination{queuedAt(in(9))}}, in(9)},
		"one call more":                     {&sending{calls: maxCalls - 1, destinations: many(maxCalls-1, now, nil, queuedAt(in(1)))}, in(1)},
		"all calls are under way":           {&sending{calls: maxCalls, destinations: many(maxCalls-1, now, nil, queuedAt(in(1)), inCallSince(in(-1), nil))}, in(slowAfter - 1)},
		"one of them is slow":               {&sending{calls: maxCalls, destinations: many(maxCalls-1, now, nil, queuedAt(in(1)), inCallSince(in(-slowAfter), nil))}, in(1)},
		"all of them, and shared ones":      {&sending{calls: maxCalls + 1, sharing: 1, destinations: many(maxCalls, now, nil, queuedAt(in(1)), inCallSince(in(-slowAfter), &laneShare{}))}, in(slowAfter)},
		"all that count, and a slow one":    {&sending{calls: maxCalls + 1, destinations: many(maxCalls, in(-300*time.Millisecond), nil, queuedAt(in(time.Second)), inCallSince(in(-2*time.Second), nil))}, in(700 * time.Millisecond)},
		"all that count, and one just slow": {&sending{calls: maxCalls + 1, destinations: many(maxCalls, in(-1), nil, queuedAt(in(1)), inCallSince(in(-slowAfter), nil))}, in(slowAfter - 1)},
		"the oldest that counts":            {&sending{calls: maxCalls, destinations: append(many(maxCalls-2, in(-3), nil, queuedAt(in(1)), inCallSince(in(-2), nil)), inCallSince(in(-5), nil))}, in(slowAfter - 5)},
		"an outage, and nothing to send":    {&sending{outage: &hold{nextAt: in(-1)}}, never},
		"shared calls do not count":         {&sending{calls: maxCalls + 8, sharing: maxCalls + 8, destinations: many(maxCalls+8, in(-slowAfter), &laneShare{}, queuedAt(in(1)))}, in(1)},
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

// parts is a publisher that says where events go.
type parts struct {
	Publisher
	of         map[string]int // partitions of topics
	asked      int
	partitions func(e holdfast.Event) int
}

func (p *parts) Partition(e holdfast.Event) (partition, partitions int) {
	p.asked++
	return p.partitions(e), p.of[e.Topic]
}

func TestSending_AnEventGoesToItsPartitionWhileTheTopicHasAsMany(t *testing.T) {
	t.Parallel()
	p := &parts{of: map[string]int{"orders": 6}, partitions: func(e holdfast.Event) int { return len(e.Key) }}
	s := newSending(&Relay{partitioner: p})
	in := func(topic, key string) *logEvent { return &logEvent{Event: holdfast.Event{Topic: topic, Key: key}} }
	at := func(e *logEvent) int { return s.destinationOf(e).partition }
	if at(in("orders", "abc")) != 3 || at(in("orders", "")) != 0 || at(in("orders", "abcde")) != 5 || len(s.destinations) != 3 {
		t.Errorf("%d destinations: %v", len(s.destinations), s.destinations)
	}
	if s.destinationOf(in("orders", "xyz")) != s.destinationAt(spot{"orders", 3}) || s.destinationAt(spot{"orders", 4}) != nil || s.destinationAt(spot{"other", 3}) != nil {
		t.Error("a partition has two destinations, or one that nothing was queued for")
	}
	p.of["orders"] = 12
	if at(in("orders", "abc")) != anyPartition || s.routes["orders"].partitions != 6 {
		t.Error("while the lane goes by 6 partitions, an event goes to one of 12")
	}
	if at(in("unknown", "abc")) != anyPartition {
		t.Error("of a topic that the publisher does not know an event goes to a partition")
	}
	asked := p.asked
	illegal := in("no topic", "abc")
	illegal.malformed = "its topic is none"
	if at(illegal) != anyPartition || p.asked != asked {
		t.Error("the publisher was asked for a topic that Kafka cannot have")
	}
	long := in("orders", "abc")
	long.malformed = "its key is too long"
	if p.of["orders"] = 6; at(long) != 3 {
		t.Error("a malformed event of a topic is not in its partition's order")
	}
	none := newSending(&Relay{})
	if none.destinationOf(in("orders", "abc")).partition != anyPartition {
		t.Error("a publisher that names no partitions has one")
	}
}

func TestSending_NoPageIsTakenWhileATopicChangesItsPartitions(t *testing.T) {
	t.Parallel()
	p := &parts{of: map[string]int{"orders": 6, "stock": 4}, partitions: func(holdfast.Event) int { return 1 }}
	s := newSending(&Relay{partitioner: p})
	in := func(topic string) logEvent { return logEvent{Event: holdfast.Event{Topic: topic}} }
	next := page{events: []logEvent{in("stock"), in("stock"), in("orders"), in("orders")}}
	if !s.mayRoute(next) || p.asked != 2 {
		t.Errorf("a page of topics that are new may be taken; asked %d times, want once for each topic", p.asked)
	}
	for _, topic := range []string{"stock", "orders"} {
		e := in(topic)
		s.destinationOf(&e)
	}
	s.routes["orders"].queued, p.of["orders"] = 1, 12
	if s.mayRoute(next) || s.routes["orders"].partitions != 6 {
		t.Error("events of 12 partitions are taken while some of 6 are queued")
	}
	bad := in("orders")
	bad.malformed = "its key is too long"
	if !s.mayRoute(page{events: []logEvent{in("stock"), bad}}) {
		t.Error("an event that is never sent waits for the partitions")
	}
	s.routes["orders"].queued = 0
	if !s.mayRoute(next) || s.routes["orders"].partitions != 12 {
		t.Errorf("nothing is queued any more: the lane goes by %d partitions, want 12", s.routes["orders"].partitions)
	}
	s.routes["stock"].known, s.routes["stock"].queued, p.of["stock"] = false, 1, 5
	if !s.mayRoute(next) {
		t.Error("a topic waits for partitions that nothing was asked of")
	}
	none := newSending(&Relay{})
	if !none.mayRoute(next) {
		t.Error("a publisher that names no partitions has pages wait")
	}
}

func TestSending_OnlyEventsOfTheLogAreNoisy(t *testing.T) {
	t.Parallel()
	p := queuedAt(time.Time{}).queue[0]
	s := sending{separator: "/"}
	if s.isNoisy(p) {
		t.Error("a tenant is noisy while none is")
	}
	s.noisy = []string{"beta", "acme"}
	if !s.isNoisy(p) {
		t.Error("a noisy tenant's event is quiet")
	}
	p.row = new(parkedRow)
	if s.isNoisy(p) {
		t.Error("a parked event is overtaken")
	}
}
