package oracle

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

var oneSeed = flag.Int64("seed", -1, "the one seed to judge; -1 is many")

// seeds are those of a random test. One that fails says the command that repeats it.
func seeds(many uint64) []uint64 {
	if *oneSeed >= 0 {
		return []uint64{uint64(*oneSeed)}
	}
	all := make([]uint64, many)
	for i := range all {
		all[i] = uint64(i)
	}
	return all
}

func again(t *testing.T, seed uint64) string {
	return fmt.Sprintf("seed %d (go test ./internal/test/oracle -run '^%s$' -seed %d)", seed, t.Name(), seed)
}

func TestModelJudged_RandomRunsThatKeepEveryPromiseHold(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	seen := map[Explanation]int{}
	for _, seed := range seeds(200) {
		v := Judge(newModel(seed).history(300))
		if !v.Holds() {
			t.Fatalf("%s: %s", again(t, seed), v)
		}
		for _, reason := range v.Figures.ByReason {
			seen[reason.Reason] += reason.Count
		}
	}
	for _, reason := range []Explanation{OtherProcess, ClaimedAgain, Unanswered} {
		if seen[reason] == 0 && *oneSeed < 0 {
			t.Errorf("no run has a duplicate that was %s", reason)
		}
	}
}

// spoil is a single wrong that a random run can suffer. It answers nothing when the run has no place for it.
type spoil struct {
	name string
	kind Kind
	of   Oracle
	do   func(rng *rand.Rand, r *Run) bool
}

// pick is a random one of those places of n that fit.
func pick(rng *rand.Rand, n int, fits func(i int) bool) (place int, found bool) {
	for _, i := range rng.Perm(n) {
		if fits(i) {
			return i, true
		}
	}
	return 0, false
}

// facts are what a spoil needs to know of a run to do one wrong only.
type facts struct {
	copies  map[string]int // of records
	letters map[string]bool
	there   map[string]Written
}

func factsOf(r *Run) facts {
	f := facts{map[string]int{}, map[string]bool{}, map[string]Written{}}
	for _, rec := range r.Records {
		f.copies[rec.ID]++
	}
	for _, l := range r.Letters {
		f.letters[l.EventID] = true
	}
	for _, w := range r.Written {
		f.there[w.ID] = w
	}
	return f
}

// plain says whether an event arrived once and was never given up.
func (f facts) plain(id string) bool { return f.copies[id] == 1 && !f.letters[id] }

// nextOfKey is the place of the next plain record after i of the same key, in the same partition.
func (f facts) nextOfKey(r *Run, i int) (int, bool) {
	a := r.Records[i]
	if a.Key == "" || !f.plain(a.ID) {
		return 0, false
	}
	for j := i + 1; j < len(r.Records) && r.Records[j].Topic == a.Topic && r.Records[j].Partition == a.Partition; j++ {
		if r.Records[j].Key == a.Key {
			return j, f.plain(r.Records[j].ID)
		}
	}
	return 0, false
}

// entry is the place of a random entry that fits.
func anyEntry(rng *rand.Rand, r *Run, fits func(e history.Entry) bool) (int, bool) {
	return pick(rng, len(r.Entries), func(i int) bool { return fits(r.Entries[i]) })
}

var spoils = []spoil{
	{"an event is not in Kafka", Lost, NoLoss, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		i, found := pick(rng, len(r.Records), func(i int) bool { return f.plain(r.Records[i].ID) })
		if found {
			r.Records = slices.Delete(r.Records, i, i+1)
		}
		return found
	}},
	{"an effect is missing", Missing, NoLoss, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		i, found := pick(rng, len(r.Effects), func(i int) bool { return f.plain(r.Effects[i].ID) })
		if found {
			r.Effects = slices.Delete(r.Effects, i, i+1)
		}
		return found
	}},
	{"an effect has a letter", GivenUp, NoLoss, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		i, found := pick(rng, len(r.Effects), func(i int) bool { return f.plain(r.Effects[i].ID) })
		if found {
			r.give(Letter{99, r.Effects[i].ID, r.Effects[i].Consumer, Open, "it failed 5 times", ""})
		}
		return found
	}},
	{"an effect is missing, and a repeat of its event has a letter", Missing, NoLoss, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		i, found := pick(rng, len(r.Effects), func(i int) bool { return f.plain(r.Effects[i].ID) })
		if found {
			r.give(Letter{99, r.Effects[i].ID, r.Effects[i].Consumer, Open, "stale: it lies below the position", ""})
			r.Effects = slices.Delete(r.Effects, i, i+1)
		}
		return found
	}},
	{"a transaction is forgotten by the table", Ghosts, NoGhost, func(rng *rand.Rand, r *Run) bool {
		// Its COMMIT was not answered: else it would be a false OK as well. Its effects become phantoms.
		f := factsOf(r)
		i, found := anyEntry(rng, r, func(e history.Entry) bool {
			return e.Op == history.Commit && e.How == history.Unknown && !slices.ContainsFunc(e.IDs, func(id string) bool { return !f.plain(id) })
		})
		if found {
			r.Written = slices.DeleteFunc(r.Written, func(w Written) bool { return slices.Contains(r.Entries[i].IDs, w.ID) })
		}
		return found
	}},
	{"what was refused has an effect", Phantoms, NoGhost, func(rng *rand.Rand, r *Run) bool {
		i, found := anyEntry(rng, r, func(e history.Entry) bool { return e.Op == history.Commit && e.How == history.Failed })
		if found {
			r.Effects = slices.Insert(r.Effects, rng.IntN(len(r.Effects)+1), Effect{Consumer: "mail", ID: r.Entries[i].IDs[0], Key: "k1"})
		}
		return found
	}},
	{"a record has another key", Altered, NoGhost, func(rng *rand.Rand, r *Run) bool {
		r.Records[rng.IntN(len(r.Records))].Key = "another"
		return true
	}},
	{"a record has another's content", Altered, NoGhost, func(rng *rand.Rand, r *Run) bool {
		r.knowContents()
		r.Records[rng.IntN(len(r.Records))].Content = "of another"
		return true
	}},
	{"a handler is given another's content", Altered, NoGhost, func(rng *rand.Rand, r *Run) bool {
		r.knowContents()
		r.Effects[rng.IntN(len(r.Effects))].Content = "of another"
		return true
	}},
	{"an effect happens again", Doubles, EffectOnce, func(rng *rand.Rand, r *Run) bool {
		i := rng.IntN(len(r.Effects))
		r.Effects = slices.Insert(r.Effects, i+1+rng.IntN(len(r.Effects)-i), r.Effects[i])
		return true
	}},
	{"two records of a key change places", Overtaken, KeyOrder, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		i, found := pick(rng, len(r.Records), func(i int) bool { _, ok := f.nextOfKey(r, i); return ok })
		if found {
			j, _ := f.nextOfKey(r, i)
			r.Records[i].ID, r.Records[j].ID = r.Records[j].ID, r.Records[i].ID
		}
		return found
	}},
	{"a record of a key is in another partition", Strayed, KeyOrder, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		i, found := pick(rng, len(r.Records), func(i int) bool { _, ok := f.nextOfKey(r, i); return ok })
		if !found {
			return false
		}
		// At the end of the last partition of its topic, or of the first where it is in the last.
		rec := r.Records[i]
		to := modelPartitions - 1
		if rec.Partition == to {
			to = 0
		}
		r.Records = slices.Delete(r.Records, i, i+1)
		at := 0
		for j, other := range r.Records {
			if other.Topic < rec.Topic || other.Topic == rec.Topic && other.Partition <= to {
				at = j + 1
			}
		}
		rec.Partition, rec.Offset = to, 1_000_000
		r.Records = slices.Insert(r.Records, at, rec)
		return true
	}},
	{"two effects of a key change places", OutOfTurn, KeyOrder, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		next := func(i int) int {
			a := r.Effects[i]
			if a.Key == "" || !f.plain(a.ID) {
				return -1
			}
			for j := i + 1; j < len(r.Effects); j++ {
				if e := r.Effects[j]; e.Consumer == a.Consumer && e.Key == a.Key && f.there[e.ID].Topic == f.there[a.ID].Topic {
					if f.plain(e.ID) {
						return j
					}
					return -1
				}
			}
			return -1
		}
		i, found := pick(rng, len(r.Effects), func(i int) bool { return next(i) >= 0 })
		if found {
			j := next(i)
			r.Effects[i], r.Effects[j] = r.Effects[j], r.Effects[i]
		}
		return found
	}},
	{"a record is there once more", Unexplained, Duplicates, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		published := map[string]int{}
		for _, e := range r.Entries {
			if e.Op == history.Publish {
				for _, id := range e.IDs {
					published[id]++
				}
			}
		}
		i, found := pick(rng, len(r.Records), func(i int) bool { return f.copies[r.Records[i].ID] == published[r.Records[i].ID] })
		if found {
			again := r.Records[i]
			at := i + 1
			for at < len(r.Records) && r.Records[at].Topic == again.Topic && r.Records[at].Partition == again.Partition {
				at++
			}
			again.Offset = 1_000_000
			r.Records = slices.Insert(r.Records, at, again)
		}
		return found
	}},
	{"a publication is not in the history", Unexplained, Duplicates, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		tries := map[string]int{}
		for _, e := range r.Entries {
			if e.Op == history.Publish {
				for _, id := range e.IDs {
					tries[id]++
				}
			}
		}
		i, found := anyEntry(rng, r, func(e history.Entry) bool {
			return e.Op == history.Publish && slices.ContainsFunc(e.IDs, func(id string) bool { return f.copies[id] > 1 && tries[id] == f.copies[id] })
		})
		if found {
			r.Entries = slices.Delete(r.Entries, i, i+1)
		}
		return found
	}},
	{"a lane's epoch falls", EpochFell, Fencing, func(rng *rand.Rand, r *Run) bool {
		first := map[int]bool{}
		var later []int
		for i, c := range r.LaneLog {
			if first[c.Lane] && c.Epoch > 0 {
				later = append(later, i)
			}
			first[c.Lane] = true
		}
		if len(later) == 0 {
			return false
		}
		r.LaneLog[later[rng.IntN(len(later))]].Epoch = -1
		return true
	}},
	{"a relay that lost a lane saves it", ChangedByOther, Fencing, func(rng *rand.Rand, r *Run) bool {
		first := map[int]bool{}
		i, found := pick(rng, len(r.LaneLog), func(i int) bool { return r.LaneLog[i].Owner != "" })
		for j := range i {
			first[r.LaneLog[j].Lane] = true
		}
		if !found || !first[r.LaneLog[i].Lane] {
			return false
		}
		r.LaneLog[i].By = "relay/8"
		return true
	}},
	{"a cursor goes back", CursorFell, Fencing, func(rng *rand.Rand, r *Run) bool {
		i, found := pick(rng, len(r.LaneLog), func(i int) bool {
			for j := i - 1; j >= 0; j-- {
				if r.LaneLog[j].Lane == r.LaneLog[i].Lane {
					return xmax(r.LaneLog[j].Done) > 3
				}
			}
			return false
		})
		if found {
			r.LaneLog[i].Done = "3:3:"
		}
		return found
	}},
	{"two processes claim a lane under one epoch", ClaimedTwice, Fencing, func(rng *rand.Rand, r *Run) bool {
		i, found := anyEntry(rng, r, func(e history.Entry) bool { return e.Op == history.Claim })
		if found {
			e := r.Entries[i]
			e.Actor, e.PID = "relay/8", 8
			r.Entries = slices.Insert(r.Entries, i+1, e)
		}
		return found
	}},
	{"a position goes back", CursorFell, Fencing, func(rng *rand.Rand, r *Run) bool {
		i, found := pick(rng, len(r.PositionLog), func(i int) bool {
			for j := i - 1; j >= 0; j-- {
				if p, c := r.PositionLog[j], r.PositionLog[i]; p.Consumer == c.Consumer && p.Topic == c.Topic && p.Partition == c.Partition {
					return p.Epoch == c.Epoch
				}
			}
			return false
		})
		if found {
			r.PositionLog[i].Position = -1
		}
		return found
	}},
	{"a node that lost a partition takes an event of it in", TakenByOther, Fencing, func(rng *rand.Rand, r *Run) bool {
		if len(r.TakenLog) == 0 {
			return false
		}
		r.TakenLog[rng.IntN(len(r.TakenLog))].By = "billing/-1"
		return true
	}},
	{"a consumer speaks too early", SaidTooEarly, HonestErrors, func(rng *rand.Rand, r *Run) bool {
		effects := map[string][]int{}
		for i, e := range r.Effects {
			effects[e.ID] = append(effects[e.ID], i)
		}
		i, found := anyEntry(rng, r, func(e history.Entry) bool {
			return e.Op == history.Receive && e.Text == "handled" && len(effects[e.IDs[0]]) == len(r.Consumers)
		})
		if found {
			for _, n := range effects[r.Entries[i].IDs[0]] {
				r.Effects[n].At = r.Entries[i].At.Add(time.Hour)
			}
		}
		return found
	}},
	{"a cursor skips an event", SkippedByCursor, CursorTruth, func(rng *rand.Rand, r *Run) bool {
		if len(r.Cursors) == 0 {
			return false
		}
		r.Cursors[rng.IntN(len(r.Cursors))].Missing = []string{r.Written[rng.IntN(len(r.Written))].ID}
		return true
	}},
	{"a fault is not recovered from", NeverBack, Liveness, func(rng *rand.Rand, r *Run) bool {
		// The last of its name: else the next one would take its place.
		i := r.last(history.Recovered)
		r.Entries = slices.Delete(r.Entries, i, i+1)
		return true
	}},
	{"a recovery takes two minutes", Slow, Liveness, func(rng *rand.Rand, r *Run) bool {
		for i := r.last(history.Recovered); i < len(r.Entries); i++ {
			r.Entries[i].At = r.Entries[i].At.Add(2 * time.Minute)
		}
		return true
	}},
	{"something is parked at the end", StillWaits, Liveness, func(rng *rand.Rand, r *Run) bool {
		r.Pending = []Waiting{{Where: "parked", ID: r.Written[rng.IntN(len(r.Written))].ID}}
		return true
	}},
	{"a refused COMMIT is said to have been answered", FalseOK, HonestErrors, func(rng *rand.Rand, r *Run) bool {
		i, found := anyEntry(rng, r, func(e history.Entry) bool { return e.Op == history.Commit && e.How == history.Failed })
		if found {
			r.Entries[i].How = history.OK
		}
		return found
	}},
	{"an answered COMMIT is said to have failed", FalseFailure, HonestErrors, func(rng *rand.Rand, r *Run) bool {
		i, found := anyEntry(rng, r, func(e history.Entry) bool { return e.Op == history.Commit && e.How == history.OK })
		if found {
			r.Entries[i].How = history.Failed
		}
		return found
	}},
	{"half of a transaction is there", Halved, HonestErrors, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		i, found := anyEntry(rng, r, func(e history.Entry) bool {
			return e.Op == history.Intend && slices.ContainsFunc(e.IDs, func(id string) bool { _, there := f.there[id]; return there })
		})
		if found {
			r.Entries[i].IDs = append(slices.Clone(r.Entries[i].IDs), "the other half")
		}
		return found
	}},
	{"a process has no last word", Vanished, Hygiene, func(rng *rand.Rand, r *Run) bool {
		i, _ := anyEntry(rng, r, func(e history.Entry) bool { return e.Op == history.End })
		r.Entries = slices.Delete(r.Entries, i, i+1)
		return true
	}},
	{"a process leaves something", LeftBehind, Hygiene, func(rng *rand.Rand, r *Run) bool {
		i, _ := anyEntry(rng, r, func(e history.Entry) bool { return e.Op == history.End })
		r.Entries[i].Text = "1 connection"
		return true
	}},
	{"a payload is logged", Leaked, Hygiene, func(rng *rand.Rand, r *Run) bool {
		i, _ := anyEntry(rng, r, func(e history.Entry) bool { return e.Op == history.Log })
		r.Entries[i].Text += r.Limits.Canary
		return true
	}},
	{"a fault is not said", Silent, AlarmsSounded, func(rng *rand.Rand, r *Run) bool {
		i, _ := anyEntry(rng, r, func(e history.Entry) bool { return e.Op == history.Log })
		said := r.Entries[i].Text
		r.Entries = slices.DeleteFunc(r.Entries, func(e history.Entry) bool { return e.Text == said })
		return true
	}},
	{"a letter is not said", Unsaid, AlarmsSounded, func(rng *rand.Rand, r *Run) bool {
		killed := map[Process]bool{}
		for _, p := range r.Killed {
			killed[p] = true
		}
		last, letters, said := map[string]bool{}, map[string]int{}, map[string]int{}
		for _, e := range r.Entries {
			if e.Op == history.Effect || e.Op == history.Publish {
				for _, id := range e.IDs {
					last[id] = killed[Process{e.Actor, e.PID}]
				}
			}
			if e.Op == history.Letter {
				said[e.IDs[0]]++
			}
		}
		for _, l := range r.Letters {
			if letters[l.EventID]++; strings.HasPrefix(l.Reason, "conflict") {
				letters[l.EventID]++ // excused where something was killed
			}
		}
		i, found := anyEntry(rng, r, func(e history.Entry) bool {
			return e.Op == history.Letter && letters[e.IDs[0]] == 1 && said[e.IDs[0]] == 1 && !last[e.IDs[0]]
		})
		if found {
			r.Entries = slices.Delete(r.Entries, i, i+1)
		}
		return found
	}},
	{"a committed event was nobody's", Unintended, Evidence, func(rng *rand.Rand, r *Run) bool {
		f := factsOf(r)
		i, found := anyEntry(rng, r, func(e history.Entry) bool {
			return e.Op == history.Intend && slices.ContainsFunc(e.IDs, func(id string) bool { _, there := f.there[id]; return there })
		})
		if found {
			r.Entries = slices.Delete(r.Entries, i, i+1)
		}
		return found
	}},
}

func (r *Run) last(op history.Op) int {
	for i := len(r.Entries) - 1; i >= 0; i-- {
		if r.Entries[i].Op == op {
			return i
		}
	}
	return -1
}

func TestModelJudged_ASingleWrongInARandomRunIsFoundByItsOracleAndByNoOther(t *testing.T) {
	t.Parallel()
	for _, s := range spoils {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			tried := 0
			for _, seed := range seeds(40) {
				r := newModel(seed).history(150)
				if !s.do(rand.New(rand.NewPCG(seed, 2)), &r) {
					continue
				}
				tried++
				v := Judge(r)
				if v.Count(s.kind) == 0 || !slices.Equal(v.Broken(), []Oracle{s.of}) {
					name, _, _ := strings.Cut(t.Name(), "/")
					t.Fatalf("seed %d (go test ./internal/test/oracle -run '^%s$' -seed %d): want %s alone: %s; it says\n%s", seed, name, seed, s.of, s.kind, v)
				}
			}
			if tried < 12 && *oneSeed < 0 {
				t.Errorf("only %d of the runs had a place for it", tried)
			}
		})
	}
}
