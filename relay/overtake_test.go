package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestOvertake_NoisyTenantsAreThoseThatOthersWaitFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		met  map[string]int
		want string
	}{
		"one has written almost all": {map[string]int{"acme": 990, "beta": 10}, "acme"},
		"two have":                   {map[string]int{"acme": 500, "beta": 480, "gamma": 20}, "acme beta"},
		"events without a tenant are one tenant's": {map[string]int{"": 990, "beta": 10}, ""},
		"all are alike":                    {map[string]int{"a": 10, "b": 10, "c": 10, "d": 10, "e": 10, "f": 10, "g": 10, "h": 10, "i": 10, "j": 10}, "nobody"},
		"one is large, and less than half": {map[string]int{"acme": 300, "b": 70, "c": 70, "d": 70, "e": 70, "f": 70, "g": 70, "h": 70, "i": 70, "j": 70, "k": 70}, "nobody"},
		"an eighth is enough":              {map[string]int{"a": 500, "b": 125, "c": 124, "d": 124, "e": 127}, "a b e"},
	} {
		total := 0
		for _, n := range c.met {
			total += n
		}
		names := noisyTenants(c.met, total)
		if got := strings.Join(names, " "); names == nil && c.want != "nobody" || names != nil && got != c.want {
			t.Errorf("%s: %q, want %q", name, names, c.want)
		}
	}
}

func TestOvertake_ATenantIsWhatAKeySaysBeforeTheSeparator(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{"acme::7": "acme", "acme::7::8": "acme", "acme": "", "": "", "::7": "", "acme:7": ""} {
		if got := tenantOf(key, "::"); got != want {
			t.Errorf("the tenant of %q is %q, want %q", key, got, want)
		}
	}
}

func TestOvertake_ReadingAheadTakesAFifthOfTheTime(t *testing.T) {
	t.Parallel()
	ended := time.Unix(100, 0)
	for name, c := range map[string]struct {
		took, waited time.Duration
		first, full  bool
		want         time.Duration
	}{
		"nothing is there":                       {0, 0, false, false, readAheadEvery},
		"it is quick":                            {time.Millisecond, 100 * time.Millisecond, false, false, readAheadEvery},
		"it is slow":                             {time.Second, time.Second, false, false, 4 * time.Second},
		"it was the backlog":                     {time.Second, 0, true, false, readAheadEvery},
		"there is more":                          {time.Second, time.Second, false, true, 0},
		"there is more of the backlog":           {time.Second, time.Second, true, true, 0},
		"the lane has waited for eight seconds":  {0, 8 * time.Second, false, false, 500 * time.Millisecond},
		"the lane has waited for an hour":        {0, time.Hour, false, false, readAheadMost},
		"a long wait, and a read that is slower": {time.Second, time.Hour, false, false, 4 * time.Second},
	} {
		if got := readsAgain(ended, c.took, c.waited, c.first, c.full).Sub(ended); got != c.want {
			t.Errorf("%s: it reads again in %v, want %v", name, got, c.want)
		}
	}
}

// deafLog answers nothing that reads ahead, until a context ends or at once.
type deafLog struct {
	database
	waits bool
}

func (d deafLog) Query(ctx context.Context, _ string, _ ...any) (pgx.Rows, error) {
	if d.waits {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, errors.New("canceling statement due to statement timeout")
}

// The lane's own pages go on, and the next try comes later each time.
func TestOvertake_AFailedReadAheadRests(t *testing.T) {
	t.Parallel()
	o, now := newOvertaking("/"), time.Unix(1000, 0)
	var rested []time.Duration
	r := &logReader{fair: o, pool: deafLog{}, sql: &sqlschema.Statements{}, now: func() time.Time { return now }, notAhead: func(err error, rest time.Duration) {
		if err == nil {
			t.Error("it does not say why")
		}
		rested = append(rested, rest)
	}}
	meet := func() {
		p := page{}
		for n := range 20 {
			p.events = append(p.events, logEvent{Event: holdfast.Event{Key: "acme/1"}, seq: int64(n)})
		}
		if left := o.left(p); len(left.events) != 20 {
			t.Errorf("a page has %d events", len(left.events))
		}
		o.meet(p, 10, now)
	}
	for range 8 {
		if meet(); o.noisy == nil {
			t.Fatalf("after %v it does not begin again", rested)
		}
		if _, found := r.readAhead(t.Context(), now); found || o.noisy != nil {
			t.Error("it goes on")
		}
		now = now.Add(rested[len(rested)-1] - 1)
		if meet(); o.noisy != nil {
			t.Errorf("it begins again before %v", rested[len(rested)-1])
		}
		now = now.Add(1)
	}
	if got := fmt.Sprint(rested); got != "[1m0s 2m0s 4m0s 8m0s 16m0s 32m0s 1h0m0s 1h0m0s]" {
		t.Errorf("it rests for %s", got)
	}
	meet()
	o.take(nil, "1:1:", false)
	if got := o.failed(now); got != time.Minute {
		t.Errorf("after a success it rests for %v", got)
	}
}

// Else the page that is read after it would have no time, and the lane would be dropped.
func TestOvertake_AReadAheadThatTakesTooLongIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		said := false
		r := &logReader{fair: newOvertaking("/"), pool: deafLog{waits: true}, sql: &sqlschema.Statements{}, now: time.Now, notAhead: func(error, time.Duration) { said = true }}
		began := time.Now()
		if _, found := r.readAhead(ctx, began); found || ctx.Err() != nil || !said {
			t.Errorf("found: %t, said: %t, %v", found, said, ctx.Err())
		}
		if took := time.Since(began); took != aheadTimeout {
			t.Errorf("it took %v, want %v", took, aheadTimeout)
		}
		ended, end := context.WithCancel(ctx)
		end()
		said = false
		if _, found := r.readAhead(ended, began); found || said {
			t.Errorf("a relay that stops: found: %t, said: %t", found, said)
		}
	})
}

// A broker that is away for long keeps pages in memory until there is no room. Then all lanes look for it, and find none.
func TestOvertake_WithoutRoomInMemoryReadingAheadComesLessAndLessOften(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	r := &Relay{budget: newBudget(10, 10), env: env{now: func() time.Time { return now }}}
	l := &lane{r: r, reader: logReader{fair: newOvertaking("/")}}
	if !r.budget.tryTake() {
		t.Fatal("there is no room: the test shows nothing")
	}
	for waited, want := range map[time.Duration]time.Duration{0: readAheadEvery, 8 * time.Second: 500 * time.Millisecond, time.Hour: readAheadMost} {
		if err := l.handAhead(t.Context(), now.Add(-waited), nil); err != nil {
			t.Fatal(err)
		}
		if got := l.reader.fair.nextAt.Sub(now); got != want {
			t.Errorf("after %v it looks again in %v, want %v", waited, got, want)
		}
	}
}

// queuedEvent is an event in the queue of a destination: of the log, or a parked one.
func queuedEvent(key string, parked bool) *pending {
	p := &pending{event: &logEvent{Event: holdfast.Event{Key: key}}}
	if parked {
		p.row = &parkedRow{}
	}
	return p
}

func TestOvertake_OvertakingPassesEventsOfNoisyTenantsOnly(t *testing.T) {
	t.Parallel()
	l := &lane{r: &Relay{c: Config{TenantSeparator: "/"}}, sending: sending{noisy: []string{"acme", "beta"}, separator: "/"}}
	d := &destination{route: &topicRoute{}}
	for _, e := range []*pending{queuedEvent("acme/1", false), queuedEvent("acme/2", true), queuedEvent("acme/3", false), queuedEvent("delta/1", false), queuedEvent("beta/1", false), queuedEvent("acme/1", false)} {
		d.enqueue(e, time.Time{})
	}
	for _, key := range []string{"quiet/1", "quiet/2"} {
		d.enqueue(queuedEvent(key, false), time.Time{})
		d.overtake(l.isNoisy)
	}
	var keys []string
	for _, e := range d.queue {
		keys = append(keys, e.event.Key)
	}
	if got, want := strings.Join(keys, " "), "acme/1 acme/2 acme/3 delta/1 quiet/1 quiet/2 beta/1 acme/1"; got != want {
		t.Errorf("the queue is %s, want %s", got, want)
	}
}

func TestOvertake_WhatHasOvertakenIsSentAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue []string
		noisy []string
		most  int
		want  int
	}{
		"quiet ones first":             {[]string{"beta/1", "gamma/1", "acme/1", "beta/2"}, []string{"acme"}, 0, 2},
		"all are quiet":                {[]string{"beta/1", "gamma/1"}, []string{"acme"}, 0, 100},
		"a noisy one first":            {[]string{"acme/1", "beta/1"}, []string{"acme"}, 0, 100},
		"nobody is noisy":              {[]string{"beta/1", "acme/1"}, nil, 0, 100},
		"the partition takes only one": {[]string{"beta/1", "gamma/1", "acme/1"}, []string{"acme"}, 1, 1},
		"nothing":                      {nil, []string{"acme"}, 0, 100},
	} {
		l := &lane{r: &Relay{c: Config{TenantSeparator: "/", BatchSize: 100}}, sending: sending{noisy: c.noisy, separator: "/"}}
		d := &destination{route: &topicRoute{}, most: c.most}
		for _, key := range c.queue {
			d.enqueue(queuedEvent(key, false), time.Time{})
		}
		if got := l.mostOf(d); got != c.want {
			t.Errorf("%s: %d events are sent in a call, want %d at most", name, got, c.want)
		}
	}
}

// written is an event of a log in memory, and the number of the commit that ended its transaction.
type written struct {
	commit int
	event  logEvent
}

// moment is a snapshot of the log in memory: the transactions that ended before it. It is written as its number.
func moment(n int) string { return fmt.Sprint(n) }

func commitsAt(text string) int {
	n := 0
	_, _ = fmt.Sscan(text, &n)
	return n
}

// windowOf reads a window of the log in memory, in the order of seq, after pos.
func windowOf(log []written, done, upto int, pos int64) (events []logEvent) {
	for _, w := range log {
		if w.commit >= done && w.commit < upto && w.event.seq > pos {
			events = append(events, w.event)
		}
	}
	slices.SortFunc(events, func(a, b logEvent) int { return int(a.seq - b.seq) })
	return events
}

// Writers of many tenants commit in any order, and two readers read: the first in windows that end anywhere, the second ahead of it.
// Each event is handed out once and each key in order, whatever the turns; and the cursor moves past nothing that was not handed out.
func TestOvertake_TwoReadersHandOutEachEventOnceAndEachKeyInOrder(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	overtaken, turns := 0, 0
	for range 100 {
		log, commits := history(random)
		o := newOvertaking("/")
		o.most = 1 + random.IntN(60)
		limit := 1 + random.IntN(8)
		at, now := cursor{done: moment(0)}, 0
		var handed []logEvent
		known := map[int64]bool{}
		ahead := func() []logEvent { // a page of the second reader
			upto := now
			if o.at.upto != "" {
				upto = commitsAt(o.at.upto)
			}
			all := windowOf(log, commitsAt(o.at.done), upto, o.at.pos)
			first := o.from.upto != "" && o.at.done == o.from.done
			all = slices.DeleteFunc(all, func(e logEvent) bool {
				emitted := first && e.seq <= o.from.pos && slices.ContainsFunc(log, func(w written) bool { return w.event.seq == e.seq && w.commit < commitsAt(o.from.upto) })
				return emitted || o.isNoisy(e.Key)
			})
			events := o.take(slices.Clone(all[:min(limit, len(all))]), moment(upto), len(all) >= limit)
			overtaken += len(events)
			return events
		}
		emptied := 0
		for emptied < 3 {
			if now < commits && random.IntN(3) == 0 {
				now += 1 + random.IntN(min(40, commits-now))
			}
			upto, opens := now, at.upto == ""
			if !opens {
				upto = commitsAt(at.upto)
			} else if done := commitsAt(at.done); now > done && random.IntN(2) == 0 {
				upto = done + 1 + random.IntN(now-done) // a cut
				at.upto, opens = moment(upto), false
			}
			all := windowOf(log, commitsAt(at.done), upto, at.pos)
			full := len(all) >= limit
			p := page{events: slices.Clone(all[:min(limit, len(all))]), last: opens && !full}
			last := int64(0)
			if len(p.events) > 0 {
				last = p.events[len(p.events)-1].seq
			}
			at = at.after(moment(upto), full, last)
			p.after = at
			for o.due(time.Unix(0, 0)) && random.IntN(3) > 0 { // the lane has no room for it yet, and more is committed
				if now < commits && random.IntN(2) == 0 {
					now++
				}
				handed = append(handed, ahead()...)
			}
			before := o.turn
			handed = append(handed, o.left(p).events...)
			o.meet(p, limit, time.Time{})
			turns += o.turn - before
			if p.last && now == commits {
				emptied++
			}
			for _, e := range handed[min(len(known), len(handed)):] {
				known[e.seq] = true
			}
			for _, w := range log { // nothing behind the cursor is missing
				passed := w.commit < commitsAt(at.done) || at.upto != "" && w.commit < commitsAt(at.upto) && w.event.seq <= at.pos
				if passed && !known[w.event.seq] {
					t.Fatalf("the cursor is at %v, and event %d was not handed out", at, w.event.seq)
				}
			}
		}
		if len(handed) != len(log) {
			t.Fatalf("%d events are handed out, want %d", len(handed), len(log))
		}
		last := map[string]int64{}
		seen := map[int64]bool{}
		for _, e := range handed {
			if seen[e.seq] {
				t.Fatalf("event %d is handed out twice", e.seq)
			}
			if seen[e.seq] = true; e.seq < last[e.Key] {
				t.Fatalf("of %s, event %d comes after %d", e.Key, e.seq, last[e.Key])
			}
			last[e.Key] = e.seq
		}
		if len(o.taken)+len(o.first) > 0 {
			t.Fatalf("%d and %d events are remembered at the end", len(o.taken), len(o.first))
		}
	}
	if overtaken < 300 || turns < 50 {
		t.Errorf("%d events overtook others, in %d turns: the test has gone blind", overtaken, turns)
	}
}

// history is a log in memory: mostly of one tenant, with keys whose transactions wait for each other: a later one of a key draws its
// numbers after the earlier one has committed.
func history(random *rand.Rand) (log []written, commits int) {
	type open struct {
		keys   []string
		events []logEvent
	}
	var running []open
	var seq int64
	locked := map[string]bool{}
	for started := 0; started < 120 || len(running) > 0; {
		if started < 120 && (len(running) == 0 || len(running) < 6 && random.IntN(2) == 0) {
			started++
			tenant := "acme"
			if random.IntN(5) == 0 {
				tenant = string(rune('b' + random.IntN(5)))
			}
			var tx open
			for range 1 + random.IntN(4) {
				key := fmt.Sprintf("%s/%d", tenant, random.IntN(4))
				if locked[key] && !slices.Contains(tx.keys, key) {
					continue
				}
				locked[key] = true
				tx.keys = append(tx.keys, key)
				seq++
				tx.events = append(tx.events, logEvent{Event: holdfast.Event{Key: key}, seq: seq})
			}
			running = append(running, tx)
			continue
		}
		i := random.IntN(len(running))
		for _, e := range running[i].events {
			log = append(log, written{commit: commits, event: e})
		}
		for _, key := range running[i].keys {
			delete(locked, key)
		}
		running = slices.Delete(running, i, i+1)
		commits++
	}
	return log, commits
}
