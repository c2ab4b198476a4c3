package oracle

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Oracle is one of the questions. Evidence is not one of the eleven: it says whether the run proves anything.
type Oracle int

// The oracles.
const (
	Evidence      Oracle = iota // was there a run, and has what is known of it no holes?
	NoLoss                      // O1: has all that was committed arrived and been done, or is it a letter?
	NoGhost                     // O2: was all that arrived and was done committed, and as it arrived?
	EffectOnce                  // O3: has no event two effects with one consumer?
	KeyOrder                    // O4: do the events of a key keep their order?
	Duplicates                  // O5: has every duplicate in Kafka a reason?
	Fencing                     // O6: did nobody change what was another's?
	CursorTruth                 // O7: was all that a cursor called published somewhere?
	Liveness                    // O8: did everything recover in time, and does nothing wait?
	HonestErrors                // O9: was COMMIT's answer true?
	Hygiene                     // O10: was nothing left behind, and no payload logged?
	AlarmsSounded               // O11: was every fault said, and every letter?
	oracles                     // how many there are
)

var oracleNames = [oracles]string{"evidence", "O1 no loss", "O2 no ghost", "O3 effect once", "O4 order of a key",
	"O5 duplicates", "O6 fencing", "O7 cursor truth", "O8 liveness", "O9 honest errors", "O10 hygiene", "O11 alarms"}

// String is the oracle's number and name: "O1 no loss".
func (o Oracle) String() string {
	if o < 0 || o >= oracles {
		return fmt.Sprintf("oracle %d", int(o))
	}
	return oracleNames[o]
}

// Kind is what an oracle can find.
type Kind string

// The kinds of findings.
const (
	NothingWritten Kind = "nothing was written, so nothing was tested"
	NoHistory      Kind = "no history"
	Unintended     Kind = "committed without anybody's intent: the history has holes"
	TornLines      Kind = "more torn lines than killed processes"
	WrittenTwice   Kind = "in written twice"
	Unknowable     Kind = "an entry that cannot be"

	Lost     Kind = "lost: not in Kafka"
	Missing  Kind = "missing: no effect"
	GivenUp  Kind = "given up and done: an effect and a letter"
	Undue    Kind = "a letter that is not due: of a relay, or of an event that handlers can bear"
	TooSoon  Kind = "given up before it was tried as often as it must be"
	Ghosts   Kind = "ghost: in Kafka, never committed"
	Phantoms Kind = "phantom: an effect or a letter of what was never committed"
	Altered  Kind = "altered: another topic, key or content than was written"
	Hurried  Kind = "done before its time"

	Doubles Kind = "done twice"

	Overtaken Kind = "out of order in Kafka"
	Strayed   Kind = "a key in two partitions"
	OutOfTurn Kind = "effects out of order"

	Unexplained Kind = "a duplicate without a reason"
	Unprovoked  Kind = "a duplicate in a run without faults"
	TooMany     Kind = "more duplicates of a kind than allowed"
	TooLate     Kind = "sent again so late that its acknowledgement should have been saved"

	EpochFell       Kind = "an epoch went down"
	OwnerChanged    Kind = "another owner under the same epoch"
	ChangedByOther  Kind = "changed by somebody else than the owner"
	TakenByOther    Kind = "an event taken in by somebody else than the owner"
	TakenEarly      Kind = "taken while another's lease ran"
	CursorFell      Kind = "a cursor or position went back"
	TakenFromCall   Kind = "decided by a person while a relay sent it, whose lease had not run out"
	ClaimedTwice    Kind = "claimed twice under one epoch"
	ClaimedInVain   Kind = "claimed, as one says, under an epoch that the database never gave"
	SkippedByCursor Kind = "called published and nowhere to be found"

	SaidTooEarly Kind = "called handled before its effect was there"
	SentAfter    Kind = "sent after a person was told that it is given up"

	Slow        Kind = "recovered too late"
	NeverBack   Kind = "not recovered"
	NeverHealed Kind = "a fault without an end"
	StillWaits  Kind = "waits at the end"

	FalseOK      Kind = "COMMIT was answered and is not there"
	FalseFailure Kind = "COMMIT was refused and is there"
	Halved       Kind = "half of a transaction"

	LeftBehind Kind = "left behind"
	Vanished   Kind = "a process that ended without a last word"
	Leaked     Kind = "a payload in a log"
	Mistaken   Kind = "a statement that Postgres finds wrong"

	Silent Kind = "a fault that nobody said"
	Unsaid Kind = "a letter that nobody said"
	MadeUp Kind = "a letter that was said, and is not there"
)

// maxExamples is how many examples of a kind are kept.
const maxExamples = 8

// Finding is all that an oracle found of one kind.
type Finding struct {
	Oracle   Oracle
	Kind     Kind
	Count    int
	Examples []string // 8 at most, the first ones
}

// Figures are the counts of a run. They accuse nobody.
type Figures struct {
	Events     int // committed
	Records    int // in Kafka
	Effects    int
	Duplicates int           // records whose event came before
	Late       int           // duplicates that came after a later event of their key
	Furthest   int64         // offsets between a duplicate and the first of its event in the same partition, at most
	ByReason   []ReasonCount // the duplicates by their explanation, those that were seen
	Letters    int           // open
	Discarded  int
	Pending    int
	Samples    int            // of cursors
	Claims     int            // of lanes, as the history reports them
	Faults     map[string]int // how often each was made
	Unknown    int            // COMMITs without an answer
	Recoveries []Recovery     // in the order of their heals
}

// ReasonCount is how many duplicates an explanation accounts for.
type ReasonCount struct {
	Reason Explanation
	Count  int
}

// Recovery is how long it took after a fault was healed until all that was committed before had arrived.
type Recovery struct {
	Fault string
	At    time.Time // of the heal
	Took  time.Duration
}

// Verdict is the oracles' answer.
type Verdict struct {
	Findings []Finding // by oracle; none when the run holds
	Figures  Figures
}

// Holds says whether no oracle has found anything.
func (v Verdict) Holds() bool { return len(v.Findings) == 0 }

// Broken are the oracles that found something, in their order.
func (v Verdict) Broken() []Oracle {
	var broken []Oracle
	for _, f := range v.Findings {
		if len(broken) == 0 || broken[len(broken)-1] != f.Oracle {
			broken = append(broken, f.Oracle)
		}
	}
	return broken
}

// Count is how often kind was found.
func (v Verdict) Count(kind Kind) int {
	n := 0
	for _, f := range v.Findings {
		if f.Kind == kind {
			n += f.Count
		}
	}
	return n
}

// Except is the verdict without what was found of some kinds: for a run that was made to break something.
func (v Verdict) Except(kinds ...Kind) Verdict {
	v.Findings = slices.DeleteFunc(slices.Clone(v.Findings), func(f Finding) bool { return slices.Contains(kinds, f.Kind) })
	return v
}

// OrderBreaks is how often the order of a key was broken, in Kafka and in effects.
func (v Verdict) OrderBreaks() int { return v.Count(Overtaken) + v.Count(Strayed) + v.Count(OutOfTurn) }

// RecoveryTimes are the median and the longest of all recoveries; zero without any.
func (f Figures) RecoveryTimes() (p50, most time.Duration) { return spread(f.Recoveries) }

// String is the verdict for people: the figures, and a paragraph for each finding.
func (v Verdict) String() string {
	var b strings.Builder
	f := v.Figures
	fmt.Fprintf(&b, "%d events committed, %d records in Kafka (%d duplicates, %d late, furthest %d offsets behind), %d effects, %d letters open, %d discarded, %d pending",
		f.Events, f.Records, f.Duplicates, f.Late, f.Furthest, f.Effects, f.Letters, f.Discarded, f.Pending)
	for _, r := range f.ByReason {
		fmt.Fprintf(&b, "\nduplicates: %d %s", r.Count, r.Reason)
	}
	if len(f.Recoveries) > 0 {
		p50, most := f.RecoveryTimes()
		fmt.Fprintf(&b, "\n%d recoveries, p50 %s, at most %s", len(f.Recoveries), p50.Round(time.Millisecond), most.Round(time.Millisecond))
	}
	if v.Holds() {
		b.WriteString("\nall oracles agree")
		return b.String()
	}
	for _, found := range v.Findings {
		fmt.Fprintf(&b, "\n%s: %s, %d times", found.Oracle, found.Kind, found.Count)
		for _, e := range found.Examples {
			fmt.Fprintf(&b, "\n    %s", e)
		}
		if more := found.Count - len(found.Examples); more > 0 {
			fmt.Fprintf(&b, "\n    and %d more", more)
		}
	}
	return b.String()
}
