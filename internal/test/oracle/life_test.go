package oracle

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

func TestLife_AnAlarmOfTheNextFaultIsNotTheOneBefores(t *testing.T) {
	t.Parallel()
	alarms := func(at ...time.Duration) int {
		b := &book{Run: Run{Alarms: map[string][]Alarm{"kill": {{Messages: []string{alarm}}}}}}
		b.Limits.Alarm = 10 * time.Second
		for _, from := range []time.Duration{0, 3 * time.Second} { // each is healed after a second
			b.outages = append(b.outages, outage{fault: "kill", from: begun.Add(from), until: begun.Add(from + time.Second)})
		}
		for _, d := range at {
			b.Entries = append(b.Entries, history.Entry{At: begun.Add(d), Op: history.Log, Text: alarm})
		}
		var found findings
		alarmsSounded(b, &found)
		return found.of(Silent).Count
	}
	for _, c := range []struct {
		name   string
		at     []time.Duration
		silent int
	}{
		{"each has one of its own", []time.Duration{500 * time.Millisecond, 3500 * time.Millisecond}, 0},
		{"the first's comes after its heal and before the next", []time.Duration{2 * time.Second, 4 * time.Second}, 0},
		{"only the first's", []time.Duration{500 * time.Millisecond}, 1},
		{"only the next's, within ten seconds of the first's heal", []time.Duration{3500 * time.Millisecond}, 1},
		{"the next's is late, and nothing comes after it", []time.Duration{time.Second, 13 * time.Second}, 0},
	} {
		if got := alarms(c.at...); got != c.silent {
			t.Errorf("%s: %d faults were not said, want %d", c.name, got, c.silent)
		}
	}
}
