package inbox

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// fetched is a generation with one answer to every Fetch.
type fetched struct {
	*fakeGeneration
	page source.Page
	err  error
}

func (f *fetched) Fetch(context.Context, source.TopicPartition, int64, int64) (source.Page, error) {
	return f.page, f.err
}

// pageAt is a page whose first record is an event, at an offset.
func pageAt(offset int64, e holdfast.Event) source.Page {
	r := logOf(e)[0]
	r.Offset = offset
	return source.Page{Records: []source.Record{r}, Next: offset + 1}
}

func TestCheckpointIdentify_IdentifyingKnowsTheLogByTheEventThatWasSettledLast(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	last := event("1", "k")
	d := in.registry.newDelivery(last)
	now, before := identityOf(d), identityWith(d, d.payloadHash())
	edited := last
	edited.Payload = []byte("another")
	for _, row := range []struct {
		name       string
		checkpoint int64
		identity   int64
		first, end int64
		page       source.Page
		err        error
		want       logIdentity
		ok         bool
	}{
		{"the event is there", 5, now, 0, 10, pageAt(5, last), nil, logSame, true},
		{"the first of the log", 5, now, 5, 10, pageAt(5, last), nil, logSame, true},
		{"the last of the log", 5, now, 0, 6, pageAt(5, last), nil, logSame, true},
		{"its checkpoint does not cover the type", 5, before, 0, 10, pageAt(5, last), nil, logSame, true},
		{"another id", 5, now, 0, 10, pageAt(5, event("2", "k")), nil, logOther, true},
		{"another payload", 5, now, 0, 10, pageAt(5, edited), nil, logOther, true},
		{"it was deleted", 5, now, 6, 10, pageAt(5, last), nil, logUnknown, true},
		{"the log does not reach it", 5, now, 0, 5, pageAt(5, last), nil, logUnknown, true},
		{"it was compacted away", 5, now, 0, 10, pageAt(6, last), nil, logUnknown, true},
		{"nothing is left after it", 5, now, 0, 10, source.Page{Next: 10}, nil, logUnknown, true},
		{"it was deleted meanwhile", 5, now, 0, 10, source.Page{}, source.ErrOffsetOutOfRange, logUnknown, true},
		{"it cannot be read", 5, now, 0, 10, source.Page{}, &source.TooLargeError{Next: 6, Err: errors.New("it is of an old format")}, logUnknown, true},
		{"it takes more memory than there is", 5, now, 0, 10, source.Page{}, &source.TooLargeError{Needs: 1 << 50, Next: 6, Err: errors.New("it is large")}, logUnknown, true},
		{"Kafka does not answer", 5, now, 0, 10, source.Page{}, errors.New("no broker"), logUnknown, false},
		{"none was settled yet", -1, now, 0, 10, pageAt(-1, last), nil, logUnknown, true},
	} {
		pgtest.Exec(t, b.db, "delete from holdfast.consumer_position")
		if row.checkpoint >= 0 {
			pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, epoch, position, checkpoint_offset, checkpoint_identity) values ('billing', 'orders', 0, 1, 9, $1, $2)", row.checkpoint, row.identity)
		}
		gen := &fetched{newFakeGeneration(nil), row.page, row.err}
		p := in.consumer.newPartition(nil, gen, source.TopicPartition{Topic: "orders", Partition: 0}, source.Start{})
		before := of(b, func(o *observations) int { return len(o.errs) })
		id, ok := p.identify(t.Context(), row.first, row.end)
		if id != row.want || ok != row.ok {
			t.Errorf("%s: %d, %v; want %d, %v", row.name, id, ok, row.want, row.ok)
		}
		if reported := of(b, func(o *observations) int { return len(o.errs) }) - before; (reported == 1) == row.ok || reported > 1 {
			t.Errorf("%s: %d errors were reported", row.name, reported)
		}
		if !in.consumer.memory.Room.TryAcquire(in.consumer.memory.Bytes / 8 * 5) {
			t.Fatalf("%s: memory was not given back", row.name)
		}
		in.consumer.memory.Room.Release(in.consumer.memory.Bytes / 8 * 5)
	}
}

func TestCheckpointIdentify_IdentifyingAsksAgainWhenTheDatabaseDoesNotAnswer(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	pgtest.Exec(t, b.db, "alter table holdfast.consumer_position rename to gone")
	p := in.consumer.newPartition(nil, newFakeGeneration(nil), source.TopicPartition{Topic: "orders", Partition: 0}, source.Start{})
	if id, ok := p.identify(t.Context(), 0, 10); ok || id != logUnknown {
		t.Errorf("it says %d, %v", id, ok)
	}
	b.reported(nil, "read checkpoint of orders/0")
}

// Nodes of all versions compare what others have saved: the numbers stay what they are.
func TestCheckpointIdentify_IdentifyingGivesAnEventTheSameNumberEverywhere(t *testing.T) {
	numbers := map[int64]string{}
	for name, e := range map[string]holdfast.Event{
		"an event":        {Source: "shop", ID: "1", Type: "order.placed", Payload: []byte("x")},
		"another id":      {Source: "shop", ID: "2", Type: "order.placed", Payload: []byte("x")},
		"another source":  {Source: "till", ID: "1", Type: "order.placed", Payload: []byte("x")},
		"another cut":     {Source: "shop1", ID: "", Type: "order.placed", Payload: []byte("x")},
		"another type":    {Source: "shop", ID: "1", Type: "order.sent", Payload: []byte("x")},
		"another payload": {Source: "shop", ID: "1", Type: "order.placed", Payload: []byte("y")},
	} {
		d := &delivery{e: e}
		d.hash = d.eventHash()
		n := identityOf(d)
		if other := numbers[n]; other != "" {
			t.Errorf("%s has the number of %s", name, other)
		}
		numbers[n] = name
	}
	if n := identityOf(&delivery{e: holdfast.Event{Source: "shop", ID: "1"}, hash: []byte("hash")}); n != goldenIdentity {
		t.Errorf("the number is %d, want %d", n, int64(goldenIdentity))
	}
}

// goldenIdentity is FNV-1a, 64 bits, of "shop", a zero, "1" and "hash".
const goldenIdentity = 1313833055767534450

func TestCheckpointIdentify_RereadingIsSaidWithItsCause(t *testing.T) {
	for _, row := range []struct {
		name            string
		start, position int64
		committed       int64
		id              logIdentity
		offsets         int64
		why             string
	}{
		{"at the position", 7, 7, 7, logSame, 0, ""},
		{"above it", 8, 7, 7, logSame, 0, ""},
		{"one below", 6, 7, 6, logSame, 1, "the group's offset lies below the position"},
		{"in another log", 0, 7, 7, logOther, 7, "another event has the offset"},
		{"in another log, without an offset", 0, 7, source.NoOffset, logOther, 7, "another event has the offset"},
		{"without an offset", 0, 7, source.NoOffset, logUnknown, 7, "the group has no offset"},
	} {
		b := &bundle{T: t, observed: newObservations()}
		var log logtest.Log
		c := b.config()
		watched(&log)(&c)
		in := newInbox(nil, c)
		p := in.consumer.newPartition(nil, nil, source.TopicPartition{Topic: "orders", Partition: 0}, source.Start{Committed: row.committed})
		p.notifyReread(&position.Fence{Claim: position.Claim{Topic: "orders"}}, position.Reading{Start: row.start, Position: row.position}, row.id)
		got, said := b.observed.reread["orders/0"]
		if got != row.offsets || said != (row.offsets > 0) || said != strings.Contains(log.String(), "read again") || said && !strings.Contains(log.String(), `why="`+row.why) {
			t.Errorf("%s: %d offsets are said to be read again (%v), want %d; log %s", row.name, got, said, row.offsets, log.String())
		}
		in.c.Observer.OnReread = nil // Nobody has to listen.
		p.notifyReread(&position.Fence{}, position.Reading{Start: row.start, Position: row.position}, row.id)
	}
}
