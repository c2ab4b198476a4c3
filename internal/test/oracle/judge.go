package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// Judge asks every oracle. It reads the run a fixed number of times, whatever went wrong in it, and does not change it.
func Judge(r Run) Verdict {
	r.Limits = r.Limits.withDefaults()
	b := open(r)
	v := Verdict{Figures: b.count()}
	for _, ask := range []struct {
		oracle Oracle
		judge  func(*book, *findings)
	}{
		{Evidence, soundEvidence},
		{NoLoss, noLoss},
		{NoGhost, noGhost},
		{EffectOnce, effectOnce},
		{KeyOrder, func(b *book, f *findings) { keyOrder(b, f, &v.Figures) }},
		{Duplicates, func(b *book, f *findings) { duplicates(b, f, &v.Figures) }},
		{Fencing, fencing},
		{CursorTruth, cursorTruth},
		{Liveness, func(b *book, f *findings) { liveness(b, f, &v.Figures) }},
		{HonestErrors, honestErrors},
		{Hygiene, hygiene},
		{AlarmsSounded, alarmsSounded},
	} {
		found := findings{oracle: ask.oracle}
		ask.judge(b, &found)
		v.Findings = append(v.Findings, found.list...)
	}
	return v
}

// findings collects what one oracle finds.
type findings struct {
	oracle Oracle
	list   []Finding
}

// add counts one more finding of a kind, and keeps it as an example while there are few.
func (f *findings) add(kind Kind, format string, args ...any) {
	found := f.of(kind)
	found.Count++
	if len(found.Examples) < maxExamples {
		found.Examples = append(found.Examples, fmt.Sprintf(format, args...))
	}
}

func (f *findings) of(kind Kind) *Finding {
	for i := range f.list {
		if f.list[i].Kind == kind {
			return &f.list[i]
		}
	}
	f.list = append(f.list, Finding{Oracle: f.oracle, Kind: kind})
	return &f.list[len(f.list)-1]
}

// none means no event, no key, no record, no consumer.
const none = int32(-1)

// book is a run with its events numbered, in the order of Written: so that oracles work on arrays.
type book struct {
	Run
	events    map[string]int32 // by id
	again     []int32          // rows of Written whose id came before
	of        []event          // by event
	keys      []key
	effects   []entryOf // beside Effects
	records   []int32   // beside Records: its event, or none
	waiting   map[waitingAt]bool
	letters   map[int32][]Letter // by event
	stray     []Letter           // of no event that was committed
	outages   []outage
	adoptions []LaneChange
}

type event struct {
	key      int32 // none: without a key, it has no order
	first    int32 // its first record, or none
	copies   int32 // how many records
	intended bool  // some producer said that it was about to be
	answered bool  // some COMMIT of it was answered
}

type key struct{ topic, name string }

// entryOf is an effect's event and consumer, each none when it is not known.
type entryOf struct{ event, consumer int32 }

type waitingAt struct {
	consumer string // "" for what waits for a relay
	event    int32
}

// outage is a fault from its beginning until it was healed.
type outage struct {
	fault     string
	from      time.Time
	until     time.Time // zero: it was never healed
	recovered time.Time // zero: it did not
}

// open numbers what is in a run.
func open(r Run) *book {
	b := &book{
		Run:       r,
		events:    make(map[string]int32, len(r.Written)),
		of:        make([]event, len(r.Written)),
		effects:   make([]entryOf, len(r.Effects)),
		records:   make([]int32, len(r.Records)),
		waiting:   map[waitingAt]bool{},
		letters:   map[int32][]Letter{},
		adoptions: slices.DeleteFunc(slices.Clone(r.LaneLog), func(c LaneChange) bool { return !c.Adopted }),
	}
	keys := map[key]int32{}
	for i, w := range r.Written {
		b.of[i] = event{key: none, first: none}
		if w.Key != "" {
			k := key{w.Topic, w.Key}
			n, known := keys[k]
			if !known {
				n = int32(len(b.keys))
				keys[k], b.keys = n, append(b.keys, k)
			}
			b.of[i].key = n
		}
		if _, known := b.events[w.ID]; known {
			b.again = append(b.again, int32(i))
			continue
		}
		b.events[w.ID] = int32(i)
	}
	for i, rec := range r.Records {
		n := b.event(rec.ID)
		b.records[i] = n
		if n == none {
			continue
		}
		if b.of[n].copies++; b.of[n].first == none {
			b.of[n].first = int32(i)
		}
	}
	for i, e := range r.Effects {
		b.effects[i] = entryOf{b.event(e.ID), int32(slices.Index(r.Consumers, e.Consumer))}
	}
	for _, l := range r.Letters {
		if n := b.event(l.EventID); n != none {
			b.letters[n] = append(b.letters[n], l)
		} else {
			b.stray = append(b.stray, l)
		}
	}
	for _, w := range r.Pending {
		if n := b.event(w.ID); n != none {
			b.waiting[waitingAt{w.Consumer, n}] = true
		}
	}
	for _, e := range r.Entries {
		switch e.Op {
		case history.Intend:
			for _, id := range e.IDs {
				if n := b.event(id); n != none {
					b.of[n].intended = true
				}
			}
		case history.Commit:
			for _, id := range e.IDs {
				if n := b.event(id); n != none && e.How == history.OK {
					b.of[n].answered = true
				}
			}
		case history.Fault, history.Heal, history.Recovered:
			b.note(e)
		}
	}
	return b
}

func (b *book) event(id string) int32 {
	if n, known := b.events[id]; known {
		return n
	}
	return none
}

// note adds a fault, or marks the first of its name that was not healed, or had not recovered, as such. A Recovered without
// a name is for all that were healed.
func (b *book) note(e history.Entry) {
	if e.Op == history.Fault {
		b.outages = append(b.outages, outage{fault: e.Text, from: e.At})
		return
	}
	for i := range b.outages {
		o := &b.outages[i]
		switch {
		case e.Op == history.Heal && o.fault == e.Text && o.until.IsZero():
			o.until = e.At
			return
		case e.Op == history.Recovered && (o.fault == e.Text || e.Text == "") && !o.until.IsZero() && o.recovered.IsZero():
			if o.recovered = e.At; e.Text != "" {
				return
			}
		}
	}
}

// name says which event it is, for people.
func (b *book) name(n int32) string {
	w := b.Written[n]
	if w.Key == "" {
		return fmt.Sprintf("%s of topic %s", w.ID, w.Topic)
	}
	return fmt.Sprintf("%s, number %d of key %q of topic %s", w.ID, w.Number, w.Key, w.Topic)
}

// count counts what needs no judgement.
func (b *book) count() Figures {
	f := Figures{
		Events:  len(b.events),
		Records: len(b.Records),
		Effects: len(b.Effects),
		Samples: len(b.Cursors),
		Pending: len(b.Pending),
		Faults:  map[string]int{},
	}
	for _, l := range b.Letters {
		switch l.State {
		case Open:
			f.Letters++
		case Discarded:
			f.Discarded++
		}
	}
	for _, e := range b.Entries {
		switch {
		case e.Op == history.Claim:
			f.Claims++
		case e.Op == history.Commit && e.How == history.Unknown:
			f.Unknown++
		}
	}
	for _, o := range b.outages {
		f.Faults[o.fault]++
	}
	return f
}

// soundEvidence says whether a run proves anything. A run in which nothing happened, or that is known only in part, does
// not.
func soundEvidence(b *book, found *findings) {
	if len(b.Written) == 0 {
		found.add(NothingWritten, "the table written is empty")
	}
	if len(b.Entries) == 0 && !b.Limits.NoHistory {
		found.add(NoHistory, "there is not one entry")
	}
	if b.Torn > len(b.Killed) {
		found.add(TornLines, "%d lines, %d processes", b.Torn, len(b.Killed))
	}
	for _, n := range b.again {
		found.add(WrittenTwice, "%s", b.Written[n].ID)
	}
	if len(b.Entries) > 0 {
		for i, e := range b.of {
			if !e.intended && b.events[b.Written[i].ID] == int32(i) {
				found.add(Unintended, "%s", b.name(int32(i)))
			}
		}
	}
	for i := 1; i < len(b.Entries); i++ {
		if b.Entries[i].At.Before(b.Entries[i-1].At) {
			found.add(Unknowable, "entry %d of the history is older than the one before it", i)
		}
	}
	for i := 1; i < len(b.Records); i++ {
		if a, r := b.Records[i-1], b.Records[i]; a.Topic == r.Topic && a.Partition == r.Partition && r.Offset <= a.Offset {
			found.add(Unknowable, "offset %d follows offset %d in partition %d of topic %s", r.Offset, a.Offset, r.Partition, r.Topic)
		}
	}
	for i, e := range b.effects {
		if e.consumer == none {
			found.add(Unknowable, "an effect with %q, who is not among the consumers", b.Effects[i].Consumer)
		}
	}
	for _, l := range b.Letters {
		if !slices.Contains([]State{Open, Replaying, Replayed, Discarded}, l.State) {
			found.add(Unknowable, "letter %d is %q", l.ID, l.State)
		}
	}
}

// spread is the median and the longest of some recoveries.
func spread(all []Recovery) (p50, most time.Duration) {
	if len(all) == 0 {
		return 0, 0
	}
	took := make([]time.Duration, len(all))
	for i, r := range all {
		took[i] = r.Took
	}
	slices.SortFunc(took, cmp.Compare[time.Duration])
	return took[(len(took)-1)/2], took[len(took)-1]
}
