package console

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// This file knows no clock and no database: it remembers what was counted, and says how fast it grew.

// sample is what was counted at a moment. Counters only grow, until somebody resets Postgres's statistics.
type sample struct {
	at        float64          // seconds, by the database's clock
	written   int64            // rows written to the log, rolled back ones too
	published int64            // events that the broker has acknowledged, repeats too
	recorded  int64            // rows written to the inbox, by all consumers
	letters   int64            // dead letters written
	positions map[string]int64 // of each consumer: the sum of its positions

	unpublished level // the age of the oldest event that no relay has published, in seconds
	lag         level // of all consumers, in offsets; not a number if it is not known
}

// level is how high a figure was. Invariant: most >= now, unless now is not a number.
type level struct {
	now  float64 // at the last look that the sample stands for
	most float64 // at any of them; not a number if it was not known at any
}

func levelOf(n float64) level { return level{n, n} }

// and is the level of two looks, the later one second.
func (l level) and(later level) level {
	most := l.most
	if math.IsNaN(most) || later.most > most {
		most = later.most
	}
	return level{later.now, most}
}

// history are samples of the last hour, the oldest first, and none nearer to the next than closest.
type history []sample

const (
	closest    = 4 * time.Second
	remembered = time.Hour
	mostKept   = int((remembered+unbroken)/closest) + 1

	// freshFor is how far two samples may be apart of which a rate of now is made, and unbroken how far for the line of a chart.
	freshFor = 45 * time.Second
	unbroken = 2 * time.Minute
)

// add remembers one more. Of one that is too near to the last only the levels are kept, with those of the last, for somebody has seen them;
// one of a clock that went back begins afresh. It leaves h as it is: pages may be made of it still.
func (h history) add(s sample) history {
	if n := len(h); n > 0 {
		switch apart := s.at - h[n-1].at; {
		case apart < 0:
			h = nil
		case apart < closest.Seconds():
			h = slices.Clone(h)
			last := &h[n-1]
			last.unpublished, last.lag = last.unpublished.and(s.unpublished), last.lag.and(s.lag)
			return h
		}
	}
	h = append(slices.Clip(h), s) // into an array of its own
	h = h[max(0, len(h)-mostKept):]
	for s.at-h[0].at > (remembered + unbroken).Seconds() {
		h = h[1:]
	}
	return h
}

// counter reads a counter of a sample, and says whether it is known.
type counter func(sample) (n int64, known bool)

// between is by how much a counter grew in a second from one sample to the next: not a number if they are further apart than within, or if
// it went back.
func (c counter) between(before, after sample, within time.Duration) float64 {
	from, known := c(before)
	to, still := c(after)
	seconds := after.at - before.at
	if !known || !still || to < from || seconds > within.Seconds() {
		return math.NaN()
	}
	return float64(to-from) / seconds
}

// rate is by how much a counter grew in a second, by the last two samples: "–" if they are too far apart, or it went back.
func (h history) rate(of counter) string {
	if len(h) < 2 {
		return "–"
	}
	each := of.between(h[len(h)-2], h[len(h)-1], freshFor)
	if math.IsNaN(each) {
		return "–"
	}
	return rateText(each)
}

func rateText(each float64) string {
	if each < 10 {
		return fmt.Sprintf("%.1f", each)
	}
	return fmt.Sprintf("%.0f", each)
}

func written(s sample) (int64, bool)   { return s.written, true }
func published(s sample) (int64, bool) { return s.published, true }
func recorded(s sample) (int64, bool)  { return s.recorded, true }
func letters(s sample) (int64, bool)   { return s.letters, true }

func position(consumer string) counter {
	return func(s sample) (int64, bool) {
		n, known := s.positions[consumer]
		return n, known
	}
}

// A chart has a point for each half minute of the last hour.
const (
	points      = 120
	pointEvery  = remembered / points
	chartHeight = 30
)

// chart is the drawing of a figure over the last hour.
type chart struct {
	Lines []string // points of a polyline, x,y: x from 0 to points, y from 0 at the top to chartHeight
	Says  string   // what a reader hears in place of it
	Most  string   // the highest that it was, and never less than what was shown within the hour
}

// A point of a chart is the highest that the figure was in its half minute, not the mean of it or what it was at its end. Half minutes are
// counted from now back, so that the same sample is in another one at each look: a mean would change with that, and so would the highest.

// perSecond draws how fast a counter grew. Each two samples are a stretch of one speed, which is in all half minutes that it touches.
func (h history) perSecond(what string, of counter) chart {
	d := drawing{what: what + " a second", text: rateText, now: math.NaN()}
	for i := range d.values {
		d.values[i] = math.NaN()
	}
	var broken [points]bool
	for i := 1; i < len(h); i++ {
		began, ended := h.ago(h[i-1].at), h.ago(h[i].at)
		if ended >= remembered.Seconds() {
			continue
		}
		each := of.between(h[i-1], h[i], unbroken)
		d.most = higher(each, d.most)
		if i == len(h)-1 {
			d.now = of.between(h[i-1], h[i], freshFor)
		}
		for point := pointOf(began, true); point <= pointOf(ended, false); point++ {
			d.values[point] = higher(each, d.values[point])
			broken[point] = broken[point] || math.IsNaN(each)
		}
	}
	for point, gap := range broken {
		if gap {
			d.values[point] = math.NaN()
		}
	}
	return d.chart()
}

// level draws how high a figure was.
func (h history) level(what string, of func(sample) level, text func(float64) string) chart {
	d := drawing{what: what, text: text, now: math.NaN()}
	if len(h) == 0 {
		return chart{}
	}
	now := h[len(h)-1].at
	for i := range d.values {
		d.values[i] = h.at(now-float64(points-1-i)*pointEvery.Seconds(), func(s sample) float64 { return of(s).now })
	}
	for _, s := range h {
		ago, most := h.ago(s.at), of(s).most
		if ago >= remembered.Seconds() {
			continue
		}
		d.most = higher(most, d.most)
		if point := pointOf(ago, false); !math.IsNaN(d.values[point]) {
			d.values[point] = higher(most, d.values[point])
		}
	}
	d.now = of(h[len(h)-1]).now
	return d.chart()
}

// ago is how long before the last sample a moment was.
func (h history) ago(at float64) float64 { return h[len(h)-1].at - at }

// pointOf is the point of a chart in whose half minute a moment is. One that is between two of them begins the later one, or ends the
// earlier one.
func pointOf(ago float64, begins bool) int {
	each := pointEvery.Seconds()
	before := math.Floor(ago / each)
	if begins {
		before = math.Ceil(ago/each) - 1
	}
	return min(max(points-1-int(before), 0), points-1)
}

// higher is the larger one of a figure and what was the largest before. What is not a number counts for nothing.
func higher(n, most float64) float64 {
	if math.IsNaN(most) || n > most { // not of NaN
		return n
	}
	return most
}

// at is what a figure was at a moment, on the line between the samples around it: NaN before the first, and in a gap.
func (h history) at(t float64, of func(sample) float64) float64 {
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].at > t {
			continue
		}
		from := of(h[i])
		if i == len(h)-1 || h[i].at == t {
			return from
		}
		next := h[i+1]
		if apart := next.at - h[i].at; apart <= unbroken.Seconds() {
			return from + (of(next)-from)*(t-h[i].at)/apart
		}
		break
	}
	return math.NaN()
}

// drawing is what a chart is made of.
type drawing struct {
	what   string
	text   func(float64) string
	values [points]float64 // not a number in a gap
	most   float64
	now    float64 // not a number if it is not known
}

// chart makes lines of the values, one for each stretch without a gap. A chart without two values side by side has none.
func (d *drawing) chart() chart {
	for _, v := range d.values { // the first one may be on the line from a sample of before the hour
		d.most = higher(v, d.most)
	}
	c := chart{Most: d.text(d.most)}
	var line []string
	end := func() {
		if len(line) > 1 {
			c.Lines = append(c.Lines, strings.Join(line, " "))
		}
		line = nil
	}
	for i, v := range d.values {
		if math.IsNaN(v) {
			end()
			continue
		}
		y := float64(chartHeight)
		if d.most > 0 {
			y -= v / d.most * chartHeight
		}
		line = append(line, fmt.Sprintf("%d,%.1f", i, y))
	}
	end()
	now := "not known"
	if !math.IsNaN(d.now) {
		now = d.text(d.now)
	}
	if len(c.Lines) > 0 {
		c.Says = fmt.Sprintf("%s over the last hour: now %s, at most %s", d.what, now, c.Most)
	}
	return c
}
