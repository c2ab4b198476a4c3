package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// steady is a history of one sample every so many seconds, until now, of a counter that grows by each a second.
func steady(from, now, every float64, each int64) (h history) {
	for at := from; at <= now; at += every {
		h = h.add(sample{at: at, written: int64(at-from) * each})
	}
	return h
}

func TestHistory_RatesAreOfTheLastTwoSamples(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		of   history
		want string
	}{
		{"no sample", nil, "–"},
		{"one", history{{at: 100, written: 5}}, "–"},
		{"two", history{{at: 100, written: 5}, {at: 110, written: 30}}, "2.5"},
		{"many, of which the last two count", history{{at: 100, written: 5}, {at: 105, written: 7}, {at: 115, written: 1007}}, "100"},
		{"so far apart that they say nothing of now", history{{at: 100, written: 5}, {at: 146, written: 3000}}, "–"},
		{"statistics that were reset between", history{{at: 100, written: 500}, {at: 110, written: 3}}, "–"},
	} {
		if got := c.of.rate(written); got != c.want {
			t.Errorf("%s: %s a second, want %s", c.name, got, c.want)
		}
	}
	appeared := history{{at: 100}, {at: 110, positions: map[string]int64{"mail": 70}}}
	if got := appeared.rate(position("mail")); got != "–" {
		t.Errorf("a consumer that was not there before has %s events a second", got)
	}
}

func TestHistory_ItRemembersAnHourAndIsBounded(t *testing.T) {
	t.Parallel()
	h := steady(0, 3*3600, 1, 1)
	if len(h) > mostKept || h[len(h)-1].at-h[0].at < 3590 || h[len(h)-1].at-h[0].at > 3720 {
		t.Errorf("%d samples of %v s, want at most %d of an hour", len(h), h[len(h)-1].at-h[0].at, mostKept)
	}
	if h = h.add(sample{at: 5}); len(h) != 1 {
		t.Errorf("a clock that went back keeps %d samples", len(h))
	}
}

// Pages may still be made of a history while the next sample comes.
func TestHistory_OneThatWasReadStaysAsItWas(t *testing.T) {
	t.Parallel()
	read := append(make(history, 0, 10), sample{at: 10, lag: levelOf(5)})
	near, far := read.add(sample{at: 11, lag: levelOf(70)}), read.add(sample{at: 20, lag: levelOf(1)})
	other := read.add(sample{at: 30, lag: levelOf(2)})
	if read[0].lag != levelOf(5) || near[0].lag != (level{70, 70}) {
		t.Errorf("a near sample made it %v, and gave %v", read[0].lag, near[0].lag)
	}
	if far[1].at != 20 || other[1].at != 30 {
		t.Errorf("two that went on from one end at %v and %v, want 20 and 30", far[1].at, other[1].at)
	}
}

func TestHistory_AChartHasTheHourAndItsGaps(t *testing.T) {
	t.Parallel()
	xs := func(line string) (first, last string) {
		all := strings.Fields(line)
		return all[0], all[len(all)-1]
	}
	whole := steady(0, 4000, 10, 7).perSecond("written", written)
	if len(whole.Lines) != 1 || whole.Most != "7.0" || whole.Says != "written a second over the last hour: now 7.0, at most 7.0" {
		t.Errorf("a steady hour is %+v", whole)
	}
	if first, last := xs(whole.Lines[0]); first != "0,0.0" || last != "119,0.0" {
		t.Errorf("its line goes from %s to %s", first, last)
	}
	// Ten minutes of nobody looking, and a restart of the counters.
	broken := steady(0, 1800, 10, 7)
	for at := 2400.0; at <= 3600; at += 10 {
		broken = broken.add(sample{at: at, written: int64(at - 2400)})
	}
	c := broken.perSecond("written", written)
	if len(c.Lines) != 2 || c.Most != "7.0" || !strings.Contains(c.Says, "now 1.0, at most 7.0") {
		t.Fatalf("an hour with a gap is %+v", c)
	}
	if _, last := xs(c.Lines[0]); !strings.HasPrefix(last, "59,") {
		t.Errorf("before the gap the line ends at %s", last)
	}
	if first, _ := xs(c.Lines[1]); first != fmt.Sprintf("80,%.1f", chartHeight-chartHeight/7.0) {
		t.Errorf("after the gap it begins at %s", first)
	}
	reset := append(steady(0, 1800, 10, 7), steady(1810, 3600, 10, 7)...) // it counts from 0 again
	if c := reset.perSecond("written", written); len(c.Lines) != 2 || c.Most != "7.0" {
		t.Errorf("an hour in which counting began again is %+v", c)
	}
	if c := broken.level("age", func(sample) level { return levelOf(1) }, ageText); len(c.Lines) != 2 {
		t.Errorf("a level is drawn through a time when nobody looked: %+v", c)
	}
	if c := (history{{at: 5}}).perSecond("written", written); len(c.Lines) != 0 || c.Says != "" {
		t.Errorf("one sample is drawn as %+v", c)
	}
	lag := func(s sample) level { return s.lag }
	unknown := history{{at: 0, lag: levelOf(3)}, {at: 60, lag: levelOf(5)}, {at: 90, lag: levelOf(math.NaN())}}.level("lag", lag, rateText)
	if unknown.Says != "lag over the last hour: now not known, at most 5.0" {
		t.Errorf("a lag that is not known now is %+v", unknown)
	}
	rises := history{{at: 0, lag: levelOf(3)}, {at: 60, lag: levelOf(90)}}.level("age", lag, ageText)
	if len(rises.Lines) != 1 || rises.Lines[0] != "117,29.0 118,14.5 119,0.0" || rises.Says != "age over the last hour: now 90s, at most 90s" {
		t.Errorf("a level is %+v", rises)
	}
}

// Ten seconds in which much was written are the highest point of the chart for an hour, wherever its half minutes begin and however many
// samples came after. A mean over half a minute was a third of it, and another one at each look.
func TestHistory_TheHighestOfTheHourIsThatOfASample(t *testing.T) {
	t.Parallel()
	h := history{{at: 0}, {at: 10, written: 1200, lag: levelOf(29599)}}
	for at := 15.0; at < 3610; at += 5 {
		h = h.add(sample{at: at, written: 1200})
		if got := h.perSecond("written", written); got.Most != "120" || len(got.Lines) > 0 && !strings.Contains(got.Lines[0], ",0.0") {
			t.Fatalf("after %v s the highest is %s a second, and its line %v", at, got.Most, got.Lines)
		}
		if got := h.level("lag", func(s sample) level { return s.lag }, rateText).Most; got != "29599" {
			t.Fatalf("after %v s the highest lag is %s", at, got)
		}
	}
	h = h.add(sample{at: 3610, written: 1200})
	if got := h.perSecond("written", written).Most; got != "0.0" {
		t.Errorf("after an hour the highest is still %s a second", got)
	}
	// Two looks in a moment are one sample of the counters. Both levels were shown.
	h = history{}.add(sample{at: 0, lag: levelOf(5)}).add(sample{at: 2, lag: levelOf(70)}).add(sample{at: 3, lag: levelOf(1)})
	if got := h.level("lag", func(s sample) level { return s.lag }, rateText); len(h) != 1 || got.Most != "70" || h[0].lag.now != 1 {
		t.Errorf("of three looks in 3 s there are %d samples, the last lag is %v and the highest %s", len(h), h[0].lag.now, got.Most)
	}
}

// Whatever happens, no figure that a page has shown within the hour is above what it calls the highest of that hour.
func TestHistory_NothingShownInTheHourWasHigher(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return math.NaN() // "–"
		}
		return n
	}
	type seen struct{ at, rate, lag float64 }
	for range 20 {
		var h history
		var shown []seen
		at, counted := 0.0, int64(0)
		for range 400 {
			at += []float64{1, 3, 5, 10, 30, 44, 100, 500}[random.IntN(8)] * (0.5 + random.Float64())
			if counted += int64(random.ExpFloat64() * 2000); random.IntN(50) == 0 {
				counted = 0
			}
			lag := math.NaN()
			if random.IntN(20) > 0 {
				lag = math.Floor(random.ExpFloat64() * 1000)
			}
			h = h.add(sample{at: at, written: counted, lag: levelOf(lag)})
			shown = append(shown, seen{h[len(h)-1].at, number(h.rate(written)), lag})
			rate, level := h.perSecond("written", written), h.level("lag", func(s sample) level { return s.lag }, func(n float64) string { return fmt.Sprint(n) })
			for _, was := range shown {
				if h[len(h)-1].at-was.at < remembered.Seconds() && (was.rate > number(rate.Most) || was.lag > number(level.Most)) {
					t.Fatalf("at %v a page showed %v a second and a lag of %v. At %v the highest are %s and %s", was.at, was.rate, was.lag, at, rate.Most, level.Most)
				}
			}
			for _, line := range append(rate.Lines, level.Lines...) {
				if strings.Contains(line, "-") || strings.Contains(line, "N") {
					t.Fatalf("the line leaves the chart: %s", line)
				}
			}
		}
	}
}

// What is sampled is what Postgres has counted and where consumers stand.
func TestHistory_ASampleIsWhatWasCounted(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	read := func() sample {
		t.Helper()
		p := overviewPage{}
		p.Backlog.Oldest, p.Lag, p.LagKnown = 7, 12, true
		s, err := readSample(t.Context(), state.Reader{DB: plain.Of(db.Pool), Schema: "holdfast"}, &p)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	pgtest.Exec(t, db.Pool, "update holdfast.lane set published = 3")
	before := read()
	conn, err := db.Pool.Acquire(t.Context()) // Postgres counts for a session.
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	pgtest.Exec(t, conn, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 3), ('billing', 'orders', 1, 4)")
	pgtest.Exec(t, conn, "insert into holdfast.event_0 (lane, id, type, topic, key) select 0, n::text, 't', 'orders', '' from generate_series(1, 5) n")
	pgtest.Exec(t, conn, "insert into holdfast.inbox (consumer, source, event_id, topic, hash, result) values ('mail', 'shop', 's1', 'orders', '', 'stored')")
	pgtest.Exec(t, conn, "update holdfast.lane set published = published + 1")
	pgtest.Exec(t, conn, "select pg_stat_force_next_flush()")
	pgtest.Exec(t, conn, "select 1")
	now := before
	wait.Until(t, "the counts grow", func() bool {
		now = read()
		return now.written >= before.written+5 && now.recorded >= before.recorded+1
	})
	if before.published != 3*8 || now.published != 4*8 {
		t.Errorf("published are %d and then %d, want 24 and 32", before.published, now.published)
	}
	if now.at <= before.at || now.written != before.written+5 || now.recorded != before.recorded+1 || now.letters != before.letters || now.positions["billing"] != 7 || now.unpublished != levelOf(7) || now.lag != levelOf(12) {
		t.Errorf("before %+v, now %+v", before, now)
	}
}

// Each figure and chart of the page is of its own counter.
func TestHistory_EachFigureIsOfItsCounter(t *testing.T) {
	t.Parallel()
	var p overviewPage
	for n := range int64(30) {
		p.history = p.history.add(sample{at: float64(10 * n), written: 10 * n, published: 20 * n, recorded: 30 * n, letters: 40 * n})
	}
	p.draw()
	for what, got := range map[string]figure{"1.0 written": p.Written, "2.0 published": p.Published, "3.0 handled or stored": p.Recorded, "4.0 dead letters": p.Dead} {
		rate, of, _ := strings.Cut(what, " ")
		if want := fmt.Sprintf("%s a second over the last hour: now %s, at most %s", of, rate, rate); got.Rate != rate || got.Chart.Says != want {
			t.Errorf("%s: it is %s a second, and %q", what, got.Rate, got.Chart.Says)
		}
	}
	p.history = p.history.add(sample{at: 300}) // the schema was created anew
	if p.draw(); p.Published.Rate != "–" || !strings.Contains(p.Published.Chart.Says, "now not known") {
		t.Errorf("after the count has begun again it is %+v", p.Published)
	}
}

// Run looks at once, and so there is a sample before anybody opens the overview.
func TestHistory_RunSamplesWhileNobodyLooks(t *testing.T) {
	t.Parallel()
	c, err := New(migrated.New(t).Pool, Config{Logger: slog.New(slog.DiscardHandler), UserFunc: func(*http.Request) (User, error) { return User{}, errors.New("nobody looks") }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	wait.Until(t, "a sample", func() bool {
		c.looks.mu.Lock()
		defer c.looks.mu.Unlock()
		return len(c.looks.last.history) == 1
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
