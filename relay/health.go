package relay

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/private"
)

// Health is what a probe wants to know of a relay.
type Health struct {
	// Live says that the process should go on. It is false if Run has returned an error, or its loop stands still: then only a
	// new process helps.
	Live bool

	// Ready says that events flow. It is false while Postgres or Kafka cannot be reached, before Run and after it.
	Ready bool

	// Reasons says why it is not live or not ready, a sentence each. They have no payloads and no secrets.
	Reasons []string
}

// Health says whether the relay works. It looks only at what the loops of Run saw last, so it answers at once, also while the
// database or Kafka is away. Its answer may be as old as a third of Config.Lease. Many goroutines may ask. If ctx is done it is
// not ready, and says so.
//
// A restart brings neither Postgres nor Kafka back, so their outages leave the relay live. If a service writes events and
// embeds its relay, leave Ready out of the service's own readiness: it can write events while Kafka is away.
func (r *Relay) Health(ctx context.Context) Health {
	if err := ctx.Err(); err != nil {
		return Health{Live: true, Reasons: []string{"the question was not waited for: " + err.Error()}}
	}
	now := r.env.now()
	seen := r.vitals.read()
	r.mu.Lock()
	for _, n := range r.failing.resting(now) {
		seen.resting = append(seen.resting, int(n))
	}
	r.mu.Unlock()
	return judgeHealth(seen, r.c.Lease, now)
}

const (
	// troubledAfter is how long the publisher takes nothing before the relay is not ready: a broker that restarts is no news.
	troubledAfter = 10 * time.Second

	// stuckLeases is after how many leases without a turn of its loop a relay is not live. A turn has a bound of a few.
	stuckLeases = 10
)

// seen is what the loops of a relay saw last. Times are zero for what has not happened.
type seen struct {
	begun     bool
	ended     bool
	endedWith error
	begunAt   time.Time
	turnedAt  time.Time // the loop of claims began a turn

	beatAt    time.Time // the last heartbeat
	away      outage    // the database cannot be reached
	publisher outage    // the publisher takes nothing
	resting   []int     // lanes that end with errors again and again
}

// outage is trouble that lasts. The zero value is none.
type outage struct {
	since time.Time
	why   string
}

// judgeHealth decides what a probe gets.
func judgeHealth(s seen, lease time.Duration, now time.Time) Health {
	switch {
	case !s.begun:
		return Health{Live: true, Reasons: []string{"the relay has not started: call Run"}}
	case s.ended && s.endedWith != nil:
		return Health{Reasons: []string{"the relay has ended: " + private.Text(s.endedWith)}}
	case s.ended:
		return Health{Live: true, Reasons: []string{"the relay has stopped"}}
	}
	h := Health{Live: true}
	if stood, bound := now.Sub(s.turnedAt), stuckLeases*max(lease, 2*time.Second); stood > bound {
		h.Live = false
		h.Reasons = append(h.Reasons, fmt.Sprintf("the loop of the relay has stood still for %s: restart the process", stood.Round(time.Second)))
	}
	switch {
	case s.away != outage{}:
		h.Reasons = append(h.Reasons, fmt.Sprintf("the database has not answered for %s: %s", now.Sub(s.away.since).Round(time.Second), s.away.why))
	case s.beatAt.IsZero():
		h.Reasons = append(h.Reasons, "the relay has not reached the database yet")
	case now.Sub(s.beatAt) > max(lease, 2*time.Second):
		h.Reasons = append(h.Reasons, fmt.Sprintf("the last heartbeat was %s ago: the database is slow", now.Sub(s.beatAt).Round(time.Second)))
	}
	if s.publisher != (outage{}) && now.Sub(s.publisher.since) >= troubledAfter {
		h.Reasons = append(h.Reasons, fmt.Sprintf("the broker has taken nothing for %s: %s", now.Sub(s.publisher.since).Round(time.Second), s.publisher.why))
	}
	if len(s.resting) > 0 {
		h.Reasons = append(h.Reasons, fmt.Sprintf("lanes end with errors again and again: %s: the log says why", strings.Trim(fmt.Sprint(s.resting), "[]")))
	}
	h.Ready = len(h.Reasons) == 0
	return h
}

// vitals keeps what the loops see. Many goroutines may use it at once. The zero value is ready.
type vitals struct {
	mu   sync.Mutex
	seen seen
}

func (v *vitals) read() seen {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen
}

func (v *vitals) begin(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen = seen{begun: true, begunAt: now, turnedAt: now}
}

func (v *vitals) end(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen.ended, v.seen.endedWith = true, err
}

func (v *vitals) turn(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen.turnedAt = now
}

// turned records how a turn of the claims ended: with a heartbeat, or with an error. It returns since when the database is away, or
// was until now; zero if it was not.
func (v *vitals) turned(err error, now time.Time) (away time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil {
		away = v.seen.away.since
		v.seen.beatAt, v.seen.away = now, outage{}
		return away
	}
	v.seen.away.note(err, now)
	return v.seen.away.since
}

// refused records that the publisher takes nothing, for no partition.
func (v *vitals) refused(err error, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen.publisher.note(err, now)
}

// answered ends that.
func (v *vitals) answered() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen.publisher = outage{}
}

// trouble is why the publisher takes nothing, "" if it does.
func (v *vitals) trouble() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen.publisher.why
}

// note keeps since when the trouble lasts, and its last cause.
func (o *outage) note(err error, now time.Time) {
	if o.since.IsZero() {
		o.since = now
	}
	o.why = oneLine(private.Text(err))
}

// oneLine is a text that fits into a row and a log line: valid UTF-8 without control characters, of 500 bytes at most.
func oneLine(text string) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "\uFFFD"))
	const most = 500
	if len(text) <= most {
		return text
	}
	end := most
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
