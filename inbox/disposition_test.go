package inbox

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/wire"
)

func TestDisposition_WhatARecordIsDecidesWhatIsDoneWithIt(t *testing.T) {
	for name, row := range map[string]struct {
		s    recordFacts
		u    Unknown
		want disposition
	}{
		"a type that is handled here is handled":                     {recordFacts{handled: true}, UnknownSkip, disposeHandle},
		"below the position it is stale":                             {recordFacts{handled: true, stale: true}, UnknownSkip, disposeStale},
		"what the tables cannot hold is invalid":                     {recordFacts{handled: true, invalid: true}, UnknownSkip, disposeInvalid},
		"below the position too":                                     {recordFacts{handled: true, invalid: true, stale: true}, UnknownStore, disposeInvalid},
		"a type that nobody handles is skipped":                      {recordFacts{}, UnknownSkip, disposeSkip},
		"below the position too, whoever handled it":                 {recordFacts{stale: true}, UnknownSkip, disposeSkip},
		"though the tables cannot hold it":                           {recordFacts{invalid: true}, UnknownSkip, disposeSkip},
		"unless its type cannot be read":                             {recordFacts{invalid: true, garbled: true}, UnknownSkip, disposeInvalid},
		"or another node handles it":                                 {recordFacts{invalid: true, declared: true}, UnknownSkip, disposeInvalid},
		"what cannot be held cannot be stored":                       {recordFacts{invalid: true}, UnknownStore, disposeInvalid},
		"unless it is to be stored":                                  {recordFacts{}, UnknownStore, disposeUnknown},
		"or a dead letter":                                           {recordFacts{}, UnknownDead, disposeUnknown},
		"a type that another node handles is left for it":            {recordFacts{declared: true}, UnknownSkip, disposeUnknown},
		"but not below the position: it may have been handled there": {recordFacts{declared: true, stale: true}, UnknownSkip, disposeStale},
		"nor is anything stored that lies below it":                  {recordFacts{stale: true}, UnknownStore, disposeStale},
		"a dead letter of its type says that it is stale, if it is":  {recordFacts{stale: true}, UnknownDead, disposeStale},
	} {
		if got := dispositionOf(row.s, row.u); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// A node of an older version is given the partition, and its offsets were set back beyond what retention has kept.
func TestDisposition_AnOldEventOfAnotherNodesTypeIsStaleAndNotStored(t *testing.T) {
	for name, row := range map[string]struct {
		unknown  Unknown
		declared bool
		old, new Outcome
	}{
		"another node handles the type": {UnknownSkip, true, Stale, Stored},
		"unknown types are stored":      {UnknownStore, false, Stale, Stored},
		"nobody handles the type":       {UnknownSkip, false, Skipped, Skipped},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.UnknownType = row.unknown })
			in.Handle("order.placed", effectOf)
			if row.declared {
				pgtest.Exec(t, b.db, in.sql.declare, "billing", []string{"order.refunded"}, "newer", int64(60e6), []string{"{}"})
			}
			pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 1)")
			old, next := event("old", "a"), event("new", "b")
			old.Type, next.Type = "order.refunded", "order.refunded"
			g := newFakeGeneration(logOf(old, next, event("last", "c")))
			g.from = 0
			b.consumeFake(in, g)
			b.awaitOutcome("last", Handled)
			b.awaitOutcome("new", row.new)
			b.awaitOutcome("old", row.old)
			if n := b.count("select count(*) from holdfast.stored where event_id = 'old'"); n != 0 {
				t.Error("it is stored, and would be handled a second time")
			}
			letters := int64(0)
			if row.old == Stale {
				letters = 1
			}
			if n := b.count("select count(*) from holdfast.letter where event_id = 'old' and reason like 'stale%'"); n != letters {
				t.Errorf("%d letters, want %d", n, letters)
			}
		})
	}
}

func TestDisposition_WhatOthersWriteForOthersLeavesNoDeadLetters(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	const foreign = "ledger.posted"
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	pgtest.Exec(t, b.db, in.sql.declare, "billing", []string{"order.refunded"}, "newer", int64(60e6), []string{"{}"})
	log := logOf(event("int64 key", ""), event("binary header", "k"), event("no type", ""), event("ours", "a"), event("a node's", "b"),
		event("no type to read", "c"), event("last", "d"))
	typed := func(record *source.Record, eventType string) {
		for i, h := range record.Headers {
			if h.Key == wire.HeaderType {
				record.Headers[i].Value = []byte(eventType)
			}
		}
	}
	binary := source.Header{Key: "h", Value: []byte{0xfe}}
	log[0].Key = []byte{0, 0, 0, 0, 0, 0, 0x10, 0xff}
	typed(&log[0], foreign)
	typed(&log[1], foreign)
	log[2].Key = log[0].Key
	typed(&log[2], "")
	typed(&log[4], "order.refunded")
	typed(&log[5], foreign+"\xff")
	for _, i := range []int{1, 3, 4} {
		log[i].Headers = append(log[i].Headers, binary)
	}
	b.consumeFake(in, newFakeGeneration(log))
	b.awaitOutcome("last", Handled)
	for id, want := range map[string]Outcome{"int64 key": Skipped, "binary header": Skipped, "no type": Skipped, "ours": Handled, "a node's": Stored, "no type to read": Dead} {
		b.awaitOutcome(id, want)
	}
	if n := b.count("select count(*) from holdfast.inbox where result = 'dead'"); n != 1 {
		t.Errorf("%d rows of letters in the inbox, want 1", n)
	}
	if n := b.count("select count(*) from holdfast.letter where reason like 'invalid record%'"); n != 1 {
		t.Errorf("%d letters, want 1", n)
	}
}

func TestDisposition_ARecordThatCannotBeHeldHoldsItsKeyWhereThatIsAskedFor(t *testing.T) {
	for name, row := range map[string]struct {
		hold bool
		key  string // of the record
		want Outcome
		old  bool // it lies below the position
	}{
		"the key is held":                                   {true, "k", Stored, false},
		"not where that is not asked for":                   {false, "k", Handled, false},
		"nor where what cannot be held is the key":          {true, strings.Repeat("k", 1025), Handled, false},
		"nor below the position, where its key has gone on": {true, "k", Handled, true},
		"and nothing is held where there is no key":         {true, "", Handled, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.HoldKey = row.hold })
			in.Handle("order.placed", effectOf)
			log := logOf(event("bad", ""), event("next", shortKey(row.key)), event("other", "other"))
			log[0].Key = []byte(row.key)
			log[0].Headers = append(log[0].Headers, source.Header{Key: wire.HeaderSource, Value: []byte(strings.Repeat("s", 300))})
			g := newFakeGeneration(log)
			if row.old {
				pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 1)")
				g.from = 0
			}
			b.consumeFake(in, g)
			b.awaitOutcome("other", Handled)
			b.awaitOutcome("bad", Dead)
			b.awaitOutcome("next", row.want)
			if n := b.count("select count(*) from holdfast.letter where event_id = 'bad' and holds"); (n == 1) != (row.want == Stored) {
				t.Errorf("%d letters hold the key", n)
			}
		})
	}
}
