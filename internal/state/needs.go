package state

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/terminal"
	"github.com/holdfast-go/holdfast/waiting"
)

// This file decides what needs a person. It knows no clock and no database.

// Need is one thing that needs a person.
type Need struct {
	Says    string // one sentence, or two
	Command string // a shell command that shows more of it, or ends it
	See     List   // where it is listed, for those who show lists; zero if nowhere
}

// List is a list of what holdfast has, or the part of it that is of an origin, a consumer or a topic, where they are not "".
type List struct {
	Of                      ListOf
	Origin, Consumer, Topic string
}

// ListOf is what a list has.
type ListOf int

// What a need may be listed among.
const (
	OfNothing ListOf = iota
	OfLetters
	OfWaiting
	OfPaused
	OfLanes
	OfConsumers
)

// Apart says that Says does not have the command.
func (n Need) Apart() bool { return !strings.Contains(n.Says, n.Command) }

// String is the need in one line, with its command.
func (n Need) String() string {
	if n.Apart() {
		return n.Says + ": " + n.Command
	}
	return n.Says
}

// Limits are how old what waits may become; 0 is for ever.
type Limits struct {
	Unpublished time.Duration // an event that no relay has published
	Waiting     time.Duration // an event that waits, in a relay or a consumer
}

// DefaultLimits are those of holdfast status.
var DefaultLimits = Limits{Unpublished: time.Minute, Waiting: 15 * time.Minute}

// lockedLong is the age in seconds from which a transaction counts as the cause of a lane that no running relay takes. Those of
// relays themselves end within much less.
const lockedLong = 5

// HeldLong is the age in seconds from which a transaction counts as the cause of a full log. Younger ones come and go.
const HeldLong = 60

// Pages that say how to forget a consumer, and how to repair a schema: who has only the program has no docs.
const (
	operations      = "https://github.com/holdfast-go/holdfast/blob/main/docs/operations/"
	retiredConsumer = operations + "consumers.md#retention-of-the-inbox"
	schemaDrift     = operations + "runbooks.md#schema-drift"
)

// awayLong is the time in seconds for which a dependency may be away before a person is needed: what waits for it goes on by itself.
const awayLong = 300

// Needs lists what needs a person: what keeps all events first, then what keeps those of a lane, a topic or a consumer, then dead letters, and last what a
// person has paused. Of what was not read it says nothing but that.
func (s *State) Needs(l Limits) []Need {
	all := []Need{}
	add := func(see List, command, format string, args ...any) {
		for i, arg := range args {
			if text, ok := arg.(string); ok {
				args[i] = terminal.Clean(text)
			}
		}
		all = append(all, Need{fmt.Sprintf(format, args...), terminal.Clean(command), see})
	}
	if s.Drift != nil {
		add(List{}, "holdfast check", "holdfast check fails, so what is shown here may be incomplete: %s; %s says how to repair it", strings.ReplaceAll(s.Drift.Error(), "\n", "; "), schemaDrift)
	}
	for _, u := range s.Unread {
		add(List{}, "holdfast check", "status cannot read %s: %s", u.Part, u.Err.Error())
	}
	if s.History != nil && !slices.Contains(s.History, History{true}) {
		add(List{}, "holdfast adopt --yes", "this database is a restored copy, or was moved, so relays refuse to run: stop them all, then run holdfast adopt --yes")
	}
	s.needsOfLanes(add, l)
	if s.Full() {
		for _, n := range whyFull(s.LogHolders, s.Behind) {
			add(List{Of: OfLanes}, n.Command, "no segment of the log is empty: %s", n.Says)
		}
	}
	if relay, lanes := SameName(s.Before, s.After); relay != "" {
		n := SameNameNeed(relay, lanes)
		add(List{Of: OfLanes}, n.Command, "%s", n.Says)
	}
	s.needsOfHeld(add)
	for _, w := range s.Long {
		add(List{Of: OfWaiting, Origin: dlq.OriginRelay}, "holdfast waiting groups --origin relay", "lane %d has %s that %s waited for more than %s", w.Lane, terminal.Count(w.Events, "event"), terminal.Verb(w.Events, "has", "have"), spoken(l.Waiting))
	}
	s.needsOfConsumers(add, l)
	for _, p := range s.Positions {
		if p.Held != "" {
			add(List{Of: OfConsumers}, "holdfast status --brokers HOST:PORT", "consumer %s holds partition %d of topic %s: %s", p.Consumer, p.Partition, p.Topic, p.Held)
		}
	}
	s.needsOfDependencies(add)
	for _, b := range s.Backfills {
		if b.Waiting() && !s.isPaused(waiting.Pausable{Consumer: b.Consumer}) {
			add(ofConsumer(OfWaiting, b.Consumer), "holdfast waiting groups "+terminal.Flag("consumer", b.Consumer), "the backfill of consumer %s waits: %s", b.Consumer, b.Waits)
		}
	}
	if s.NoEnds != nil {
		add(List{}, "holdfast doctor --brokers HOST:PORT", "Kafka does not say where the partitions end, so the lag of consumers is not known: %s", s.NoEnds.Error())
	}
	s.needsOfLetters(add)
	for _, p := range s.Paused {
		why := ""
		if p.Reason != "" {
			why = " (" + p.Reason + ")"
		}
		add(List{Of: OfPaused}, "holdfast resume"+Flags(p.Of())+" --reason WHY", "%s is paused for %s, by %s%s", p.Of().String(), Span(p.Seconds), p.By, why)
	}
	return all
}

// adder adds a need. Strings among the arguments are made safe for a terminal.
type adder func(see List, command, format string, args ...any)

// ofConsumer is a list of events of a consumer.
func ofConsumer(of ListOf, consumer string) List {
	return List{Of: of, Origin: dlq.OriginInbox, Consumer: consumer}
}

func (s *State) openLetters(consumer string) (n int64) {
	for _, l := range s.Letters {
		if l.Consumer == consumer {
			n += l.Open
		}
	}
	return n
}

func (s *State) needsOfLetters(add adder) {
	if n := s.openLetters(""); n > 0 {
		add(List{Of: OfLetters, Origin: dlq.OriginRelay}, "holdfast dlq list --origin relay", "the relay has %s", terminal.Count(n, "open dead letter"))
	}
	for _, c := range s.Consumers {
		if c.Letters > 0 {
			add(ofConsumer(OfLetters, c.Consumer), "holdfast dlq list "+terminal.Flag("consumer", c.Consumer), "consumer %s has %s", c.Consumer, terminal.Count(c.Letters, "open dead letter"))
		}
	}
	if s.Looked >= MostEvents {
		add(List{Of: OfLetters}, "holdfast dlq groups", "%d or more dead letters are open or being re-delivered; only the first %d are counted here", MostEvents, MostEvents)
	}
}

// needsOfHeld says which topics take nothing. What waits for a partition goes on by itself, or becomes too old.
func (s *State) needsOfHeld(add adder) {
	waits := map[string]int64{}
	var topics []string
	for _, h := range s.Held {
		if s.Paused == nil || h.Partition >= 0 || s.isPaused(waiting.Pausable{Topic: h.Topic}) {
			continue
		}
		if waits[h.Topic] == 0 {
			topics = append(topics, h.Topic)
		}
		waits[h.Topic] += h.Events
	}
	for _, topic := range topics {
		n := waits[topic]
		see := List{Of: OfWaiting, Origin: dlq.OriginRelay, Topic: topic}
		add(see, "holdfast waiting give-up --help", "topic %s is missing, or the relay may not write to it: create it or grant the rights; %s %s for it. If it will not come back: holdfast waiting give-up --help",
			topic, terminal.Count(n, "event"), terminal.Verb(n, "waits", "wait"))
	}
}

func (s *State) needsOfLanes(add adder, l Limits) {
	if lanes := s.unowned(); len(lanes) > 0 && s.Relays != nil {
		why := whyUnowned(len(s.Relays) > 0, s.LaneHolders)
		add(List{Of: OfLanes}, why.Command, "%s %s events and no owner%s", laneList(lanes), terminal.Verb(len(lanes), "has", "have"), why.Says)
	}
	type cause struct{ owner, trouble string }
	var causes []cause
	late, oldest := map[cause][]int{}, map[cause]int64{}
	for _, lane := range s.Lanes {
		if lane.Owner == "" || !exceeds(lane.Oldest, l.Unpublished) {
			continue
		}
		c := cause{lane.Owner, lane.Trouble}
		if late[c] == nil {
			causes = append(causes, c)
		}
		late[c], oldest[c] = append(late[c], int(lane.Lane)), max(oldest[c], lane.Oldest)
	}
	slices.SortStableFunc(causes, func(a, b cause) int { return cmp.Compare(oldest[b], oldest[a]) })
	for _, c := range causes {
		lanes := late[c]
		says := fmt.Sprintf("%s %s events that are not published, the oldest of them for %s", laneList(lanes), terminal.Verb(len(lanes), "has", "have"), Span(oldest[c]))
		if c.trouble != "" {
			add(List{Of: OfLanes}, "holdfast doctor --brokers HOST:PORT", "%s: relay %s gets no answer from the broker: check its address, its credentials and the network: %s", says, c.owner, c.trouble)
			continue
		}
		add(List{Of: OfLanes}, "holdfast doctor", "%s: the log of relay %s says what it waits for; if that is nothing, it is not fast enough: start more relays", says, c.owner)
	}
}

func (s *State) needsOfConsumers(add adder, l Limits) {
	for _, c := range s.Consumers {
		of := terminal.Flag("consumer", c.Consumer)
		if c.Node.Consumer != "" && c.Node.Gone() {
			n := NoNodeNeed(c.Node, s.lag(c.Consumer))
			add(List{Of: OfConsumers}, n.Command, "%s", n.Says)
		}
		if c.Overdue > 0 {
			add(ofConsumer(OfWaiting, c.Consumer), "holdfast waiting groups "+of, "consumer %s has waiting events that were due %s ago, and no node takes them: start a node of this consumer that handles their types",
				c.Consumer, Span(c.Overdue))
		}
		if exceeds(c.Oldest, l.Waiting) {
			add(ofConsumer(OfWaiting, c.Consumer), "holdfast waiting list "+of+" --heads", "consumer %s has %s waiting events of %s keys, the oldest for %s", c.Consumer,
				c.WaitingText(), c.KeysText(), Span(c.Oldest))
		}
	}
}

// NoNodeNeed says that a consumer has no node. lag is how many offsets are known to be not consumed.
func NoNodeNeed(n nodes.Row, lag int64) Need {
	more := ""
	if lag > 0 {
		more = fmt.Sprintf(", and %s %s not consumed", terminal.Count(lag, "offset"), terminal.Verb(lag, "is", "are"))
	}
	return Need{
		Says: fmt.Sprintf("consumer %s: no node has been heard of for %s, so its events wait%s: start one; if it is retired, %s says how to forget it",
			terminal.Clean(n.Consumer), Span(n.Silent), more, retiredConsumer),
		Command: "holdfast status --brokers HOST:PORT",
	}
}

func (s *State) needsOfDependencies(add adder) {
	for _, d := range s.Needed {
		if !d.Gone() || d.Seconds < awayLong {
			continue
		}
		why, what := "", "events that need it wait"
		if d.Error != "" {
			why = " (last error: " + d.Error + ")"
		}
		if len(d.Types) > 0 {
			what = "events of " + terminal.Verb(len(d.Types), "type ", "types ") + d.TypesText() + " wait"
		}
		add(ofConsumer(OfWaiting, d.Consumer), "holdfast waiting groups "+terminal.Flag("consumer", d.Consumer)+" --why "+string(waiting.Dependency),
			"dependency %s of consumer %s has been away for %s%s: find out why; %s until it is back", d.Name, d.Consumer, Span(d.Seconds), why, what)
	}
}

// lag is how many offsets of a consumer are known to be not consumed.
func (s *State) lag(consumer string) (n int64) {
	for _, p := range s.Positions {
		if p.Consumer == consumer {
			n += p.Behind()
		}
	}
	return n
}

// whyUnowned says why lanes have no owner. holders have locks on lanes, and are sorted by age, the oldest first.
func whyUnowned(running bool, holders []Holder) Need {
	switch {
	case !running:
		return Need{Says: ": start a relay", Command: "holdfast relay"}
	case len(holders) > 0 && holders[0].Seconds >= lockedLong:
		n := holders[0].Blame("them")
		return Need{Says: ", although a relay runs. Rows of the table lane may be locked: " + n.Says, Command: n.Command}
	}
	return Need{Says: ", although a relay runs: it takes them within seconds, unless a transaction has their rows locked, which its log reports. If it has died: start a relay", Command: "holdfast relay"}
}

// whyFull lists what keeps the log from being emptied: the oldest transaction, if it is old, and
// the lanes with unread events. holders are sorted by age, the oldest first, unknown ages last.
func whyFull(holders []Holder, behind []Behind) (reasons []Need) {
	if len(holders) > 0 && holders[0].Seconds >= HeldLong {
		reasons = append(reasons, holders[0].Blame("it"))
	}
	if len(behind) > 0 {
		lanes := make([]int, len(behind))
		for i, b := range behind {
			lanes[i] = b.Lane
		}
		reasons = append(reasons, Need{
			Says:    fmt.Sprintf("events in older segments are unread in %s: the log of the lane's relay says whether the lane waits, and why; if it is not, start more relays to share the lanes", laneList(lanes)),
			Command: "holdfast relay",
		})
	}
	if len(reasons) > 0 {
		return reasons
	}
	for _, h := range holders {
		if h.Seconds < 0 {
			return []Need{{Says: fmt.Sprintf("process %d holds it in a transaction of unknown age: grant pg_read_all_stats to this role to see the age", h.PID), Command: "holdfast roles"}}
		}
	}
	return []Need{{Says: "the older segments are read and no transaction holds them: the relay that owns lane 0 empties them; check its log, or start a relay", Command: "holdfast relay"}}
}

// Blame names the transaction that holds what, "it" or "them", and says how to end it.
func (h Holder) Blame(what string) Need {
	if h.Prepared != "" {
		name := "'" + strings.ReplaceAll(h.Prepared, "'", "''") + "'"
		return Need{
			Says:    fmt.Sprintf("prepared transaction %s has held %s for %s: in this database, roll it back, or commit it if its changes are wanted", name, what, Span(h.Seconds)),
			Command: Psql("rollback prepared " + name),
		}
	}
	return Need{
		Says:    fmt.Sprintf("process %d (%s) has held %s in one transaction for %s: end it", h.PID, Dash(h.Application), what, Span(h.Seconds)),
		Command: Psql(fmt.Sprintf("select pg_terminate_backend(%d)", h.PID)),
	}
}

// Psql is a command for a shell.
func Psql(sql string) string { return "psql -c " + terminal.Quote(sql) }

// SameName compares two looks at the lanes, some seconds apart, and names a relay that has claimed lanes again that it owned: they were lost meanwhile.
func SameName(before, after Owners) (relay string, lanes []int) {
	again := map[string][]int{}
	for lane, b := range before {
		if a := after[lane]; a.Name != "" && a.Name == b.Name && a.Epoch > b.Epoch {
			again[a.Name] = append(again[a.Name], lane)
		}
	}
	for name, of := range again {
		if relay == "" || name < relay {
			relay, lanes = name, of
		}
	}
	slices.Sort(lanes)
	return relay, lanes
}

// SameNameNeed says what SameName has found.
func SameNameNeed(relay string, lanes []int) Need {
	return Need{
		Says:    fmt.Sprintf("relay %s has claimed %s again within seconds: two relays have that name, or the lane fails again and again, as the relay's log says", terminal.Clean(relay), laneList(lanes)),
		Command: "start each relay with a --name of its own, or without one",
	}
}

// Flags are those of a command that name what is paused.
func Flags(p waiting.Pausable) string {
	text := ""
	for _, f := range [][2]string{{"consumer", p.Consumer}, {"topic", p.Topic}, {"key", p.Key}} {
		if f[1] != "" {
			text += " " + terminal.Flag(f[0], f[1])
		}
	}
	return text
}

// exceeds says whether an age in seconds is above a limit.
func exceeds(age int64, limit time.Duration) bool {
	return limit > 0 && time.Duration(age)*time.Second > limit
}

// laneList is "lane 3" or "lanes 0 to 3, 5".
func laneList(lanes []int) string {
	if len(lanes) == 1 {
		return fmt.Sprint("lane ", lanes[0])
	}
	lanes = slices.Sorted(slices.Values(lanes))
	var runs []string
	for i := 0; i < len(lanes); {
		last := i
		for last+1 < len(lanes) && lanes[last+1] == lanes[last]+1 {
			last++
		}
		if last < i+2 { // two are not a run
			last = i
			runs = append(runs, fmt.Sprint(lanes[i]))
		} else {
			runs = append(runs, fmt.Sprintf("%d to %d", lanes[i], lanes[last]))
		}
		i = last + 1
	}
	return "lanes " + strings.Join(runs, ", ")
}

// AtMost prints a count whose bound is most.
func AtMost(n, most int64) string {
	if n >= most {
		return fmt.Sprint(most, "+")
	}
	return fmt.Sprint(n)
}

// Dash is a name as tables show it: "-" for an empty one.
func Dash(name string) string {
	if name == "" {
		return "-"
	}
	return terminal.Clean(name)
}

// Span is a number of seconds as people read it.
func Span(seconds int64) string { return (time.Duration(seconds) * time.Second).String() }

// spoken is a limit as people say it: "10 minutes".
func spoken(d time.Duration) string {
	if whole := int64(d / time.Minute); d == time.Duration(whole)*time.Minute {
		return terminal.Count(whole, "minute")
	}
	return d.String()
}
