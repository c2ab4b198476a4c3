package relay

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHealth_TheHealthOfARelayIsJudgedByWhatItSawLast(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	runs := seen{begun: true, turnedAt: ago(time.Second), beatAt: ago(time.Second)}
	with := func(change func(*seen)) seen { s := runs; change(&s); return s }
	for _, c := range []struct {
		name        string
		seen        seen
		live, ready bool
		reasons     []string // how each begins
	}{
		{"it runs", runs, true, true, nil},
		{"before Run", seen{}, true, false, []string{"the relay has not started: call Run"}},
		{"no heartbeat yet", with(func(s *seen) { s.beatAt = time.Time{} }), true, false, []string{"the relay has not reached the database yet"}},
		{"it has stopped", with(func(s *seen) { s.ended = true }), true, false, []string{"the relay has stopped"}},
		{"it has ended with an error", with(func(s *seen) { s.ended, s.endedWith = true, errors.New("schema holdfast is missing") }), false, false, []string{"the relay has ended: schema holdfast is missing"}},
		{"the database is away", with(func(s *seen) { s.away = outage{ago(7 * time.Second), "refused"} }), true, false, []string{"the database has not answered for 7s: refused"}},
		{"the heartbeat is late", with(func(s *seen) { s.beatAt = ago(6 * time.Second) }), true, false, []string{"the last heartbeat was 6s ago"}},
		{"the heartbeat is just in time", with(func(s *seen) { s.beatAt = ago(5 * time.Second) }), true, true, nil},
		{"Kafka is away", with(func(s *seen) { s.publisher = outage{ago(10 * time.Second), "refused"} }), true, false, []string{"the broker has taken nothing for 10s: refused"}},
		{"Kafka restarts", with(func(s *seen) { s.publisher = outage{ago(9 * time.Second), "refused"} }), true, true, nil},
		{"both are away", with(func(s *seen) {
			s.away, s.publisher = outage{ago(time.Second), "x"}, outage{ago(time.Minute), "y"}
		}), true, false, []string{"the database has not", "the broker has taken"}},
		{"lanes fail", with(func(s *seen) { s.resting = []int{3, 5} }), true, false, []string{"lanes end with errors again and again: 3 5"}},
		{"its loop is slow", with(func(s *seen) { s.turnedAt = ago(50 * time.Second) }), true, true, nil},
		{"its loop stands still", with(func(s *seen) { s.turnedAt = ago(51 * time.Second) }), false, false, []string{"the loop of the relay has stood still for 51s"}},
	} {
		h := judgeHealth(c.seen, 5*time.Second, now)
		if h.Live != c.live || h.Ready != c.ready || !slices.EqualFunc(h.Reasons, c.reasons, strings.HasPrefix) {
			t.Errorf("%s: %+v", c.name, h)
		}
	}
}

// The lease of a test may be a millisecond: a turn still takes what the network takes.
func TestHealth_AShortLeaseDoesNotMakeARelayUnhealthy(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	if h := judgeHealth(seen{begun: true, turnedAt: now.Add(-20 * time.Second), beatAt: now.Add(-2 * time.Second)}, time.Millisecond, now); !h.Ready {
		t.Errorf("%+v", h)
	}
}

func TestHealth_ATroubleKeepsItsBeginningAndFitsIntoALine(t *testing.T) {
	t.Parallel()
	var v vitals
	at := time.Unix(1_000_000, 0)
	v.refused(errors.New("first"), at)
	v.refused(errors.New("a\nb\x00c\xff"+strings.Repeat("é", 400)), at.Add(time.Minute))
	got := v.read().publisher
	if got.since != at || !strings.HasPrefix(got.why, "a b c\uFFFDé") || len(got.why) > 503 || !strings.HasSuffix(got.why, "é…") {
		t.Errorf("%v: %q", got.since, got.why)
	}
	if v.trouble() != got.why {
		t.Errorf("the heartbeat says %q", v.trouble())
	}
	if v.answered(); v.trouble() != "" {
		t.Errorf("it is over, and the heartbeat says %q", v.trouble())
	}
}
