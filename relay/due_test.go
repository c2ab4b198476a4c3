package relay

import (
	"testing"
	"time"
)

func TestDue_ALaneRestsWhenOnlyWhatItHasInMemoryIsDue(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name        string
		rows, tries int // of the look before
		full        bool
		due         uint32
		after       time.Duration
		looks, more bool
		at          time.Time
	}{
		{name: "nobody has seen anything", due: scheduledDue},
		{name: "the poller has seen rows", due: parkedDue, looks: true},
		{name: "something is in memory, and nothing else was found", tries: 3, due: parkedDue, at: now.Add(dueRest)},
		{name: "a rest later", tries: 3, due: parkedDue, after: dueRest, looks: true},
		{name: "the lane knows better", tries: 3, due: parkedDue | queueDue, looks: true},
		{name: "nothing was in memory", due: parkedDue, looks: true},
		{name: "rows were found", rows: 2, tries: 3, due: parkedDue, looks: true, more: true},
		{name: "there was no room", tries: 3, full: true, due: parkedDue, at: now.Add(dueRest), more: true},
	} {
		var d dueLooks
		d.looked(c.rows, c.tries, now)
		if c.full {
			d.full()
		}
		d.hear(c.due)
		if at := d.at(); !c.looks && !at.Equal(c.at) {
			t.Errorf("%s: it looks at %v, want %v", c.name, at, c.at)
		}
		if looks := d.take(now.Add(c.after)); looks != c.looks || d.more != c.more {
			t.Errorf("%s: it looks: %t, want %t; there may be more: %t, want %t", c.name, looks, c.looks, d.more, c.more)
		}
		if c.looks && (d.asked || d.surely) {
			t.Errorf("%s: it looks twice for the same", c.name)
		}
	}
}
