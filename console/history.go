package console

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// This file knows no clock and no database: it remembers what was counted, and says how fast it grew.

// sample is what was counted at a moment. Counters only grow, until somebody resets Postgres's statistics.
type sample struct {
	at        float64          // seconds, by the database's clock
	written   int64            // rows written to the log, rolled back ones too
	recorded  int64            // rows written to the inbox, by all consumers
	letters   int64            // dead letters written
	positions map[string]int64 // of each consumer: the sum of its positions

	unpublished float64 // the age of the oldest event that no relay has published, in seconds
	lag         int64   // of all consumers, in offsets; -1 if it is not known
}

// history are samples of the last hour, the oldest first, and none nearer to the next than closest.
type history []sample

const (
	closest    = 4 * time.Second
	remembered = time.Hour
	mostKept   = int(remembered / closest)

	// freshFor is how far two samples may be apart of which a rate of now is made, and unbroken how far for the line of a chart.
	freshFor = 45 * time.Second
	unbroken = 2 * time.Minute
)

// add remembers one more. One that is too near to the last is left out; one of a clock that went back begins afresh.
func (h history) add(s sample) history {
	if n := len(h); n > 0 {
		switch apart := s.at - h[n-1].at; {
		case apart < 0:
			h = nil
		case apart < closest.Seconds():
			return h
		}
	}
	h = append(h, s)
	h = h[max(0, len(h)-mostKept):]
	for s.at-h[0].at > (remembered + unbroken).Seconds() {
		h = h[1:]
	}
	return h
}

// rate is by how much a counter grew in a second, by the last two samples: "–" if they are too far apart, or it went back.
func (h history) rate(of func(sample) (int64, bool)) string {
	if len(h) < 2 {
		return "–"
	}
	before, now := h[len(h)-2], h[len(h)-1]
	from, known := of(before)
	to, still := of(now)
	seconds := now.at - before.at
	if !known || !still || to < from || seconds > freshFor.Seconds() {
		return "–"
	}
	return rateText(float64(to-from) / seconds)
}

func rateText(each float64) string {
	if each < 10 {
		return fmt.Sprintf("%.1f", each)
	}
	return fmt.Sprintf("%.0f", each)
}

func written(s sample) (int64, bool)  { return s.written, true }
func recorded(s sample) (int64, bool) { return s.recorded, true }
func letters(s sample) (int64, bool)  { return s.letters, true }

func position(consumer string) func(sample) (int64, bool) {
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
	Most  string   // the highest point
}

// perSecond draws how fast a counter grew.
func (h history) perSecond(what string, of func(sample) (int64, bool)) chart {
	if len(h) == 0 {
		return chart{}
	}
	at := func(t float64) float64 { return h.at(t, func(s sample) float64 { n, _ := of(s); return float64(n) }) }
	now := h[len(h)-1].at
	values := make([]float64, points)
	for i := range values {
		end := now - float64(points-1-i)*pointEvery.Seconds()
		values[i] = (at(end) - at(end-pointEvery.Seconds())) / pointEvery.Seconds()
		if values[i] < 0 {
			values[i] = math.NaN()
		}
	}
	return draw(what+" a second", values, rateText)
}

// level draws how high a figure was.
func (h history) level(what string, of func(sample) float64, text func(float64) string) chart {
	if len(h) == 0 {
		return chart{}
	}
	now := h[len(h)-1].at
	values := make([]float64, points)
	for i := range values {
		values[i] = h.at(now-float64(points-1-i)*pointEvery.Seconds(), of)
	}
	return draw(what, values, text)
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

// draw makes lines of the values, one for each stretch without a gap. A chart without two values side by side has none.
func draw(what string, values []float64, text func(float64) string) chart {
	most := 0.0
	for _, v := range values {
		if v > most { // not of NaN
			most = v
		}
	}
	c := chart{Most: text(most)}
	var line []string
	end := func() {
		if len(line) > 1 {
			c.Lines = append(c.Lines, strings.Join(line, " "))
		}
		line = nil
	}
	for i, v := range values {
		if math.IsNaN(v) {
			end()
			continue
		}
		y := float64(chartHeight)
		if most > 0 {
			y -= v / most * chartHeight
		}
		line = append(line, fmt.Sprintf("%d,%.1f", i, y))
	}
	end()
	now := "not known"
	if last := values[len(values)-1]; !math.IsNaN(last) {
		now = text(last)
	}
	if len(c.Lines) > 0 {
		c.Says = fmt.Sprintf("%s over the last hour: now %s, at most %s", what, now, c.Most)
	}
	return c
}
