package state

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/backfill"
	"github.com/holdfast-go/holdfast/internal/nodes"
)

func TestNeeds_AFullLogNamesWhatKeepsItFull(t *testing.T) {
	t.Parallel()
	const unread = "events in older segments are unread in "
	for _, c := range []struct {
		name    string
		holders []Holder
		behind  []int
		want    []string // how each reason begins
	}{
		{"a session that holds it for long", []Holder{{PID: 7, Application: "psql", Seconds: 3600}, {PID: 8, Seconds: 2}}, nil, []string{`process 7 (psql) has held it in one transaction for 1h0m0s: end it: psql -c 'select pg_terminate_backend(7)'`}},
		{"a session that says no name", []Holder{{PID: 7, Seconds: 61}}, nil, []string{"process 7 (-) has held it"}},
		{"a prepared transaction older than a session", []Holder{{Prepared: "it's", Seconds: 90}, {PID: 7, Seconds: 70}}, nil, []string{`prepared transaction 'it''s' has held it for 1m30s: in this database, roll it back, or commit it if its changes are wanted: psql -c "rollback prepared 'it''s'"`}},
		{"a lane and young sessions", []Holder{{PID: 7, Seconds: 59}}, []int{3}, []string{unread + "lane 3: "}},
		{"lanes and an old session", []Holder{{PID: 7, Seconds: 60}}, []int{3, 5}, []string{"process 7 ", unread + "lanes 3, 5: "}},
		{"lanes and sessions of unknown age", []Holder{{PID: 7, Seconds: -1}}, []int{0}, []string{unread + "lane 0: "}},
		{"only sessions of unknown age", []Holder{{PID: 8, Seconds: 3}, {PID: 7, Seconds: -1}}, nil, []string{"process 7 holds it in a transaction of unknown age: grant pg_read_all_stats"}},
		{"nobody", nil, nil, []string{"the older segments are read"}},
		{"only a session that has just begun", []Holder{{PID: 7, Seconds: 0}}, nil, []string{"the older segments are read"}},
		{"only a young session", []Holder{{PID: 7, Seconds: 3}}, nil, []string{"the older segments are read"}},
	} {
		var behind []Behind
		for _, lane := range c.behind {
			behind = append(behind, Behind{lane})
		}
		got := whyFull(c.holders, behind)
		if len(got) != len(c.want) {
			t.Errorf("%s: got %q", c.name, got)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i].String(), c.want[i]) {
				t.Errorf("%s: got %q, want %q", c.name, got[i], c.want[i])
			}
		}
	}
}

func TestNeeds_ALaneWithoutAnOwnerNamesWhatLocksIt(t *testing.T) {
	t.Parallel()
	const alone = ", although a relay runs: it takes them within seconds, unless a transaction has their rows locked, which its log reports. If it has died: start a relay"
	for _, c := range []struct {
		name    string
		running bool
		holders []Holder
		want    string
	}{
		{"no relay", false, nil, ": start a relay"},
		{"a session that has locked them for long", true, []Holder{{PID: 7, Application: "psql", Seconds: 5}, {PID: 8, Seconds: 4}},
			", although a relay runs. Rows of the table lane may be locked: process 7 (psql) has held them in one transaction for 5s: end it"},
		{"a prepared transaction", true, []Holder{{Prepared: "g", Seconds: 90}},
			", although a relay runs. Rows of the table lane may be locked: prepared transaction 'g' has held them for 1m30s: in this database, roll it back, or commit it if its changes are wanted"},
		{"sessions of the relay itself", true, []Holder{{PID: 8, Seconds: 4}}, alone},
		{"a session of unknown age", true, []Holder{{PID: 8, Seconds: -1}}, alone},
		{"nobody", true, nil, alone},
	} {
		if got := whyUnowned(c.running, c.holders); got.Says != c.want || got.Command == "" {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// whole is a State in which everything needs a person.
func whole() State {
	return State{
		Schema: "holdfast", Drift: errors.New("two things:\none and another"), Unread: []Unread{{"sizes", errors.New("no such table")}}, History: []History{{false}},
		Paused: []Pause{{Topic: "orders", By: "ann\x1b[2J", Seconds: 60}, {Consumer: "it's", Topic: "orders", Key: "k 1", By: "bob", Seconds: 3600}, {Consumer: "mail", By: "bob", Reason: "its server is\x1b away"}},
		Looked: MostEvents, Letters: []Letters{{Lane: 3, Open: 2}, {Lane: -1, Consumer: "billing", Open: 1}},
		Held: []Held{{Lane: 1, Topic: "gone", Partition: -2, Events: 3}, {Lane: 2, Topic: "gone", Partition: -2, Events: 1}, {Lane: 1, Topic: "orders", Partition: -2, Events: 9},
			{Lane: 1, Topic: "slow", Partition: 4, Events: 9}, {Lane: 7, Topic: "zero", Partition: 0, Events: 1}},
		Lanes:  []Lane{{Lane: 0, Unread: true, Oldest: 100}, {Lane: 1, Owner: "r", Oldest: 61}, {Lane: 2, Owner: "r", Oldest: 90}, {Lane: 3, Owner: "s", Oldest: 400, Trouble: "dial tcp: refused"}, {Lane: 4, Owner: "r", Oldest: 60}},
		Relays: []Relay{{Relay: "r"}}, LaneHolders: []Holder{{PID: 7, Application: "psql", Seconds: 5}},
		Long: []LongWaiting{{2, 1}}, Segments: []Segment{{0, true, 9}, {1, false, 9}}, LogHolders: []Holder{{Prepared: "p", Seconds: 60}}, Behind: []Behind{{3}, {5}},
		Consumers: []Consumer{
			{Consumer: "billing", Letters: 1, Waiting: MostEvents, Keys: 12, Oldest: 901, Overdue: 360},
			{Consumer: "mail", Waiting: 3, Keys: 2, Oldest: 901, Node: nodes.Row{Consumer: "mail", Silent: 90}},
			{Consumer: "well", Waiting: 3, Oldest: 900, Nodes: 1, Node: nodes.Row{Consumer: "well", Living: 1}},
		},
		Backfills: []Backfill{{backfill.Row{Consumer: "billing", Recent: true, Waits: "9 events wait"}}, {backfill.Row{Consumer: "mail", Recent: true, Waits: "it is paused"}}, {backfill.Row{Consumer: "done", Ended: true}}},
		Needed: []Dependency{
			{Consumer: "it's", Name: "stripe", Away: true, Seconds: 720, Next: 20, Error: "dial\x1b: refused", Types: []string{"charge", "refund"}, Waiting: 3},
			{Consumer: "mail", Name: "smtp", Away: true, Seconds: 300, Next: -300},
		},
		NoEnds: errors.New("no broker answers"),
		Positions: []Position{{Consumer: "billing", Topic: "orders", Partition: 2, Held: "its offset is out of range"}, {Consumer: "billing", Topic: "orders"},
			{Consumer: "mail", Topic: "orders", Known: true, Lag: 12}, {Consumer: "mail", Topic: "orders", Partition: 1, Known: true, Lag: -3}, {Consumer: "mail", Topic: "orders", Partition: 2, Lag: 5}},
		Before: Owners{1: {"r", 1}, 2: {"s", 1}}, After: Owners{1: {"r", 2}, 2: {"r", 9}},
	}
}

func TestNeeds_WhatNeedsAPersonAndWithWhichCommand(t *testing.T) {
	t.Parallel()
	want := []string{
		"holdfast check fails, so what is shown here may be incomplete: two things:; one and another; https://github.com/holdfast-go/holdfast/blob/main/docs/operations/runbooks.md#schema-drift says how to repair it",
		"status cannot read sizes: no such table: holdfast check",
		"this database is a restored copy, or was moved, so relays refuse to run: stop them all, then run holdfast adopt --yes",
		`lane 0 has events and no owner, although a relay runs. Rows of the table lane may be locked: process 7 (psql) has held them in one transaction for 5s: end it: psql -c 'select pg_terminate_backend(7)'`,
		"lane 3 has events that are not published, the oldest of them for 6m40s: relay s gets no answer from the broker: check its address, its credentials and the network: dial tcp: refused: holdfast doctor --brokers HOST:PORT",
		"lanes 1, 2 have events that are not published, the oldest of them for 1m30s: the log of relay r says what it waits for; if that is nothing, it is not fast enough: start more relays: holdfast doctor",
		`no segment of the log is empty: prepared transaction 'p' has held it for 1m0s: in this database, roll it back, or commit it if its changes are wanted: psql -c "rollback prepared 'p'"`,
		"no segment of the log is empty: events in older segments are unread in lanes 3, 5: the log of the lane's relay says whether the lane waits, and why; if it is not, start more relays to share the lanes: holdfast relay",
		"relay r has claimed lane 1 again within seconds: two relays have that name, or the lane fails again and again, as the relay's log says: start each relay with a --name of its own, or without one",
		"topic gone is missing, or the relay may not write to it: create it or grant the rights; 4 events wait for it. If it will not come back: holdfast waiting give-up --help",
		"lane 2 has 1 event that has waited for more than 15 minutes: holdfast waiting groups --origin relay",
		"consumer billing has waiting events that were due 6m0s ago, and no node takes them: start a node of this consumer that handles their types: holdfast waiting groups --consumer billing",
		"consumer billing has 10000+ waiting events of 12+ keys, the oldest for 15m1s: holdfast waiting list --consumer billing --heads",
		`consumer mail: no node has been heard of for 1m30s, so its events wait, and 12 offsets are not consumed: start one; if it is retired, https://github.com/holdfast-go/holdfast/blob/main/docs/operations/consumers.md#retention-of-the-inbox says how to forget it: holdfast status --brokers HOST:PORT`,
		"consumer mail has 3 waiting events of 2 keys, the oldest for 15m1s: holdfast waiting list --consumer mail --heads",
		"consumer billing holds partition 2 of topic orders: its offset is out of range: holdfast status --brokers HOST:PORT",
		`dependency stripe of consumer it's has been away for 12m0s (last error: dial\x1b: refused): find out why; events of types charge, refund wait until it is back: holdfast waiting groups --consumer "it's" --why dependency`,
		"dependency smtp of consumer mail has been away for 5m0s: find out why; events that need it wait until it is back: holdfast waiting groups --consumer mail --why dependency",
		"the backfill of consumer billing waits: 9 events wait: holdfast waiting groups --consumer billing",
		"Kafka does not say where the partitions end, so the lag of consumers is not known: no broker answers: holdfast doctor --brokers HOST:PORT",
		"the relay has 2 open dead letters: holdfast dlq list --origin relay",
		"consumer billing has 1 open dead letter: holdfast dlq list --consumer billing",
		"10000 or more dead letters are open or being re-delivered; only the first 10000 are counted here: holdfast dlq groups",
		`topic orders is paused for 1m0s, by ann\x1b[2J: holdfast resume --topic orders --reason WHY`,
		`key "k 1" of topic orders in consumer it's is paused for 1h0m0s, by bob: holdfast resume --consumer "it's" --topic orders --key 'k 1' --reason WHY`,
		"consumer mail is paused for 0s, by bob (its server is\\x1b away): holdfast resume --consumer mail --reason WHY",
	}
	s := whole()
	got := s.Needs(DefaultLimits)
	for i, n := range got {
		if n.Command == "" {
			t.Errorf("%q has no command", n.Says)
		}
		if i >= len(want) || n.String() != want[i] {
			t.Errorf("need %d is\n%s", i, n)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d needs, want %d", len(got), len(want))
	}
	for says, see := range map[string]List{
		"holdfast check fails":                     {},
		"lane 0 has events and no owner":           {Of: OfLanes},
		"lane 3 has events that are not published": {Of: OfLanes},
		"lane 2 has 1 event":                       {Of: OfWaiting, Origin: "relay"},
		"no segment of the log is empty":           {Of: OfLanes},
		"relay r has claimed":                      {Of: OfLanes},
		"topic gone is missing":                    {Of: OfWaiting, Origin: "relay", Topic: "gone"},
		"consumer billing has waiting events":      {Of: OfWaiting, Origin: "inbox", Consumer: "billing"},
		"consumer billing has 10000+":              {Of: OfWaiting, Origin: "inbox", Consumer: "billing"},
		"the backfill of consumer billing":         {Of: OfWaiting, Origin: "inbox", Consumer: "billing"},
		"dependency stripe of consumer it's":       {Of: OfWaiting, Origin: "inbox", Consumer: "it's"},
		"consumer mail: no node":                   {Of: OfConsumers},
		"consumer billing holds partition 2":       {Of: OfConsumers},
		"consumer billing has 1 open dead letter":  {Of: OfLetters, Origin: "inbox", Consumer: "billing"},
		"the relay has 2 open dead letters":        {Of: OfLetters, Origin: "relay"},
		"10000 or more dead letters":               {Of: OfLetters},
		"topic orders is paused":                   {Of: OfPaused},
	} {
		if i := slices.IndexFunc(got, func(n Need) bool { return strings.HasPrefix(n.Says, says) }); i < 0 || got[i].See != see {
			t.Errorf("%q is not listed in %+v", says, see)
		}
	}
	for name, limits := range map[string]Limits{"no limits": {}, "longer ones": {time.Hour, time.Hour}} {
		if all := s.Needs(limits); len(all) != len(want)-4 {
			t.Errorf("with %s there are %d needs: %q", name, len(all), all)
		}
	}
	// What was not read is not taken for nothing.
	unread := State{Drift: errors.New("it has drifted"), Lanes: []Lane{{Unread: true}}, Held: []Held{{Topic: "gone", Partition: -2, Events: 1}}, Unread: []Unread{{"relays", errors.New("gone")}, {"pauses", errors.New("gone")}}}
	if got := unread.Needs(DefaultLimits); len(got) != 3 || got[2].Says != "status cannot read pauses: gone" {
		t.Errorf("without relays and pauses: %q", got)
	}
	if none := (&State{History: []History{{true}}}).Needs(DefaultLimits); len(none) != 0 {
		t.Errorf("of nothing: %q", none)
	}
}

// A shell gives a value that begins with a dash to its flag only behind an equals sign.
func TestNeeds_AConsumerWhoseNameBeginsWithADash(t *testing.T) {
	t.Parallel()
	s := State{
		Consumers: []Consumer{{Consumer: "-x", Letters: 1, Waiting: 1, Oldest: 901, Overdue: 360}},
		Backfills: []Backfill{{backfill.Row{Consumer: "-x", Recent: true, Waits: "9 events wait"}}},
		Letters:   []Letters{{Lane: -1, Consumer: "-x", Open: 1}},
		Paused:    []Pause{{Consumer: "-x", Topic: "orders", Key: "-k 1", By: "ann"}},
	}
	var got []string
	for _, n := range s.Needs(DefaultLimits) {
		got = append(got, n.Command)
	}
	want := []string{"holdfast waiting groups --consumer=-x", "holdfast waiting list --consumer=-x --heads", "holdfast waiting groups --consumer=-x", "holdfast dlq list --consumer=-x", "holdfast resume --consumer=-x --topic orders --key='-k 1' --reason WHY"}
	if !slices.Equal(got, want) {
		t.Errorf("the commands are %q, want %q", got, want)
	}
}

func TestNeeds_WhatALaneWaitsForInAFewWords(t *testing.T) {
	t.Parallel()
	s := whole()
	s.Held = append(s.Held, Held{Lane: 1, Topic: "more", Partition: -2})
	for _, c := range []struct {
		lane Lane
		want string
	}{
		{Lane{Lane: 9}, ""},
		{Lane{Lane: 2}, "topic gone"},
		{Lane{Lane: 1}, "topic gone, topic orders, which is paused, partition 4 of slow, 1 more"},
		{Lane{Lane: 2, Trouble: "away"}, "broker: away, topic gone"},
	} {
		if got := s.heldBy(c.lane); got != c.want {
			t.Errorf("lane %d waits for %q, want %q", c.lane.Lane, got, c.want)
		}
	}
}

func TestNeeds_WhatNeedsAPersonAtTheEdge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		state  State
		limits Limits
		want   string // how each need begins
	}{
		{"one letter of a relay", State{Letters: []Letters{{Lane: 1, Open: 1}}}, Limits{}, "the relay has 1 open dead letter"},
		{"two topics, one of them in two lanes", State{Paused: []Pause{}, Held: []Held{{1, "gone", -2, 1}, {2, "gone", -2, 1}, {1, "lost", -2, 1}}}, Limits{}, "topic gone is missing|topic lost is missing"},
		{"lanes that have owners", State{Relays: []Relay{{Relay: "r"}}, Lanes: []Lane{{Lane: 1, Owner: "r", Unread: true}}}, Limits{}, ""},
		{"a lane without an owner or events", State{Relays: []Relay{}, Lanes: []Lane{{Lane: 1}}}, Limits{}, ""},
		{"a lane with a scheduled event, and no relay", State{Relays: []Relay{}, Lanes: []Lane{{Lane: 1, Scheduled: 1}}}, Limits{}, "lane 1 has events and no owner: start a relay"},
		{"a lane with a waiting event, and no relay", State{Relays: []Relay{}, Lanes: []Lane{{Lane: 1, Waiting: 1}}}, Limits{}, "lane 1 has events and no owner: start a relay"},
		{"away for less than five minutes", State{Needed: []Dependency{{Consumer: "a", Name: "b", Away: true, Seconds: 299, Next: 1}}}, Limits{}, ""},
		{"of one type", State{Needed: []Dependency{{Consumer: "a", Name: "b", Away: true, Seconds: 300, Types: []string{"c"}}}}, Limits{}, "dependency b of consumer a has been away for 5m0s: find out why; events of type c wait until it is back"},
		{"there for long", State{Needed: []Dependency{{Consumer: "a", Name: "b", Seconds: 3000, Next: -3000}}}, Limits{}, ""},
		{"away, as far as is known", State{Needed: []Dependency{{Consumer: "a", Name: "b", Away: true, Seconds: 3000, Next: -301}}}, Limits{}, ""},
		{"overdue for a second", State{Consumers: []Consumer{{Consumer: "a", Overdue: 1}}}, Limits{}, "consumer a has waiting events that were due 1s ago"},
		{"the shortest limit", State{Consumers: []Consumer{{Consumer: "a", Waiting: 1, Oldest: 1}}}, Limits{Waiting: 1}, "consumer a has 1 waiting events"},
	} {
		var got []string
		for _, n := range c.state.Needs(c.limits) {
			got = append(got, n.Says)
		}
		want := strings.Split(c.want, "|")
		if c.want == "" {
			want = nil
		}
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s: %q, want %q", c.name, got, want)
				break
			}
		}
	}
}

func TestNeeds_WhatBecomesOfADependency(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d             Dependency
		says          string
		untried, gone bool
	}{
		{Dependency{Seconds: 9, Next: -9}, "there", false, false},
		{Dependency{Seconds: 900, Next: -900}, "there", false, false},
		{Dependency{Away: true, Next: 20}, "away; the next try is in 20s", false, true},
		{Dependency{Away: true}, "away; an event may try it now", false, true},
		{Dependency{Away: true, Next: -300}, "away; an event may try it now", false, true},
		{Dependency{Away: true, Next: -301}, "was away; nothing has tried it for 5m1s", true, false},
	} {
		if says := c.d.State(); says != c.says || c.d.Untried() != c.untried || c.d.Gone() != c.gone {
			t.Errorf("%+v is %q, untried %t, gone %t", c.d, says, c.d.Untried(), c.d.Gone())
		}
	}
}

func TestNeeds_WhatATypeWaitsForIsAwayInItsConsumer(t *testing.T) {
	t.Parallel()
	types := []string{"charge", "refund"}
	s := State{Needed: []Dependency{{Consumer: "a", Name: "bank", Away: true, Types: types}, {Consumer: "a", Name: "mail", Types: types}, {Consumer: "a", Name: "stripe", Away: true, Types: types, Next: -9000},
		{Consumer: "a", Name: "fax", Away: true, Types: types[:1]}, {Consumer: "b", Name: "smtp", Away: true, Types: types}}}
	if got := fmt.Sprint(s.AwayFor("a", "refund"), s.AwayFor("b", "charge"), s.AwayFor("c", "charge"), s.AwayFor("a", "other")); got != "[bank stripe] [smtp] [] []" {
		t.Errorf("away are %s", got)
	}
}

func TestNeeds_ARelayThatClaimsItsOwnLanesAgainIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, after Owners
		want          string
	}{
		{Owners{1: {"a", 1}}, Owners{1: {"a", 1}}, "[]"},
		{Owners{1: {"a", 2}}, Owners{1: {"a", 1}}, "[]"}, // a database that was restored
		{Owners{1: {"a", 1}}, Owners{1: {"b", 2}}, "[]"},
		{Owners{1: {"", 1}}, Owners{1: {"", 2}}, "[]"},
		{Owners{1: {"a", 1}}, Owners{}, "[]"},
		{Owners{3: {"z", 1}, 7: {"a", 1}, 2: {"a", 1}, 5: {"a", 1}}, Owners{3: {"z", 2}, 7: {"a", 2}, 2: {"a", 2}, 5: {"a", 1}}, "a[2 7]"},
	} {
		for range 20 { // in the orders in which maps are walked
			if relay, lanes := SameName(c.before, c.after); relay+strings.TrimSpace(fmt.Sprint(lanes)) != c.want {
				t.Fatalf("%v, then %v: %s %v, want %s", c.before, c.after, relay, lanes, c.want)
			}
		}
	}
}
