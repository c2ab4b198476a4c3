package relay

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
)

var (
	wholeOrders = spot{"orders", wholeTopic}
	keyA        = queue{topic: "orders", key: "a"}
	keyless     = queue{topic: "orders"}
)

func TestRoom_ALaneLooksAgainWhenTheFirstOfItsLooksIsDue(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	in := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	full := func() *room {
		rm := newRoom(usualBounds.queues)
		rm.queues.held[keyA], rm.heldAt = true, in(10).Add(-heldEvery)
		rm.queues.whole["orders"], rm.wholeAt = true, in(20)
		rm.stuck = []stuckRow{{retryAt: in(30)}, {retryAt: in(1)}}
		rm.due = dueLooks{asked: true, restUntil: in(40)}
		rm.moving, rm.moveAt = true, in(50)
		rm.flushLater, rm.flushAt = true, in(60)
		return &rm
	}
	rm := full()
	for i, done := range []func(){
		func() { rm.queues.held = nil },
		func() { rm.queues.whole = nil },
		func() { rm.stuck = nil },
		func() { rm.due.asked = false },
		func() { rm.moving = false },
		func() { rm.flushLater = false },
	} {
		if want := in(10 * (i + 1)); !rm.at().Equal(want) {
			t.Errorf("look %d is due in %v, want %v", i, rm.at().Sub(now), want.Sub(now))
		}
		done()
	}
	if !rm.at().IsZero() {
		t.Errorf("with nothing to look for, a look is due at %v", rm.at())
	}
	rm = full()
	if rm.flushAt = in(2); !rm.at().Equal(in(2)) {
		t.Errorf("the last of them, which is due first, is due in %v", rm.at().Sub(now))
	}
}

func TestRoom_WhatEntersIsBeforeWhatComesLater(t *testing.T) {
	t.Parallel()
	rm := newRoom(usualBounds.queues)
	event := func() *pending {
		route := &topicRoute{topic: "orders", queued: 1}
		return &pending{event: &logEvent{Event: holdfast.Event{Topic: "orders", Key: "a"}}, item: item{queue: keyA}, state: queued, to: &destination{route: route}}
	}
	if !rm.nothingWaits() || rm.waiting().queue(keyA) {
		t.Fatal("something waits in an empty room")
	}
	p := event()
	rm.leave(p, recordRefused, errors.New("too large"))
	if !rm.waiting().queue(keyA) || rm.nothingWaits() || rm.queues.enters != 1 || p.to.route.queued != 0 || p.state != leaving || p.disposition != recordRefused || p.err == nil {
		t.Errorf("a later event of the key waits: %v; %d enter, %d are queued, %+v", rm.waiting().queue(keyA), rm.queues.enters, p.to.route.queued, p)
	}
	if rm.leave(p, topicHeld, nil); rm.queues.enters != 1 || p.to.route.queued != 0 || p.disposition != topicHeld {
		t.Errorf("one that leaves already, for another reason: %d enter, %d are queued", rm.queues.enters, p.to.route.queued)
	}
	if rm.stay(p); !rm.nothingWaits() || rm.queues.enters != 0 || p.state != settled || p.disposition != published {
		t.Errorf("one that stays after all: %d enter, %+v", rm.queues.enters, p)
	}
	p = event()
	if rm.leave(p, published, nil); rm.queues.enters != 0 || p.state != leaving {
		t.Errorf("the end of a replay enters no queue, %d do", rm.queues.enters)
	}
	if rm.stay(p); rm.queues.enters != 0 {
		t.Errorf("%d enter", rm.queues.enters)
	}
	p = event()
	p.event.malformed = "its key is too long"
	if rm.leave(p, recordRefused, nil); p.disposition != malformed {
		t.Errorf("what cannot be sent leaves as %v", p.disposition)
	}
	p = event()
	p.to = nil
	rm.leave(p, recordRefused, nil) // it was never in a queue of a destination
}

func TestRoom_WhatIsHeldIsInTheWayOfItsOwnOnly(t *testing.T) {
	t.Parallel()
	rm := newRoom(usualBounds.queues)
	third := spot{"orders", 3}
	rm.holds[third] = &hold{}
	w := rm.waiting()
	if rm.nothingWaits() || w.topic("orders") || !w.partition(third) || w.partition(spot{"orders", 4}) {
		t.Error("a held partition is in the way of others, or of nothing")
	}
	rm.holds[wholeOrders] = &hold{}
	rm.holds[spot{"stock", wholeTopic}] = &hold{takes: true}
	rm.holds[spot{"a-topic", wholeTopic}] = &hold{}
	if !w.topic("orders") || w.topic("late") || w.whole("orders") {
		t.Error("a held topic is in the way of others, or of nothing")
	}
	if rm.queues.whole["orders"] = true; !w.whole("orders") {
		t.Error("a topic that is queued as a whole lets keys pass")
	}
	if got, want := rm.heldTopicNames(), []string{"a-topic", "orders"}; !slices.Equal(got, want) {
		t.Errorf("%v are not tried, want %v", got, want)
	}
	if got, want := rm.heldSpots(), []spot{{"a-topic", wholeTopic}, wholeOrders, third, {"stock", wholeTopic}}; !slices.Equal(got, want) {
		t.Errorf("%v are held, want %v", got, want)
	}
	if rm.paused("orders") || rm.paused("late") {
		t.Error("what is held is said to be paused")
	}
	rm.holds[wholeOrders].paused, rm.holds[wholeOrders].late = true, true
	if !rm.paused("orders") {
		t.Error("a topic that is paused is not said to be")
	}
	rm.resumeTopic("late") // nothing of it is held
	if rm.resumeTopic("orders"); rm.paused("orders") || !rm.holds[wholeOrders].resuming || rm.holds[wholeOrders].late {
		t.Errorf("a topic that is resumed is %+v", rm.holds[wholeOrders])
	}
	none := newRoom(usualBounds.queues)
	if names := none.heldTopicNames(); names == nil || len(names) > 0 || none.heldSpots() != nil {
		t.Errorf("nothing is held: %v", names)
	}
}

func TestRoom_OnlyRowsOfWhatIsStillHeldBecomeDormant(t *testing.T) {
	t.Parallel()
	rm := newRoom(usualBounds.queues)
	row := func(place int64, partition int, why disposition) dormantRow {
		return dormantRow{&pending{item: item{queue: keyA}, row: &parkedRow{place: place}, to: &destination{spot: spot{"orders", partition}}}, why}
	}
	rm.dormant = []dormantRow{row(1, 3, topicHeld), row(2, 3, partitionDown), row(3, 4, partitionDown)}
	for name, c := range map[string]struct {
		held       []spot
		places     []int64
		partitions []int32 // -1 for the topic
	}{
		"nothing":                      {nil, nil, nil},
		"the topic":                    {[]spot{wholeOrders}, []int64{1}, []int32{-1}},
		"a partition":                  {[]spot{{"orders", 4}}, []int64{3}, []int32{4}},
		"the topic, and one partition": {[]spot{{"orders", 3}, wholeOrders}, []int64{1, 2}, []int32{-1, 3}},
	} {
		clear(rm.holds)
		for _, at := range c.held {
			rm.holds[at] = &hold{}
		}
		rows := rm.dormantRows()
		var partitions []int32
		for _, p := range rows.partitions {
			if p == nil {
				partitions = append(partitions, -1)
			} else {
				partitions = append(partitions, *p)
			}
		}
		if !slices.Equal(rows.places, c.places) || !slices.Equal(partitions, c.partitions) {
			t.Errorf("held is %s: rows %v wait for %v, want %v for %v", name, rows.places, partitions, c.places, c.partitions)
		}
	}
}

func TestRoom_ALookFollowsWhereARowMayBeBehind(t *testing.T) {
	t.Parallel()
	inMemory := func(q queue) func(*room) {
		return func(rm *room) {
			rm.leases.begin(&pending{event: &logEvent{}, item: item{queue: q}, row: &parkedRow{place: 7}})
		}
	}
	for name, c := range map[string]struct {
		of   queue
		do   []func(*room)
		want bool
	}{
		"nothing is known of the key":                      {keyA, nil, false},
		"the last look left some":                          {keyA, []func(*room){func(rm *room) { rm.due.more = true }}, true},
		"the key may have rows":                            {keyA, []func(*room){func(rm *room) { rm.queues.parked[keyA] = true }}, true},
		"its topic is queued as a whole":                   {keyA, []func(*room){func(rm *room) { rm.queues.whole["orders"] = true }}, true},
		"another key may have rows":                        {keyA, []func(*room){func(rm *room) { rm.queues.parked[keyless] = true }}, false},
		"the rows of the key are in memory":                {keyA, []func(*room){func(rm *room) { rm.queues.parked[keyA] = true }, inMemory(keyA)}, false},
		"others are":                                       {keyA, []func(*room){func(rm *room) { rm.queues.parked[keyA] = true }, inMemory(keyless)}, true},
		"nothing is known of events without a key":         {keyless, nil, false},
		"some may be there":                                {keyless, []func(*room){func(rm *room) { rm.queues.parked[keyless] = true }}, true},
		"some may be there, and something is in memory":    {keyless, []func(*room){func(rm *room) { rm.queues.parked[keyless] = true }, inMemory(keyA)}, false},
		"and the last look left some":                      {keyless, []func(*room){func(rm *room) { rm.due.more = true }, inMemory(keyA)}, true},
		"their topic is queued as a whole, as keys are it": {keyless, []func(*room){func(rm *room) { rm.queues.whole["orders"] = true }}, false},
	} {
		rm := newRoom(usualBounds.queues)
		for _, do := range c.do {
			do(&rm)
		}
		if got := rm.dueBehind(c.of); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestRoom_AnExceptionIsARowsFaultWhenOthersWereChangedMeanwhile(t *testing.T) {
	t.Parallel()
	rm := newRoom(usualBounds.queues)
	rm.changes[1] = 5
	exception := &pgconn.PgError{Code: "P0001"}
	for name, c := range map[string]struct {
		err    error
		change int
		since  uint64
		want   bool
	}{
		"a row that cannot be read":                {pgx.ScanArgError{Err: errors.New("its time is infinite")}, 0, 9, true},
		"an exception, and others were changed":    {exception, 1, 4, true},
		"an exception, and no other was":           {exception, 1, 5, false},
		"an exception, and others were otherwise":  {exception, 0, 4, false},
		"a server that stops, others were changed": {&pgconn.PgError{Code: "57P01"}, 1, 4, false},
	} {
		if got := rm.blames(c.err, c.change, c.since); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
