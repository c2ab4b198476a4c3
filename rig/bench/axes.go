package main

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// This file decides what the axes of a plot show. It is pure.

// tick is a mark on an axis. One without a label is small.
type tick struct {
	value float64
	label string
}

// scale is how an axis maps numbers to places.
type scale struct {
	log      bool
	min, max float64
	ticks    []tick
}

// logFrom is how many times the smallest value the largest is, where an axis becomes logarithmic.
const logFrom = 30

// logarithmic says whether the values are spread over decades.
func logarithmic(values []float64) bool {
	low, high := bounds(values)
	return low > 0 && high >= logFrom*low
}

func bounds(values []float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return low, high
}

// acrossScale is the scale of the numbers that were chosen: each has its own tick.
func acrossScale(values []float64) scale {
	low, high := bounds(values)
	s := scale{log: logarithmic(values), min: low, max: high}
	if !s.log {
		s.min = 0
	}
	if s.min == s.max { // of a single point
		s.min, s.max = low/2, high*2
	}
	for _, v := range values {
		s.ticks = append(s.ticks, tick{v, short(v)})
	}
	return s
}

// upScale is the scale of the numbers that came out: from zero, or between round numbers of a logarithmic axis.
func upScale(values []float64) scale {
	low, high := bounds(values)
	if !logarithmic(values) {
		step := roundUp(high / 5)
		s := scale{max: step * math.Ceil(high/step*1.08)} // room for the number at the highest point
		for n := 0.0; n*step <= s.max; n++ {
			s.ticks = append(s.ticks, tick{n * step, short(n * step)})
		}
		return s
	}
	s := scale{log: true, min: roundDown(low / 1.2), max: roundUp(high * 1.2)}
	decades := math.Log10(s.max / s.min)
	for exponent := math.Floor(math.Log10(s.min)); exponent <= math.Ceil(math.Log10(s.max)); exponent++ {
		for _, digit := range []float64{1, 2, 5} {
			v := digit * math.Pow(10, exponent)
			if v < s.min*0.999 || v > s.max*1.001 {
				continue
			}
			t := tick{value: v}
			if digit == 1 || decades < 3 {
				t.label = short(v)
			}
			s.ticks = append(s.ticks, t)
		}
	}
	return s
}

// below says whether the number at a point of the series i is written below it, because another series is above it there.
func (c curve) below(p point, i int) bool {
	for j, other := range c.Series {
		for _, q := range other.Points {
			if j != i && q.X == p.X && (q.Y > p.Y || q.Y == p.Y && j < i) {
				return true
			}
		}
	}
	return false
}

// roundUp is the least of 1, 2, 5, 10, … that is not below v.
func roundUp(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= v*(1-1e-9) {
			return digit * power
		}
	}
	return 10 * power
}

// roundDown is the greatest of 1, 2, 5, 10, … that is not above v.
func roundDown(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, digit := range []float64{5, 2} {
		if digit*power <= v*(1+1e-9) {
			return digit * power
		}
	}
	return power
}

// short writes a number with few characters: 1,500,000 is 1.5 M.
func short(v float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e9, " G"}, {1e6, " M"}, {1e3, " k"}} {
		if v >= unit.of*0.9995 {
			return number(v/unit.of) + unit.name
		}
	}
	return number(v)
}

func upperFirst(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[size:]
}

// wrapped breaks text into lines of at most so many characters.
func wrapped(text string, most int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > most {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
