package relay

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNoticesQuota_AKindOfLineIsLoggedTwentyTimesAMinute(t *testing.T) {
	t.Parallel()
	var q noticeQuota
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	said := func(kind string, n, second int) (said int) {
		for range n {
			if q.takes(kind, at(second)) {
				said++
			}
		}
		return said
	}
	if a, b := said("held", 1000, 0), said("back", 5, 1); a != 20 || b != 5 {
		t.Errorf("%d of 1000 lines are said, and %d of 5", a, b)
	}
	if rest := q.rest(false, at(59)); rest != nil {
		t.Errorf("before the minute is over it says %v", rest)
	}
	if n := said("held", 10, 61); n != 0 { // nobody has said yet how many there were
		t.Errorf("%d lines are said before the rest", n)
	}
	if rest := q.rest(false, at(62)); !slices.Equal(rest, []moreNotices{{"held", 990}}) {
		t.Errorf("the rest is %v", rest)
	}
	if n := said("held", 30, 63); n != 20 {
		t.Errorf("%d lines are said in the next minute", n)
	}
	if rest := q.rest(true, at(64)); !slices.Equal(rest, []moreNotices{{"held", 10}}) {
		t.Errorf("at the end the rest is %v", rest)
	}
}

// Every topic is held by the functions that lanes use. The clock stands, so all of it is within a minute.
func TestNoticesQuota_AThousandUnreachableTopicsAreTwentyLines(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var logged bytes.Buffer
	r := &Relay{c: Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))}, env: env{now: func() time.Time { return now }, chance: func() float64 { return 0.5 }}}
	for n := range 1000 {
		l := &lane{r: r, ownership: ownership{number: n % 8}, room: newRoom(usualBounds.queues)}
		l.holdTopic(fmt.Sprint("topic-", n), fmt.Errorf("it is missing"), now)
		l.logHeld(&destination{spot: spot{fmt.Sprint("other-", n), 0}}, answer{err: errUnanswered}, time.Second)
	}
	for n := range 1000 {
		(&lane{r: r, ownership: ownership{number: n % 8}}).sayFlows(spot{fmt.Sprint("topic-", n), wholeTopic}, now)
	}
	now = now.Add(noticeEvery)
	r.logMore(false)
	text := logged.String()
	for what, want := range map[string]int{"topic held": 21, "partition waits": 21, "topic back": 21, "lines left out": 3, "more=980": 3} {
		if n := strings.Count(text, what); n != want {
			t.Errorf("%q is said %d times, want %d", what, n, want)
		}
	}
}
