package oracle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// begun is when the runs of tests begin.
var begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// script writes a run by hand, a millisecond an entry.
type script struct {
	run     Run
	now     time.Time
	changes int64 // the last number of PositionLog and TakenLog
}

func (s *script) say(actor string, pid int, e history.Entry) {
	s.now = s.now.Add(time.Millisecond)
	e.At, e.Actor, e.PID = s.now, actor, pid
	s.run.Entries = append(s.run.Entries, e)
}

func (s *script) did(actor string, pid int, op history.Op, how history.Result, ids ...string) {
	s.say(actor, pid, history.Entry{Op: op, How: how, IDs: ids})
}

func (s *script) publish(actor string, pid int, ids ...string) {
	s.did(actor, pid, history.Publish, "", ids...)
	s.did(actor, pid, history.Acknowledge, history.OK, ids...)
}

func (s *script) write(id, key string, number int64) {
	s.run.Written = append(s.run.Written, Written{id, "o", key, number, typeOf(id), "", nil})
}

func (s *script) lane(epoch int64, owner, by, done string) {
	s.run.LaneLog = append(s.run.LaneLog, LaneChange{N: int64(len(s.run.LaneLog)), At: s.now, Epoch: epoch, Owner: owner, By: by, Done: done})
}

func (s *script) position(epoch, position int64, owner string) {
	s.run.PositionLog = append(s.run.PositionLog, PositionChange{N: s.nextChange(), At: s.now, Consumer: "c", Topic: "o",
		Epoch: epoch, Position: position, Owner: owner, By: owner})
}

func (s *script) taken(consumer, topic string, partition int, id, by string) {
	s.run.TakenLog = append(s.run.TakenLog, Taken{N: s.nextChange(), Consumer: consumer, Topic: topic, Partition: partition, ID: id, By: by})
}

// nextChange is a number for a change of a position, or for an event that is taken in.
func (s *script) nextChange() int64 {
	s.changes++
	return s.changes
}

// typeOf is the type of an event: those of key d no handler can bear.
func typeOf(id string) string {
	if strings.HasPrefix(id, "d") {
		return "poison"
	}
	return "changed"
}

const alarm = "a relay has not been seen"

// whole is a small run in which all that may happen does: a COMMIT without an answer, one that was refused, a relay that
// is killed before it has saved, with what it published sent again, a batch without an answer, and an event that is given up.
func whole() Run {
	s := &script{now: begun}
	s.run.Lanes, s.run.Consumers = 1, []string{"c"}
	s.run.Alarms = map[string][]Alarm{"kill": {{By: "relay", Messages: []string{alarm}}}}
	s.run.Limits.Canary = "4111-1111"
	for actor, pid := range map[string]int{"producer/0": 10, "relay/0": 20, "relay/1": 21, "c/0": 30} {
		s.run.Entries = append(s.run.Entries, history.Entry{At: begun, Actor: actor, PID: pid, Op: history.Begin})
	}

	// 1. What is written: two events at once, one whose COMMIT is not answered, one that is refused.
	s.did("producer/0", 10, history.Intend, "", "a1", "b1")
	s.did("producer/0", 10, history.Commit, history.OK, "a1", "b1")
	s.did("producer/0", 10, history.Intend, "", "a2", "d1")
	s.did("producer/0", 10, history.Commit, history.Unknown, "a2", "d1")
	s.did("producer/0", 10, history.Intend, "", "x1", "x2")
	s.did("producer/0", 10, history.Commit, history.Failed, "x1", "x2")
	s.did("producer/0", 10, history.Intend, "", "a3")
	s.did("producer/0", 10, history.Commit, history.OK, "a3")
	s.did("producer/0", 10, history.Intend, "", "-1")
	s.did("producer/0", 10, history.Commit, history.OK, "-1")
	s.write("a1", "a", 1)
	s.write("b1", "b", 1)
	s.write("a2", "a", 2)
	s.write("d1", "d", 1)
	s.write("a3", "a", 3)
	s.write("-1", "", 0)

	// 2. One relay publishes and is killed before it saves; the next publishes again.
	s.lane(0, "", "", "1:1:")
	s.lane(1, "relay/0", "relay/0", "1:1:")
	s.say("relay/0", 20, history.Entry{Op: history.Claim, Epoch: 1})
	s.publish("relay/0", 20, "a1", "b1")
	s.say("faults", 1, history.Entry{Op: history.Fault, Text: "kill"})
	s.run.Killed = []Process{{"relay/0", 20}}
	s.say("relay/1", 21, history.Entry{Op: history.Log, Text: alarm + " for 5 s"})
	s.lane(2, "relay/1", "relay/1", "1:1:")
	s.say("relay/1", 21, history.Entry{Op: history.Claim, Epoch: 2})
	s.say("faults", 1, history.Entry{Op: history.Heal, Text: "kill"})
	s.publish("relay/1", 21, "a1", "b1")
	s.did("relay/1", 21, history.Publish, "", "a2", "d1", "-1")
	s.did("relay/1", 21, history.Acknowledge, history.Unknown, "a2", "d1", "-1")
	s.publish("relay/1", 21, "a2", "d1", "-1")
	s.lane(2, "relay/1", "relay/1", "1:9:")
	s.run.Cursors = []CursorSample{{At: s.now, Done: 5}}
	s.say("runner", 1, history.Entry{Op: history.Recovered, Text: "kill"})
	s.publish("relay/1", 21, "a3")
	s.lane(2, "relay/1", "relay/1", "1:12:")
	s.lane(2, "", "relay/1", "1:12:")
	s.did("relay/1", 21, history.Lose, history.OK)
	for i, id := range []string{"a1", "a1", "a2", "a2", "a3"} {
		s.run.Records = append(s.run.Records, Record{id, "o", "a", 0, int64(i), ""})
	}
	for i, id := range []string{"b1", "b1", "d1", "-1", "d1"} {
		key := id[:1]
		if key == "-" {
			key = ""
		}
		s.run.Records = append(s.run.Records, Record{id, "o", key, 1, int64(i), ""})
	}

	// 3. The consumer gives one up.
	s.position(1, 0, "c/0")
	for _, id := range []string{"b1", "a1", "-1", "a2", "a3"} {
		s.taken("c", "o", 0, id, "c/0")
		s.say("c/0", 30, history.Entry{Op: history.Effect, IDs: []string{id}})
		key := id[:1]
		if key == "-" {
			key = ""
		}
		s.run.Effects = append(s.run.Effects, Effect{Consumer: "c", ID: id, Key: key, At: s.now})
		s.say("c/0", 30, history.Entry{Op: history.Receive, IDs: []string{id}, Text: "handled"})
	}
	s.taken("c", "o", 0, "d1", "c/0")
	s.did("c/0", 30, history.Letter, "", "d1")
	s.run.Letters = []Letter{{ID: 1, EventID: "d1", Consumer: "c", State: Open, Reason: "it failed 5 times"}}
	s.position(1, 5, "c/0")
	for _, p := range []Process{{"producer/0", 10}, {"relay/1", 21}, {"c/0", 30}} {
		s.say(p.Actor, p.PID, history.Entry{Op: history.End})
	}
	return s.run
}

func TestForge_ARunInWhichFaultsLoseNothingHolds(t *testing.T) {
	t.Parallel()
	v := Judge(whole())
	if !v.Holds() {
		t.Error(v)
	}
	f := v.Figures
	if f.Events != 6 || f.Records != 10 || f.Effects != 5 || f.Duplicates != 4 || f.Late != 0 || f.Furthest != 2 || f.Letters != 1 || f.Unknown != 1 || f.Faults["kill"] != 1 || f.Claims != 2 {
		t.Errorf("figures: %+v", f)
	}
	if want := []ReasonCount{{OtherProcess, 2}, {Unanswered, 2}}; !slices.Equal(f.ByReason, want) {
		t.Errorf("duplicates: %+v, want %+v", f.ByReason, want)
	}
	if p50, most := f.RecoveryTimes(); p50 != 7*time.Millisecond || most != p50 {
		t.Errorf("recovery: p50 %s, at most %s", p50, most)
	}
}

// entry is the place of the nth entry of an op, from 0.
func (r *Run) entry(op history.Op, nth int) int {
	for i, e := range r.Entries {
		if e.Op == op {
			if nth == 0 {
				return i
			}
			nth--
		}
	}
	panic(fmt.Sprintf("no such %s", op))
}

// written is the place of an event in Written.
func (r *Run) written(id string) int {
	return slices.IndexFunc(r.Written, func(w Written) bool { return w.ID == id })
}

func (r *Run) forget(op history.Op, nth int) {
	i := r.entry(op, nth)
	r.Entries = slices.Delete(r.Entries, i, i+1)
}

// insert puts a record of id at the end of partition 0 or 1.
func (r *Run) insert(id, key string, partition int) {
	i := slices.IndexFunc(r.Records, func(rec Record) bool { return rec.Partition > partition })
	if i < 0 {
		i = len(r.Records)
	}
	r.Records = slices.Insert(r.Records, i, Record{id, "o", key, partition, 100, ""})
}

// give adds a letter, and the word of who wrote it.
func (r *Run) give(l Letter) {
	r.Letters = append(r.Letters, l)
	r.then(by("c/0", 30, history.Letter, "", l.EventID))
}

// knowContents gives each event a content of its own, as it was written, in Kafka and for handlers.
func (r *Run) knowContents() {
	for i := range r.Written {
		r.Written[i].Content = "of " + r.Written[i].ID
	}
	for i := range r.Records {
		r.Records[i].Content = "of " + r.Records[i].ID
	}
	for i := range r.Effects {
		r.Effects[i].Content = "of " + r.Effects[i].ID
	}
}

func (r *Run) unrecord(id string) {
	r.Records = slices.DeleteFunc(r.Records, func(rec Record) bool { return rec.ID == id })
}

// later puts off an entry, and all that come after it.
func (r *Run) later(from int, by time.Duration) {
	since := r.Entries[from].At
	for i := range r.Entries[from:] {
		r.Entries[from+i].At = r.Entries[from+i].At.Add(by)
	}
	for i := range r.LaneLog {
		if !r.LaneLog[i].At.Before(since) {
			r.LaneLog[i].At = r.LaneLog[i].At.Add(by)
		}
	}
}

func TestForge_EveryKindOfWrongIsFoundByItsOracleAndByNoOther(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		oracle Oracle
		kind   Kind
		count  int
		forge  func(r *Run)
	}{
		{"a run in which nothing was written", Evidence, NothingWritten, 1, func(r *Run) {
			*r = Run{Entries: []history.Entry{{Op: history.Begin}, {Op: history.End}}}
		}},
		{"a run without a history", Evidence, NoHistory, 1, func(r *Run) { r.Entries = nil }},
		{"an event that no producer meant to write", Evidence, Unintended, 1, func(r *Run) { r.forget(history.Intend, 4) }},
		{"a line that was torn without a kill", Evidence, TornLines, 1, func(r *Run) { r.Torn = 2 }},
		{"an event that is in written twice", Evidence, WrittenTwice, 1, func(r *Run) { r.write("b1", "b", 1) }},
		{"a history that goes back in time", Evidence, Unknowable, 1, func(r *Run) { r.Entries[10].At = begun.Add(-time.Second) }},
		{"a letter in no known state", Evidence, Unknowable, 1, func(r *Run) { r.Letters[0].State = "fixed" }},
		{"an effect with a stranger", Evidence, Unknowable, 1, func(r *Run) { r.Effects = append(r.Effects, Effect{Consumer: "d", ID: "a1", Key: "a"}) }},
		{"a log whose offsets fall", Evidence, Unknowable, 1, func(r *Run) { r.Records[1].Offset = 0 }},

		{"an event that is not in Kafka", NoLoss, Lost, 1, func(r *Run) { r.unrecord("a3") }},
		{"an event whose COMMIT had no answer, and which is not in Kafka", NoLoss, Lost, 1, func(r *Run) { r.unrecord("a2") }},
		{"an event whose letter was replayed, and which is not in Kafka", NoLoss, Lost, 1, func(r *Run) {
			r.unrecord("a3")
			r.give(Letter{ID: 2, EventID: "a3", State: Replayed})
		}},
		{"an event whose relay's letter was discarded, while another's was not", NoLoss, Lost, 1, func(r *Run) {
			r.unrecord("a3")
			r.unrecord("-1")
			r.Effects = r.Effects[:4]
			r.give(Letter{ID: 2, EventID: "a3", State: Discarded})
		}},
		{"an effect that is missing", NoLoss, Missing, 1, func(r *Run) { r.Effects = r.Effects[:4] }},
		{"an event whose consumer's letter was replayed without an effect", NoLoss, Missing, 1, func(r *Run) { r.Letters[0].State = Replayed }},
		{"an event that waits with another consumer than the one that misses it", NoLoss, Missing, 1, func(r *Run) {
			r.Effects = r.Effects[:4]
			r.give(Letter{ID: 2, EventID: "a3", Consumer: "somebody else", State: Open})
		}},
		{"a relay that gives up an event that arrived", NoLoss, Undue, 1, func(r *Run) {
			r.Limits.MayDie = []string{"poison"}
			r.give(Letter{ID: 2, EventID: "a3", State: Open, Reason: "it failed 5 times"})
		}},
		{"a relay that gives up an event that no handler can bear", NoLoss, Undue, 1, func(r *Run) {
			r.Limits.MayDie = []string{"poison"}
			r.give(Letter{ID: 2, EventID: "d1", State: Open, Reason: "it failed 5 times"})
		}},
		{"a consumer that gives up what it can handle, and whose letter was replayed", NoLoss, Undue, 1, func(r *Run) {
			r.Limits.MayDie = []string{"poison"}
			r.give(Letter{ID: 2, EventID: "a3", Consumer: "c", State: Replayed, Reason: "it failed 5 times"})
		}},
		{"a stale letter without an effect", NoLoss, Missing, 1, func(r *Run) {
			r.Effects = r.Effects[:4]
			r.give(Letter{ID: 2, EventID: "a3", Consumer: "c", State: Open, Reason: "stale: it lies below the position"})
		}},
		{"a letter of a conflict without an effect", NoLoss, Missing, 1, func(r *Run) {
			r.Effects = r.Effects[:4]
			r.give(Letter{ID: 2, EventID: "a3", Consumer: "c", State: Open, Reason: "conflict: another payload"})
		}},
		{"an event that was given up and done", NoLoss, GivenUp, 1, func(r *Run) { r.Effects = append(r.Effects, Effect{Consumer: "c", ID: "d1", Key: "d"}) }},

		{"an event that was given up too soon", NoLoss, TooSoon, 1, func(r *Run) { r.Limits.Tries = 3 }},

		{"an effect before its time", NoGhost, Hurried, 1, func(r *Run) {
			due := r.Effects[2].At.Add(time.Microsecond)
			r.Written[r.written(r.Effects[2].ID)].Due = &due
		}},
		{"a record of a COMMIT that was refused", NoGhost, Ghosts, 1, func(r *Run) { r.insert("x1", "x", 1) }},
		{"an effect of nothing that was committed", NoGhost, Phantoms, 1, func(r *Run) { r.Effects = append(r.Effects, Effect{Consumer: "c", ID: "x1", Key: "x"}) }},
		{"a letter of nothing that was committed", NoGhost, Phantoms, 1, func(r *Run) {
			r.give(Letter{ID: 2, EventID: "x1", State: Open})
		}},
		{"a record with another key", NoGhost, Altered, 1, func(r *Run) { r.Records[4].Key = "b" }},
		{"an effect with another key", NoGhost, Altered, 1, func(r *Run) { r.Effects[4].Key = "b" }},

		{"a record with another content", NoGhost, Altered, 1, func(r *Run) {
			r.knowContents()
			r.Records[4].Content = "of a2"
		}},
		{"a handler that was given another content", NoGhost, Altered, 1, func(r *Run) {
			r.knowContents()
			r.Effects[4].Content = "of a2"
		}},

		{"an effect that happened twice", EffectOnce, Doubles, 1, func(r *Run) { r.Effects = append(r.Effects, r.Effects[0]) }},
		{"an effect that happened again after a later one of its key", EffectOnce, Doubles, 1, func(r *Run) { r.Effects = append(r.Effects, r.Effects[1]) }},

		{"a key whose order is broken in Kafka", KeyOrder, Overtaken, 1, func(r *Run) {
			r.Records[0].ID, r.Records[1].ID, r.Records[2].ID, r.Records[3].ID = "a2", "a2", "a1", "a1"
		}},
		{"an event that came after two later ones", KeyOrder, Overtaken, 1, func(r *Run) {
			for i, id := range []string{"a2", "a2", "a3", "a1", "a1"} {
				r.Records[i].ID = id
			}
		}},
		{"a follower that overtook in Kafka while a letter of its key was open", KeyOrder, Overtaken, 1, func(r *Run) {
			r.give(Letter{ID: 2, EventID: "a1", State: Replayed})
			for i, id := range []string{"a1", "a1", "a3", "a2", "a2"} {
				r.Records[i].ID = id
			}
		}},
		{"a key in two partitions", KeyOrder, Strayed, 1, func(r *Run) {
			r.unrecord("a3")
			r.insert("a3", "a", 1)
		}},
		{"a repeat in another partition", KeyOrder, Strayed, 1, func(r *Run) {
			r.Records = slices.Delete(r.Records, 1, 2)
			r.insert("a1", "a", 1)
		}},
		{"effects of a key out of order", KeyOrder, OutOfTurn, 1, func(r *Run) { r.Effects[1], r.Effects[3] = r.Effects[3], r.Effects[1] }},
		{"effects out of order after one that was given up", KeyOrder, OutOfTurn, 1, func(r *Run) {
			r.give(Letter{ID: 2, EventID: "a1", Consumer: "c", State: Replayed})
			r.Effects[3], r.Effects[4] = r.Effects[4], r.Effects[3]
		}},

		{"a duplicate that nobody published", Duplicates, Unexplained, 1, func(r *Run) { r.insert("a3", "a", 0) }},
		{"a duplicate of one who knew that it had arrived", Duplicates, Unexplained, 1, func(r *Run) {
			r.Entries[r.entry(history.Acknowledge, 2)].How = history.OK
			r.unrecord("d1")
			r.insert("d1", "d", 1) // once
			r.unrecord("-1")
			r.insert("-1", "", 1)
			r.Records[len(r.Records)-1].Offset++
		}},
		{"a duplicate of one who did not wait for the answer", Duplicates, Unexplained, 1, func(r *Run) {
			r.insert("a3", "a", 0)
			i := r.entry(history.Publish, 4)
			r.Entries = slices.Insert(r.Entries, i, r.Entries[i])
		}},
		{"a duplicate by one who found it done when it claimed the lane", Duplicates, Unexplained, 1, func(r *Run) {
			r.Places = []Place{{ID: "a1", XID: 3, Seq: 1, At: begun}}
			r.LaneLog[1].Done, r.LaneLog[2].Done = "1:4:2", "1:4:2"
		}},
		{"a duplicate by one who found it done in a window when it claimed the lane", Duplicates, Unexplained, 1, func(r *Run) {
			r.Places = []Place{{ID: "a1", XID: 3, Seq: 7, At: begun}, {ID: "b1", XID: 3, Seq: 8, At: begun}}
			for i := 1; i < 3; i++ {
				r.LaneLog[i].Upto, r.LaneLog[i].Pos = "1:4:2", 7
			}
		}},
		{"a third record with reasons for two", Duplicates, Unexplained, 1, func(r *Run) { r.insert("a1", "a", 0) }},
		{"more duplicates of a kind than allowed", Duplicates, TooMany, 1, func(r *Run) { r.Limits.Duplicates = map[Explanation]int{OtherProcess: 1} }},
		{"a duplicate of a lane that was handed back in order", Duplicates, TooMany, 1, func(r *Run) {
			r.Limits.Duplicates = map[Explanation]int{HandedBack: 0}
			r.Entries[r.entry(history.Log, 0)] = history.Entry{At: r.Entries[r.entry(history.Log, 0)].At, Actor: "relay/0", PID: 20, Op: history.Lose, How: history.OK}
			r.Alarms = nil
		}},
		{"a duplicate after a refusal, which made no record", Duplicates, Unexplained, 3, func(r *Run) {
			r.Entries[r.entry(history.Acknowledge, 2)].How = history.Failed
			r.unrecord("-1")
			r.insert("-1", "", 1)
			r.insert("-1", "", 1)
			r.Records[len(r.Records)-1].Offset++
		}},
		{"a duplicate of another, who learns only now that the broker refused it", Duplicates, Unexplained, 2, func(r *Run) {
			i, last := r.entry(history.Acknowledge, 0), r.entry(history.Publish, 1)
			refusal, at := r.Entries[i], r.Entries[last].At
			refusal.How, refusal.At = history.Failed, at
			r.Entries = slices.Insert(r.Entries, last+1, refusal)
			r.forget(history.Acknowledge, 0)
		}},
		{"duplicates of what was acknowledged long before and never saved", Duplicates, TooLate, 2, func(r *Run) {
			r.later(r.entry(history.Fault, 0), 11*time.Second)
		}},
		{"duplicates of what was never saved, although a save that failed excuses some seconds", Duplicates, TooLate, 2, func(r *Run) {
			r.Limits.Unsaving = "cursors not saved"
			i := r.entry(history.Fault, 0)
			r.later(i, 16*time.Second)
			r.Entries = slices.Insert(r.Entries, i, history.Entry{At: r.Entries[i-1].At.Add(8 * time.Second), Actor: "relay/0", PID: 20, Op: history.Log, Text: "cursors not saved, will retry"})
		}},
		{"duplicates of what was never saved, although another relay said again and again that it could not save", Duplicates, TooLate, 2, func(r *Run) {
			r.cannotSave(Process{"relay/1", 21})
		}},
		{"duplicates of what was never saved, although the faults since kept nobody from it", Duplicates, TooLate, 2, func(r *Run) {
			r.Limits.Keeping = []string{"another fault"}
			r.later(r.entry(history.Heal, 0), 11*time.Second)
		}},
		{"duplicates in a run without faults", Duplicates, Unprovoked, 4, func(r *Run) {
			r.Entries = slices.DeleteFunc(r.Entries, func(e history.Entry) bool {
				return e.Op == history.Fault || e.Op == history.Heal || e.Op == history.Recovered
			})
		}},

		{"a lane's epoch that went down", Fencing, EpochFell, 1, func(r *Run) { r.LaneLog[5].Epoch, r.LaneLog[4].Epoch, r.LaneLog[3].Epoch = 1, 1, 1 }},
		{"a lane that changed hands under one epoch", Fencing, OwnerChanged, 1, func(r *Run) {
			r.LaneLog[2].Epoch = 1
			for i := range r.LaneLog[2:] {
				r.LaneLog[2+i].Epoch = 1
			}
			r.Entries[r.entry(history.Claim, 1)].Epoch = 1
			r.Entries[r.entry(history.Claim, 1)].Lane = 7 // elsewhere: what the parts say is another row's
		}},
		{"a cursor that one who lost the lane moved", Fencing, ChangedByOther, 1, func(r *Run) { r.LaneLog[3].By = "relay/0" }},
		{"a lane handed back by one who lost it, with a cursor", Fencing, ChangedByOther, 1, func(r *Run) { r.LaneLog[5].By, r.LaneLog[5].Done = "relay/0", "1:13:" }},
		{"an event that a person redirected while a relay sent it", Fencing, TakenFromCall, 1, func(r *Run) {
			r.Removed = []Removal{{"a3", "person/0", r.Entries[r.entry(history.Publish, 4)].At.Add(time.Microsecond)}}
		}},
		{"a lane that a person freed before its lease had run out", Fencing, TakenEarly, 1, func(r *Run) { r.LaneLog[5].By, r.LaneLog[5].Early = "person/0", true }},
		{"a lane that was taken before its lease had run out", Fencing, TakenEarly, 1, func(r *Run) { r.LaneLog[2].Early = true }},
		{"a cursor that was moved while nobody owned it", Fencing, ChangedByOther, 1, func(r *Run) {
			r.LaneLog = append(r.LaneLog, LaneChange{N: 6, Epoch: 2, By: "relay/0", Done: "1:13:"})
		}},
		{"a cursor that went back", Fencing, CursorFell, 1, func(r *Run) { r.LaneLog[4].Done, r.LaneLog[5].Done = "1:8:", "1:8:" }},
		{"a cursor that went back inside a window", Fencing, CursorFell, 1, func(r *Run) {
			r.LaneLog[4].Upto, r.LaneLog[4].Pos = "1:30:", 7
			r.LaneLog[4].Done = r.LaneLog[5].Done
			r.LaneLog[5].Upto, r.LaneLog[5].Pos = "1:30:", 6
		}},
		{"a cursor that left its window", Fencing, CursorFell, 1, func(r *Run) {
			r.LaneLog[4].Upto, r.LaneLog[4].Pos = "1:30:", 7
			r.LaneLog[4].Done = r.LaneLog[5].Done
		}},
		{"a cursor that drew another window before the end of its own", Fencing, CursorFell, 1, func(r *Run) {
			r.LaneLog[4].Upto, r.LaneLog[4].Pos = "1:30:", 7
			r.LaneLog[4].Done = r.LaneLog[5].Done
			r.LaneLog[5].Upto, r.LaneLog[5].Pos = "1:31:", 9
		}},
		{"two processes under one epoch", Fencing, ClaimedTwice, 1, func(r *Run) {
			r.Entries[r.entry(history.Claim, 1)].Epoch = 1
		}},
		{"a claim that the database never gave", Fencing, ClaimedInVain, 1, func(r *Run) { r.Entries[r.entry(history.Claim, 1)].Epoch = 3 }},
		{"a partition's epoch that went down", Fencing, EpochFell, 1, func(r *Run) { r.PositionLog[1].Epoch = 0 }},
		{"a position that went back", Fencing, CursorFell, 1, func(r *Run) { r.PositionLog[0].Position = 6 }},
		{"a partition that changed hands under one epoch", Fencing, OwnerChanged, 1, func(r *Run) { r.PositionLog[1].Owner = "c/1" }},
		{"a position that another saved", Fencing, ChangedByOther, 1, func(r *Run) { r.PositionLog[1].By = "c/1" }},
		{"a position that another saved, of an owner who is called something else", Fencing, ChangedByOther, 1, func(r *Run) {
			r.PositionLog[0].Owner, r.PositionLog[1].Owner = "JBSWY3DP", "JBSWY3DP"
			r.PositionLog[1].By = "c/1"
		}},
		{"an event that one took in who never had its partition", Fencing, TakenByOther, 1, func(r *Run) { r.TakenLog[2].By = "c/1" }},
		{"events that one took in who had lost their partition", Fencing, TakenByOther, 2, func(r *Run) {
			c := PositionChange{N: r.TakenLog[4].N, Consumer: "c", Topic: "o", Epoch: 2, Position: 4, Owner: "c/1", By: "c/1"}
			r.PositionLog = []PositionChange{r.PositionLog[0], c}
			r.TakenLog[4].N++
			r.TakenLog[5].N++
		}},
		{"an event that was taken in before anybody had its partition", Fencing, TakenByOther, 1, func(r *Run) { r.TakenLog[0].N = 0 }},

		{"an event that a cursor called published and that was nowhere", CursorTruth, SkippedByCursor, 1, func(r *Run) { r.Cursors[0].Missing = []string{"a2"} }},

		{"a fault that took too long to recover from", Liveness, Slow, 1, func(r *Run) { r.Limits.Recovery = 6 * time.Millisecond }},
		{"a fault that was not recovered from", Liveness, NeverBack, 1, func(r *Run) { r.forget(history.Recovered, 0) }},
		{"a fault that came twice and was recovered from once", Liveness, NeverBack, 1, func(r *Run) {
			for _, op := range []history.Op{history.Fault, history.Heal} {
				i := r.entry(op, 0)
				r.Entries = slices.Insert(r.Entries, i, r.Entries[i])
			}
		}},
		{"a fault without an end", Liveness, NeverHealed, 1, func(r *Run) { r.forget(history.Heal, 0) }},
		{"an event that is parked at the end", Liveness, StillWaits, 1, func(r *Run) {
			r.unrecord("a3")
			r.Effects = r.Effects[:4]
			r.Pending = []Waiting{{Where: "parked", ID: "a3"}}
		}},
		{"an event that is stored at the end", Liveness, StillWaits, 1, func(r *Run) {
			r.Effects = r.Effects[:4]
			r.Pending = []Waiting{{Where: "stored", Consumer: "c", ID: "a3"}}
		}},
		{"a letter that is being replayed at the end", Liveness, StillWaits, 1, func(r *Run) { r.Letters[0].State = Replaying }},

		{"a COMMIT that was answered and is not there", HonestErrors, FalseOK, 1, func(r *Run) { r.Entries[r.entry(history.Commit, 2)].How = history.OK }},
		{"a COMMIT that was refused and is there", HonestErrors, FalseFailure, 1, func(r *Run) { r.Entries[r.entry(history.Commit, 3)].How = history.Failed }},
		{"half of a transaction whose COMMIT had no answer", HonestErrors, Halved, 2, func(r *Run) {
			for _, op := range []history.Op{history.Intend, history.Commit} {
				e := &r.Entries[r.entry(op, 1)]
				e.IDs = append(slices.Clone(e.IDs), "d2")
			}
		}},
		{"half of a transaction whose producer died", HonestErrors, Halved, 1, func(r *Run) {
			e := &r.Entries[r.entry(history.Intend, 1)]
			e.IDs = append(slices.Clone(e.IDs), "d2")
			r.forget(history.Commit, 1)
		}},

		{"an event that was called handled before its effect was written", HonestErrors, SaidTooEarly, 1, func(r *Run) {
			r.Effects[2].At = r.Entries[r.entry(history.Receive, 2)].At.Add(time.Millisecond)
		}},
		{"an event that was sent after a person was told that it is discarded", HonestErrors, SentAfter, 1, func(r *Run) {
			r.Letters = append(r.Letters, Letter{ID: 2, EventID: "a3", State: Discarded, Command: "discard 1"})
			r.Entries = slices.Insert(r.Entries, r.entry(history.Publish, 4), history.Entry{At: r.Entries[r.entry(history.Publish, 4)].At, Actor: "person/0", PID: 40, Op: history.Decide, How: history.OK, Text: "discard 1"})
		}},

		{"a connection that is still there", Hygiene, LeftBehind, 1, func(r *Run) { r.Leftovers = []Leftover{{"connection", "relay/1"}} }},
		{"a process that left goroutines", Hygiene, LeftBehind, 1, func(r *Run) { r.Entries[r.entry(history.End, 1)].Text = "2 goroutines" }},
		{"a process that ended without a last word", Hygiene, Vanished, 1, func(r *Run) { r.forget(history.End, 1) }},
		{"a place whose second process is not the one that was killed", Hygiene, Vanished, 1, func(r *Run) { r.Killed[0].PID = 99 }},
		{"a statement without a table", Hygiene, Mistaken, 1, func(r *Run) { r.Entries[r.entry(history.Log, 0)].Text += " (SQLSTATE 42P01)" }},
		{"a payload in what a part wrote to its log", Hygiene, Leaked, 1, func(r *Run) { r.Leaks = []string{"line 7 of relay-1.log"} }},
		{"a payload in a log", Hygiene, Leaked, 1, func(r *Run) { r.Entries[r.entry(history.Log, 0)].Text += " card 4111-1111" }},

		{"a letter that nobody said", AlarmsSounded, Unsaid, 1, func(r *Run) { r.forget(history.Letter, 0) }},
		{"two letters of an event, and one was reported", AlarmsSounded, Unsaid, 1, func(r *Run) {
			r.Killed = nil
			r.then(by("relay/0", 20, history.End, ""))
			r.Letters = append(r.Letters, Letter{ID: 2, EventID: "d1", Consumer: "c", State: Open, Reason: "conflict: another payload"})
		}},
		{"a letter that nobody said, after a try of one who was killed much later", AlarmsSounded, Unsaid, 1, func(r *Run) {
			i := r.entry(history.Letter, 0)
			r.Entries[i] = history.Entry{At: r.Entries[i].At, Actor: "relay/0", PID: 20, Op: history.Effect, IDs: []string{"d1"}}
			r.then(by("relay/0", 20, history.Receive, ""))
			r.Entries[len(r.Entries)-1].At = r.Entries[i].At.Add(settling)
		}},
		{"a letter that nobody said, after a try of one who was killed and another by one who was not", AlarmsSounded, Unsaid, 1, func(r *Run) {
			i := r.entry(history.Letter, 0)
			r.Entries[i] = history.Entry{At: r.Entries[i].At, Actor: "relay/0", PID: 20, Op: history.Effect, IDs: []string{"d1"}}
			r.then(by("c/0", 30, history.Effect, "", "d1"))
		}},
		{"a letter that was reported and is not there", AlarmsSounded, MadeUp, 1, func(r *Run) { r.then(by("c/0", 30, history.Letter, "", "a1")) }},
		{"a fault that nobody said", AlarmsSounded, Silent, 1, func(r *Run) { r.forget(history.Log, 0) }},
		{"a fault that was reported as something else", AlarmsSounded, Silent, 1, func(r *Run) { r.Entries[r.entry(history.Log, 0)].Text = "all is well" }},
		{"a fault that was reported only by a part that need not", AlarmsSounded, Silent, 1, func(r *Run) { r.Entries[r.entry(history.Log, 0)].Actor = "c/0" }},
		{"a fault that only one of two reported", AlarmsSounded, Silent, 1, func(r *Run) {
			r.Alarms["kill"] = append(r.Alarms["kill"], Alarm{By: "c", Messages: []string{alarm}})
		}},
		{"a fault that is reported in the middle of a line", AlarmsSounded, Silent, 1, func(r *Run) {
			r.Entries[r.entry(history.Log, 0)].Text = "nobody says that " + alarm
		}},
		{"an alarm that came before the fault", AlarmsSounded, Silent, 1, func(r *Run) {
			i := r.entry(history.Log, 0)
			r.Entries[i].At = begun
			e := r.Entries[i]
			r.Entries = slices.Insert(slices.Delete(r.Entries, i, i+1), 0, e)
		}},
		{"an alarm that came too late", AlarmsSounded, Silent, 1, func(r *Run) {
			r.Limits.Alarm = time.Second
			i := r.entry(history.Log, 0)
			e := r.Entries[i]
			e.At = r.Entries[len(r.Entries)-1].At.Add(time.Minute)
			r.Entries = append(slices.Delete(r.Entries, i, i+1), e)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := whole()
			c.forge(&r)
			v := Judge(r)
			if v.Holds() || !slices.Equal(v.Broken(), []Oracle{c.oracle}) || v.Count(c.kind) != c.count || len(v.Findings) != 1 {
				t.Errorf("want %s alone: %s, %d times; it says\n%s", c.oracle, c.kind, c.count, v)
			}
		})
	}
}

// write adds a row of written.
func (r *Run) write(id, key string, number int64) {
	r.Written = append(r.Written, Written{id, "o", key, number, typeOf(id), "", nil})
}

// What the library says once in a while only may have been said a while before the fault.
func TestForge_AnAlarmMayComeBeforeAFaultOnlyWhereThatIsAllowed(t *testing.T) {
	t.Parallel()
	for before, holds := range map[time.Duration]bool{0: false, time.Millisecond: false, time.Hour: true} {
		r := whole()
		r.Alarms["kill"][0].Before = before
		i := r.entry(history.Log, 0)
		r.Entries[i].At = begun
		e := r.Entries[i]
		r.Entries = slices.Insert(slices.Delete(r.Entries, i, i+1), 0, e)
		if v := Judge(r); v.Holds() != holds {
			t.Errorf("where a line counts %s before, it says\n%s", before, v)
		}
	}
}
