package state

import (
	"strings"
	"testing"
)

func TestAFullLogNamesWhatKeepsItFull(t *testing.T) {
	t.Parallel()
	const unread = "events in older segments are unread in "
	for _, c := range []struct {
		name    string
		holders []Holder
		behind  []int
		want    []string // how each reason begins
	}{
		{"a session that holds it for long", []Holder{{PID: 7, Application: "psql", Seconds: 3600}, {PID: 8, Seconds: 2}}, nil, []string{`process 7 (psql) has held it in one transaction for 1h0m0s: end it: psql -c "select pg_terminate_backend(7)"`}},
		{"a session that says no name", []Holder{{PID: 7, Seconds: 61}}, nil, []string{"process 7 (-) has held it"}},
		{"a prepared transaction older than a session", []Holder{{Prepared: "it's", Seconds: 90}, {PID: 7, Seconds: 70}}, nil, []string{`prepared transaction 'it''s' has held it for 1m30s: in this database, roll it back, or commit it if its changes are wanted: psql -c "rollback prepared 'it''s'"`}},
		{"a lane and young sessions", []Holder{{PID: 7, Seconds: 59}}, []int{3}, []string{unread + "lane 3: "}},
		{"lanes and an old session", []Holder{{PID: 7, Seconds: 60}}, []int{3, 5}, []string{"process 7 ", unread + "lanes 3, 5: "}},
		{"lanes and sessions of unknown age", []Holder{{PID: 7, Seconds: -1}}, []int{0}, []string{unread + "lane 0: "}},
		{"only sessions of unknown age", []Holder{{PID: 8, Seconds: 3}, {PID: 7, Seconds: -1}}, nil, []string{"process 7 holds it in a transaction of unknown age: grant pg_read_all_stats"}},
		{"nobody", nil, nil, []string{"the older segments are read"}},
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

func TestALaneWithoutAnOwnerNamesWhatLocksIt(t *testing.T) {
	t.Parallel()
	const alone = ", although a relay runs: it takes them within seconds, unless a transaction has their rows locked; its log says so. If it has died: start a relay"
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
