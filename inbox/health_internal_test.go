package inbox

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
)

func TestHealth_TheHealthOfAnInboxIsJudgedByWhatItSawLast(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	runs := seen{begun: true, reached: true, consuming: true, joined: true, everIn: true, joining: ago(time.Hour)}
	with := func(change func(*seen)) seen { s := runs; change(&s); return s }
	for _, c := range []struct {
		name        string
		seen        seen
		live, ready bool
		reasons     []string // how each begins
	}{
		{"it consumes", runs, true, true, nil},
		{"it only receives", seen{}, true, true, nil},
		{"it only receives, without a schema", seen{schema: errors.New("schema holdfast is missing")}, true, false, []string{"the database does not answer, or its schema does not fit: schema holdfast is missing"}},
		{"it runs, and does not consume", seen{begun: true, reached: true}, true, true, nil},
		{"it has not reached the database", with(func(s *seen) { s.reached = false }), true, false, []string{"the inbox has not reached the database yet"}},
		{"it has stopped", with(func(s *seen) { s.ended = true }), true, false, []string{"the inbox has stopped"}},
		{"too many handlers hang", with(func(s *seen) { s.ended, s.endedWith = true, ErrHungHandlers }), false, false, []string{"the inbox has ended: "}},
		{"the database is away", with(func(s *seen) { s.away = outage{ago(5 * time.Second), now, errors.New("refused")} }), true, false, []string{"the database has not answered for 5s: refused"}},
		{"a connection was lost", with(func(s *seen) { s.away = outage{ago(4 * time.Second), now, errors.New("refused")} }), true, true, nil},
		{"Kafka is away", with(func(s *seen) { s.broker = outage{ago(5 * time.Second), now, errors.New("refused")} }), true, false, []string{"the broker has not answered for 5s: refused"}},
		{"a fetch failed", with(func(s *seen) { s.broker = outage{ago(4 * time.Second), now, errors.New("refused")} }), true, true, nil},
		{"it joins for the first time", with(func(s *seen) { s.joined, s.everIn, s.joining = false, false, ago(time.Second) }), true, false, []string{"this node has not joined the consumer group yet"}},
		{"a rebalance", with(func(s *seen) { s.joined, s.joining = false, ago(29*time.Second) }), true, true, nil},
		{"a rebalance without end", with(func(s *seen) { s.joined, s.joining = false, ago(30*time.Second) }), true, false, []string{"this node has been joining the consumer group for 30s"}},
		{"a reader waits for memory", with(func(s *seen) {
			s.starved, s.starvedSince = source.TopicPartition{Topic: "orders", Partition: 3}, ago(time.Minute)
		}), true, false, []string{"partition 3 of orders has waited for memory for 1m0s: "}},
		{"a reader has just begun to wait for memory", with(func(s *seen) { s.starvedSince = ago(time.Minute - 1) }), true, true, nil},
	} {
		h := judgeHealth(c.seen, now)
		if h.Live != c.live || h.Ready != c.ready || !slices.EqualFunc(h.Reasons, c.reasons, strings.HasPrefix) {
			t.Errorf("%s: %+v", c.name, h)
		}
	}
}

func TestHealth_AnOutageKeepsItsBeginningAndItsLastCause(t *testing.T) {
	t.Parallel()
	var v vitals
	v.begin(true)
	v.lost(errors.New("first"))
	began := v.read().away.since
	second := errors.New("second")
	v.lost(second)
	if got := v.read().away; got.since != began || got.last.Before(began) || got.why != second || began.IsZero() {
		t.Errorf("%+v", got)
	}
	if v.answered(); v.read().away.why != second {
		t.Error("an answer to a read ends an outage in which something has just failed")
	}
	v.unheard(errors.New("Kafka"))
	if v.reached(); v.read().away != (outage{}) || v.read().broker.why.Error() != "Kafka" {
		t.Errorf("%+v", v.read())
	}
	if v.fetched(); v.read().broker != (outage{}) {
		t.Errorf("%+v", v.read())
	}
	if o := (outage{since: began, last: began}); o.over(began.Add(calmAfter-time.Nanosecond)) || !o.over(began.Add(calmAfter)) {
		t.Errorf("an outage is over after %v without a failure, or not", calmAfter)
	}
	v.joined(true)
	v.joined(false)
	if s := v.read(); s.joined || !s.everIn {
		t.Errorf("%+v", s)
	}
}
