package oracle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// then puts entries at the end of the history, a millisecond each.
func (r *Run) then(entries ...history.Entry) {
	for _, e := range entries {
		e.At = r.Entries[len(r.Entries)-1].At.Add(time.Millisecond)
		r.Entries = append(r.Entries, e)
	}
}

// cannotSave has 24 s go by before the first fault, in which a relay says every two that it could not save.
func (r *Run) cannotSave(who Process) {
	r.Limits.Unsaving = "cursors not saved"
	i := r.entry(history.Fault, 0)
	r.later(i, 25*time.Second)
	at := r.Entries[i-1].At
	for n := 12; n > 0; n-- {
		r.Entries = slices.Insert(r.Entries, i, history.Entry{At: at.Add(time.Duration(n) * 2 * time.Second), Actor: who.Actor, PID: who.PID, Op: history.Log, Text: "cursors not saved, will retry"})
	}
}

func by(actor string, pid int, op history.Op, how history.Result, ids ...string) history.Entry {
	return history.Entry{Actor: actor, PID: pid, Op: op, How: how, IDs: ids}
}

func TestAllowed_WhatMayHappenIsNotHeldAgainstARun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		forge func(r *Run)
	}{
		{"an event that was given up after a try less for a fault, and one for a process that was killed", func(r *Run) { r.Limits.Tries = 2 }},
		{"an effect at the moment at which it was due", func(r *Run) {
			r.Written[r.written(r.Effects[2].ID)].Due = &r.Effects[2].At
		}},
		{"duplicates of what could not be saved for long, as its relay said again and again", func(r *Run) {
			r.cannotSave(Process{"relay/0", 20})
		}},
		{"duplicates of what a relay had just acknowledged that was killed, and whose lanes nobody took for long", func(r *Run) {
			r.Limits.Keeping = []string{"another fault"}
			r.KilledAt = map[Process]time.Time{r.Killed[0]: r.Entries[r.entry(history.Fault, 0)].At}
			r.later(r.entry(history.Heal, 0), 11*time.Second)
		}},
		{"an event that a person gave up before it was tried often enough", func(r *Run) {
			r.Limits.Tries, r.Limits.MayDie = 4, []string{"poison"}
			r.Letters[0].Command = "give up 1"
			r.forget(history.Letter, 0)
		}},
		{"an event that a person discarded, and that was on its way", func(r *Run) {
			r.Limits.MayDie = []string{"poison"}
			r.Letters = append(r.Letters, Letter{ID: 2, EventID: "a3", State: Discarded, Command: "discard 1"})
			r.Entries = slices.Insert(r.Entries, r.entry(history.Acknowledge, 4), history.Entry{At: r.Entries[r.entry(history.Acknowledge, 4)].At, Actor: "person/0", PID: 40, Op: history.Decide, How: history.OK, Text: "discard 1"})
		}},
		{"an event that a person discarded, and that is sent because a copy was adopted", func(r *Run) {
			r.Limits.MayDie = []string{"poison"}
			i := r.entry(history.Publish, 4)
			r.Letters = append(r.Letters, Letter{ID: 2, EventID: "a3", State: Discarded, Command: "discard 1"})
			r.LaneLog = append(r.LaneLog, LaneChange{N: int64(len(r.LaneLog)), Lane: 9, At: r.Entries[i].At.Add(-time.Microsecond), Adopted: true})
			r.Entries = slices.Insert(r.Entries, i, history.Entry{At: r.Entries[i].At.Add(-2 * time.Microsecond), Actor: "person/0", PID: 40, Op: history.Decide, How: history.OK, Text: "discard 1"})
		}},
		{"an event that a person gave up, and replayed", func(r *Run) {
			r.Letters = append(r.Letters, Letter{ID: 2, EventID: "a3", State: Replayed, Command: "give up 1"})
			r.Entries = slices.Insert(r.Entries, r.entry(history.Publish, 4), history.Entry{At: r.Entries[r.entry(history.Publish, 4)].At, Actor: "person/0", PID: 40, Op: history.Decide, How: history.OK, Text: "give up 1"})
		}},
		{"events that a person decided about before and after they were sent", func(r *Run) {
			i := r.entry(history.Publish, 4)
			r.Removed = []Removal{{"a3", "person/0", r.Entries[i].At}, {"a3", "person/0", r.Entries[i+1].At}}
		}},
		{"an event that a person decided about when the lease of the relay that sent it had run out", func(r *Run) {
			at := r.Entries[r.entry(history.Publish, 4)].At
			r.LaneLog[5].By, r.LaneLog[5].At = "person/0", at.Add(time.Microsecond)
			r.Removed = []Removal{{"a3", "person/0", at.Add(2 * time.Microsecond)}}
		}},
		{"a lane that a person freed when its lease had run out", func(r *Run) { r.LaneLog[5].By = "person/0" }},
		{"a repeat after later events of its key", func(r *Run) {
			for i, id := range []string{"a1", "a2", "a2", "a3", "a1"} {
				r.Records[i].ID = id
			}
		}},
		{"an event that a relay gave up is nowhere", func(r *Run) {
			r.unrecord("a3")
			r.Effects = r.Effects[:4]
			r.give(Letter{ID: 2, EventID: "a3", State: Open})
		}},
		{"an event that a relay gave up, and that a person discarded", func(r *Run) {
			r.unrecord("a3")
			r.Effects = r.Effects[:4]
			r.give(Letter{ID: 2, EventID: "a3", State: Discarded})
		}},
		{"an event that a relay gave up comes late in its key", func(r *Run) {
			r.give(Letter{ID: 2, EventID: "a2", State: Replayed})
			for i, id := range []string{"a1", "a1", "a3", "a2", "a2"} {
				r.Records[i].ID = id
			}
			r.Effects[3], r.Effects[4] = r.Effects[4], r.Effects[3]
		}},
		{"an event that a consumer gave up comes late in its key", func(r *Run) {
			r.give(Letter{ID: 2, EventID: "a2", Consumer: "c", State: Replayed})
			r.Effects[3], r.Effects[4] = r.Effects[4], r.Effects[3]
		}},
		{"a letter of a repeat beside an effect", func(r *Run) {
			r.give(Letter{ID: 2, EventID: "a2", Consumer: "c", State: Open, Reason: "stale: it lies below the position"})
		}},
		{"a letter was replayed although its event had arrived", func(r *Run) {
			r.give(Letter{ID: 2, EventID: "a3", State: Replayed})
			r.insert("a3", "a", 0)
			r.then(by("relay/1", 21, history.Publish, "", "a3"))
		}},
		{"an id whose COMMIT was refused is written by a later one", func(r *Run) {
			i := r.entry(history.Intend, 3)
			at := r.Entries[i].At
			failed := by("producer/0", 10, history.Commit, history.Failed, "a3")
			failed.At = at
			r.Entries = slices.Insert(r.Entries, i, failed)
		}},
		{"the database gives its logs in another order", func(r *Run) {
			slices.Reverse(r.LaneLog)
			slices.Reverse(r.PositionLog)
			slices.Reverse(r.TakenLog)
		}},
		{"a new owner reads a partition from further back", func(r *Run) {
			r.PositionLog = append(r.PositionLog, PositionChange{N: 100, Consumer: "c", Topic: "o", Epoch: 2, Position: 1, Owner: "c/1", By: "c/1"})
		}},
		{"a partition is lost, and had again by the same node", func(r *Run) {
			r.PositionLog = append(r.PositionLog, PositionChange{N: 100, Consumer: "c", Topic: "o", Epoch: 2, Position: 5, Owner: "c/1", By: "c/1"},
				PositionChange{N: 102, Consumer: "c", Topic: "o", Epoch: 3, Position: 5, Owner: "c/0", By: "c/0"})
			r.TakenLog = append(r.TakenLog, Taken{N: 101, Consumer: "c", Topic: "o", ID: "e1", By: "c/1"}, Taken{N: 103, Consumer: "c", Topic: "o", ID: "e2", By: "c/0"})
		}},
		{"nobody knows who took an event in", func(r *Run) { r.TakenLog[3].By = "" }},
		{"a consumer's node that the database calls something else", func(r *Run) {
			r.PositionLog[0].Owner, r.PositionLog[1].Owner = "JBSWY3DP", "JBSWY3DP"
		}},
		{"what was acknowledged is sent again after a fault that lasted for long", func(r *Run) {
			r.later(r.entry(history.Heal, 0), time.Minute)
		}},
		{"a parked event is tried again long after it had arrived", func(r *Run) {
			r.Parked = []Parking{{ID: "a1"}, {ID: "b1"}}
			r.later(r.entry(history.Fault, 0), 11*time.Second)
		}},
		{"a record that was refused and sent again", func(r *Run) {
			i := r.entry(history.Acknowledge, 2)
			r.Entries[i].How = history.Failed
			for _, id := range []string{"a2", "a3", "d1", "-1"} {
				r.unrecord(id)
			}
			r.insert("a2", "a", 0)
			r.insert("a3", "a", 0)
			r.insert("d1", "d", 1)
			r.insert("-1", "", 1)
			for i := range r.Records {
				r.Records[i].Offset = int64(i)
			}
		}},
		{"the cursors of an adopted copy begin anew", func(r *Run) {
			r.LaneLog = append(r.LaneLog, LaneChange{N: 6, Epoch: r.LaneLog[len(r.LaneLog)-1].Epoch + 1, Done: "1:2:", Adopted: true})
		}},
		{"a leaving relay saves and hands back at once", func(r *Run) { r.LaneLog[5].Done = "1:13:" }},
		{"a relay claimed a lane before its changes were logged", func(r *Run) {
			r.LaneLog = r.LaneLog[2:]
		}},
		{"two faults that are recovered from together", func(r *Run) {
			i := r.entry(history.Heal, 0)
			again := r.Entries[i]
			again.Text = "freeze"
			began := again
			began.Op = history.Fault
			r.Entries = slices.Insert(r.Entries, i, began, again)
			r.Entries[r.entry(history.Recovered, 0)].Text = ""
		}},
		{"the same fault twice, one inside the other", func(r *Run) {
			for _, op := range []history.Op{history.Fault, history.Heal, history.Recovered} {
				i := r.entry(op, 0)
				r.Entries = slices.Insert(r.Entries, i, r.Entries[i])
			}
		}},
		{"a line that a kill tore", func(r *Run) { r.Torn = 1 }},
		{"a run that kept no history, and says so", func(r *Run) { r.Entries, r.Limits.NoHistory = nil, true }},
		{"an alarm shortly after the healing", func(r *Run) {
			i := r.entry(history.Log, 0)
			e := r.Entries[i]
			r.Entries = slices.Delete(r.Entries, i, i+1)
			j := r.entry(history.Heal, 0)
			e.At = r.Entries[j].At
			r.Entries = slices.Insert(r.Entries, j+1, e)
		}},
		{"a disk that is full", func(r *Run) { r.Entries[r.entry(history.Log, 0)].Text += " (SQLSTATE 53100)" }},
		{"as many duplicates of a kind as are allowed", func(r *Run) { r.Limits.Duplicates = map[Explanation]int{OtherProcess: 2, Unanswered: 2} }},
		{"a letter whose writer was killed and could say no more", func(r *Run) {
			i := r.entry(history.Letter, 0)
			r.Entries[i].Op = history.Effect
			r.Entries[i].Actor, r.Entries[i].PID = "relay/0", 20
		}},
		{"contents as they were written", func(r *Run) { r.knowContents() }},
		{"a window that was read to its end", func(r *Run) {
			r.LaneLog[4].Done, r.LaneLog[4].Upto, r.LaneLog[4].Pos = r.LaneLog[3].Done, "1:12:", 7
		}},
		{"a cursor that was not saved before the lane was claimed", func(r *Run) {
			r.Places = []Place{{ID: "a1", XID: 3, Seq: 7, At: begun}, {ID: "b1", XID: 2, Seq: 9, At: begun}}
			for i := 1; i < 3; i++ {
				r.LaneLog[i].Done, r.LaneLog[i].Upto, r.LaneLog[i].Pos = "1:4:2,3", "1:5:", 6
			}
		}},
		{"a parked event that the cursor covers", func(r *Run) {
			r.Places, r.Parked = []Place{{ID: "a1", XID: 1, Seq: 1, At: begun}}, []Parking{{ID: "a1"}}
			r.LaneLog[1].Done, r.LaneLog[2].Done = "2:2:", "2:2:"
		}},
		{"an event that stands in the log once more, as replays do", func(r *Run) {
			r.Places = []Place{{ID: "a1", XID: 1, Seq: 1, At: begun}, {ID: "a1", XID: 3, Seq: 3, At: begun}}
			r.LaneLog[1].Done, r.LaneLog[2].Done = "2:2:", "2:2:"
		}},
		{"a cursor of after an adoption, and an event of before", func(r *Run) {
			r.Places = []Place{{ID: "a1", XID: 1, Seq: 1, At: begun}}
			r.LaneLog[1].Done, r.LaneLog[2].Done = "2:2:", "2:2:"
			r.LaneLog[1].Adopted = true
		}},
		{"events of a type that may die", func(r *Run) { r.Limits.MayDie = []string{"poison"} }},
		{"a letter of a repeat of an event that may not die", func(r *Run) {
			r.Limits.MayDie = []string{"poison"}
			r.give(Letter{ID: 2, EventID: "a2", Consumer: "c", State: Open, Reason: "stale: it lies below the position"})
		}},
		{"how many lanes there are is not known", func(r *Run) { r.Lanes = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := whole()
			c.forge(&r)
			if v := Judge(r); !v.Holds() {
				t.Error(v)
			}
		})
	}
}

func TestAllowed_EveryDuplicateHasItsReason(t *testing.T) {
	t.Parallel()
	pub := func(actor string, pid int, ids ...string) []history.Entry {
		return []history.Entry{by(actor, pid, history.Publish, "", ids...), by(actor, pid, history.Acknowledge, history.OK, ids...)}
	}
	claim := func(lane int) history.Entry {
		return history.Entry{Actor: "relay/1", PID: 21, Op: history.Claim, Lane: lane, Epoch: 9}
	}
	adopted := []LaneChange{{At: time.Time{}.Add(-time.Hour), Adopted: true}}
	for _, c := range []struct {
		name   string
		lanes  int
		want   Explanation // "": none
		then   []history.Entry
		adopts []LaneChange // At counts from the last publication before
		taken  string       // the event that a person had redirected before
		parked []Parking
	}{
		{"a process that knew that it had arrived", 1, "", pub("relay/1", 21, "a3"), nil, "", nil},
		{"a process that knew it, of what a person had redirected", 1, "", pub("relay/1", 21, "a3"), nil, "a3", nil},
		{"a process that knew it since a copy was adopted", 1, "", pub("relay/1", 21, "a3"), adopted, "", nil},
		{"a process that knew it since a copy was adopted, of what a person had redirected", 1, AfterAdoption, pub("relay/1", 21, "a3"), adopted, "a3", nil},
		{"a process that knew it since a copy was adopted, beside what a person had redirected", 1, "", pub("relay/1", 21, "a3"), adopted, "a1", nil},
		{"a process that knew it since a copy was adopted, of an event that was parked before", 1, AfterAdoption, pub("relay/1", 21, "a3"), adopted, "", []Parking{{ID: "a3"}}},
		{"a process that knew it since a copy was adopted, of an event that was parked later", 1, "", pub("relay/1", 21, "a3"), adopted, "", []Parking{{"a3", time.Now().Add(time.Hour)}}},
		{"a process that knew it since a copy was adopted, beside an event that was parked before", 1, "", pub("relay/1", 21, "a3"), adopted, "", []Parking{{ID: "a1"}}},
		{"a process that knew it before a copy is adopted, of an event that was parked before", 1, "", pub("relay/1", 21, "a3"), []LaneChange{{At: time.Time{}.Add(time.Hour), Adopted: true}}, "", []Parking{{ID: "a3"}}},
		{"a process that knew it, of an event that was parked before, and no copy was adopted", 1, "", pub("relay/1", 21, "a3"), nil, "", []Parking{{ID: "a3"}}},
		{"another process", 1, OtherProcess, pub("relay/0", 23, "a3"), nil, "", nil},
		{"the same process under a later claim", 1, ClaimedAgain, slices.Concat([]history.Entry{claim(0)}, pub("relay/1", 21, "a3")), nil, "", nil},
		{"the same process under a later claim of another lane", 1, "", slices.Concat([]history.Entry{claim(1)}, pub("relay/1", 21, "a3")), nil, "", nil},
		{"the same process under a later claim of nobody knows which lane", 0, ClaimedAgain, slices.Concat([]history.Entry{claim(1)}, pub("relay/1", 21, "a3")), nil, "", nil},
		{"another process after the lane was handed back", 1, HandedBack, slices.Concat(
			[]history.Entry{{Actor: "relay/1", PID: 21, Op: history.Lose, How: history.OK}}, pub("relay/0", 23, "a3")), nil, "", nil},
		{"another process after the lane was lost", 1, OtherProcess, slices.Concat(
			[]history.Entry{{Actor: "relay/1", PID: 21, Op: history.Lose, How: history.Failed}}, pub("relay/0", 23, "a3")), nil, "", nil},
		{"another process after a copy was adopted", 1, AfterAdoption, pub("relay/0", 23, "a3"), []LaneChange{{Adopted: true}}, "", nil},
		{"another process after the lane was handed back and the copy adopted", 1, AfterAdoption, slices.Concat(
			[]history.Entry{{Actor: "relay/1", PID: 21, Op: history.Lose, How: history.OK}}, pub("relay/0", 23, "a3")), []LaneChange{{Adopted: true}}, "", nil},
		{"another process after a copy was adopted, and nobody knows which lane", 0, AfterAdoption, pub("relay/0", 23, "a3"), []LaneChange{{Lane: 3, Adopted: true}}, "", nil},
		{"another process after another lane was adopted", 1, OtherProcess, pub("relay/0", 23, "a3"), []LaneChange{{Lane: 1, Adopted: true}}, "", nil},
		{"another process before a copy was adopted", 1, OtherProcess, pub("relay/0", 23, "a3"), []LaneChange{{At: time.Time{}.Add(time.Second), Adopted: true}}, "", nil},
		{"another process after a change that was no adoption", 1, OtherProcess, pub("relay/0", 23, "a3"), []LaneChange{{}}, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := whole()
			r.Lanes, r.LaneLog = c.lanes, nil
			// What the last words say must stay last: a relay that ended publishes nothing.
			i := r.entry(history.End, 0)
			last := slices.Clone(r.Entries[i:])
			r.Entries = slices.DeleteFunc(r.Entries[:i], func(e history.Entry) bool { return e.Op == history.Lose })
			r.insert("a3", "a", 0)
			for n, change := range c.adopts {
				change.N, change.Epoch, change.At = int64(n), 99, r.Entries[len(r.Entries)-1].At.Add(time.Microsecond+change.At.Sub(time.Time{}))
				r.LaneLog = append(r.LaneLog, change)
			}
			r.Parked = c.parked
			if c.taken != "" {
				r.Removed = []Removal{{ID: c.taken, By: "person/0"}}
			}
			r.then(c.then...)
			r.then(last...)
			v := Judge(r)
			if c.want == "" {
				if v.Count(Unexplained) != 1 {
					t.Errorf("want one without a reason: %s", v)
				}
				return
			}
			before := Judge(whole()).Figures
			more := map[Explanation]int{}
			for _, reason := range v.Figures.ByReason {
				more[reason.Reason] = reason.Count
			}
			for _, reason := range before.ByReason {
				more[reason.Reason] -= reason.Count
			}
			if !v.Holds() || more[c.want] != 1 {
				t.Errorf("want one more %s: %s", c.want, v)
			}
		})
	}
}

// Of an event that a copy has in two rows, each is sent once, and no more.
func TestAllowed_ARowOfAnAdoptedCopyIsSentOnce(t *testing.T) {
	t.Parallel()
	for more, want := range []int{0, 1} {
		r := whole()
		r.LaneLog = []LaneChange{{Epoch: 99, At: r.Entries[0].At.Add(-time.Hour), Adopted: true}}
		i := r.entry(history.End, 0)
		last := slices.Clone(r.Entries[i:])
		r.Entries = slices.DeleteFunc(r.Entries[:i], func(e history.Entry) bool { return e.Op == history.Lose })
		r.Parked = []Parking{{ID: "a3"}}
		for range more + 1 {
			r.insert("a3", "a", 0)
			r.then(by("relay/1", 21, history.Publish, "", "a3"), by("relay/1", 21, history.Acknowledge, history.OK, "a3"))
		}
		r.then(last...)
		if v := Judge(r); v.Count(Unexplained) != want {
			t.Errorf("sent %d times more, %d are without a reason, want %d: %s", more+1, v.Count(Unexplained), want, v)
		}
	}
}

func TestAllowed_AnAnswerIsOfTheOldestTryThatHasNone(t *testing.T) {
	t.Parallel()
	r := whole()
	// Lost under one claim, acknowledged under the next, and sent again under that: the last has no reason.
	r.insert("a3", "a", 0)
	r.insert("a3", "a", 0)
	r.Records[6].Offset = 101
	i := r.entry(history.Acknowledge, 4)
	if !slices.Equal(r.Entries[i].IDs, []string{"a3"}) {
		t.Fatal("that is not the acknowledgement of a3")
	}
	r.Entries[i].How = history.Unknown
	r.LaneLog = nil
	r.then(history.Entry{Actor: "relay/1", PID: 21, Op: history.Claim, Epoch: 3})
	r.then(by("relay/1", 21, history.Publish, "", "a3"), by("relay/1", 21, history.Acknowledge, history.OK, "a3"))
	r.then(by("relay/1", 21, history.Publish, "", "a3"))
	if v := Judge(r); v.Count(Unexplained) != 1 || !slices.Equal(v.Broken(), []Oracle{Duplicates}) {
		t.Error(v)
	}
}

func TestAllowed_WhatIsMissingIsBlamedOnWhoHadItLast(t *testing.T) {
	t.Parallel()
	mentions := func(r *Run, op history.Op) {
		r.Entries = slices.DeleteFunc(r.Entries, func(e history.Entry) bool { return e.Op == op && slices.Contains(e.IDs, "a3") })
	}
	for _, c := range []struct {
		name  string
		want  []string
		forge func(r *Run)
	}{
		{"its producer", []string{"COMMIT ok", "never published", "not in Kafka", "last seen with its producer"}, func(r *Run) {
			mentions(r, history.Publish)
			mentions(r, history.Acknowledge)
			r.unrecord("a3")
		}},
		{"its relay", []string{"intended by producer/0[10] at 03:04:05.007", "published 1 times, first by relay/1[21]", "lane 0 last, under epoch 2", "never answered", "last seen with its relay"}, func(r *Run) {
			mentions(r, history.Acknowledge)
			r.unrecord("a3")
		}},
		{"its relay, which was refused", []string{"not acknowledged: failed no such topic", "last seen with its relay"}, func(r *Run) {
			i := r.entry(history.Acknowledge, 4)
			r.Entries[i].How, r.Entries[i].Text = history.Failed, "no such topic"
			r.unrecord("a3")
		}},
		{"Kafka", []string{"acknowledged by relay/1[21]", "not in Kafka", "last seen with Kafka"}, func(r *Run) { r.unrecord("a3") }},
		{"its consumer, whom it did not reach", []string{"in Kafka at offset 4 of partition 0", "never received", "no effect with c", "last seen with its consumer: nobody received it"}, func(r *Run) {
			mentions(r, history.Receive)
			mentions(r, history.Effect)
			r.Effects = r.Effects[:4]
		}},
		{"its consumer, who settled it", []string{"received by c/0[30]", ": handled", "a handler began 1 times", "last seen with its consumer: somebody settled it without an effect"}, func(r *Run) {
			r.Effects = r.Effects[:4]
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := whole()
			c.forge(&r)
			v := Judge(r)
			if len(v.Findings) != 1 || len(v.Findings[0].Examples) != 1 {
				t.Fatal(v)
			}
			line := v.Findings[0].Examples[0]
			for _, part := range append(c.want, "a3, number 3 of key \"a\" of topic o: ") {
				if !strings.Contains(line, part) {
					t.Errorf("%q is not in %s", part, line)
				}
			}
		})
	}
}

func TestAllowed_AnEventThatOneConsumerMissesIsBlamedByItsHistory(t *testing.T) {
	t.Parallel()
	r := whole()
	r.Consumers = []string{"c", "mail"}
	for _, e := range r.Effects[:4] {
		r.Effects = append(r.Effects, Effect{Consumer: "mail", ID: e.ID, Key: e.Key})
	}
	r.give(Letter{ID: 2, EventID: "d1", Consumer: "mail", State: Open})
	v := Judge(r)
	if v.Count(Missing) != 1 || !strings.Contains(v.String(), "never received; no effect with mail") {
		t.Error(v)
	}
}

func TestAllowed_ARepeatAfterALaterEventOfItsKeyIsCounted(t *testing.T) {
	t.Parallel()
	r := whole()
	for i, id := range []string{"a1", "a2", "a2", "a3", "a1"} {
		r.Records[i].ID = id
	}
	if f := Judge(r).Figures; f.Late != 1 || f.Furthest != 4 || f.Duplicates != 4 {
		t.Errorf("%+v", f)
	}
}

func TestAllowed_FewExamplesAreShownOfMany(t *testing.T) {
	t.Parallel()
	r := whole()
	for i := range 20 {
		r.write(fmt.Sprintf("lost%d", i), "", 0)
	}
	v := Judge(r)
	if v.Count(Lost) != 20 || v.Count(Missing) != 20 || v.Count(Unintended) != 20 {
		t.Error(v)
	}
	for _, f := range v.Findings {
		if len(f.Examples) != 8 {
			t.Errorf("%d examples of %s", len(f.Examples), f.Kind)
		}
	}
	if said := v.String(); strings.Count(said, "and 12 more") != 3 || strings.Count(said, "last seen with") != 16 {
		t.Error(said)
	}
	if v.Except(Lost, Missing).Holds() || !v.Except(Lost, Missing, Unintended).Holds() || v.Count(Lost) != 20 {
		t.Errorf("without what was found: %s", v.Except(Lost, Missing, Unintended))
	}
}

func TestAllowed_TheMedianRecoveryIsOneThatHappened(t *testing.T) {
	t.Parallel()
	f := Figures{Recoveries: []Recovery{{Took: 9 * time.Second}, {Took: time.Second}, {Took: 3 * time.Second}, {Took: 2 * time.Second}}}
	if p50, most := f.RecoveryTimes(); p50 != 2*time.Second || most != 9*time.Second {
		t.Errorf("p50 %s, at most %s", p50, most)
	}
	if p50, most := (Figures{}).RecoveryTimes(); p50 != 0 || most != 0 {
		t.Errorf("without any: p50 %s, at most %s", p50, most)
	}
}

func TestAllowed_ARecoveryWithinTheDefaultHolds(t *testing.T) {
	t.Parallel()
	late := func(by time.Duration) Verdict {
		r := whole()
		for i := r.entry(history.Recovered, 0); i < len(r.Entries); i++ {
			r.Entries[i].At = r.Entries[i].At.Add(by)
		}
		return Judge(r)
	}
	if v := late(59 * time.Second); !v.Holds() {
		t.Error(v)
	}
	if v := late(61 * time.Second); v.Count(Slow) != 1 {
		t.Error(v)
	}
}

func TestAllowed_TheSameRunHasTheSameVerdict(t *testing.T) {
	t.Parallel()
	r := newModel(3).history(300)
	for i := range 12 {
		r.insert(r.Written[i].ID, r.Written[i].Key, 0)
	}
	first := Judge(r).String()
	for range 10 {
		if again := Judge(r).String(); again != first {
			t.Fatalf("first\n%s\nthen\n%s", first, again)
		}
	}
}

func TestAllowed_AnAlarmMayComeTenSecondsAfterTheHealing(t *testing.T) {
	t.Parallel()
	late := func(by time.Duration) Verdict {
		r := whole()
		i := r.entry(history.Log, 0)
		e := r.Entries[i]
		e.At = r.Entries[r.entry(history.Heal, 0)].At.Add(by)
		r.Entries = append(slices.Delete(r.Entries, i, i+1), e)
		return Judge(r)
	}
	if v := late(10 * time.Second); !v.Holds() {
		t.Error(v)
	}
	if v := late(10*time.Second + 1); v.Count(Silent) != 1 {
		t.Error(v)
	}
	leaves := func(by time.Duration) Verdict { // there were too many lines of the kind
		r := whole()
		i := r.entry(history.Log, 0)
		e := r.Entries[i]
		e.At, e.Text = r.Entries[r.entry(history.Heal, 0)].At.Add(10*time.Second+by), leftOut+e.Text
		r.Entries = append(slices.Delete(r.Entries, i, i+1), e)
		return Judge(r)
	}
	if v := leaves(time.Minute); !v.Holds() {
		t.Error(v)
	}
	if v := leaves(time.Minute + 1); v.Count(Silent) != 1 {
		t.Error(v)
	}
}
