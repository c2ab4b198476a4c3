package main

import (
	"slices"
	"testing"
)

func TestAxes_AnAxisIsLogarithmicOnlyOverDecades(t *testing.T) {
	for _, c := range []struct {
		values []float64
		log    bool
	}{
		{[]float64{1, 2, 4, 8}, false}, {[]float64{1, 8, 64}, true}, {[]float64{100, 3000}, true}, {[]float64{100, 2999}, false}, {[]float64{0, 100}, false}, {[]float64{5}, false},
	} {
		if got := logarithmic(c.values); got != c.log {
			t.Errorf("%v: %v", c.values, got)
		}
	}
}

func labelsOf(s scale) (labels []string) {
	for _, t := range s.ticks {
		if t.label != "" {
			labels = append(labels, t.label)
		}
	}
	return labels
}

func TestAxes_TheAxisAcrossHasATickForEachNumber(t *testing.T) {
	for _, c := range []struct {
		values   []float64
		min, max float64
		labels   []string
	}{
		{[]float64{1, 2, 4, 8}, 0, 8, []string{"1", "2", "4", "8"}},
		{[]float64{1e4, 1e5, 1e8}, 1e4, 1e8, []string{"10 k", "100 k", "100 M"}},
		{[]float64{500}, 0, 500, []string{"500"}},
	} {
		s := acrossScale(c.values)
		if s.min != c.min || s.max != c.max || !slices.Equal(labelsOf(s), c.labels) {
			t.Errorf("%v: %+v", c.values, s)
		}
	}
}

func TestAxes_TheAxisUpBeginsAtZeroUnlessItIsLogarithmic(t *testing.T) {
	for _, c := range []struct {
		values   []float64
		min, max float64
		labels   []string
	}{
		{[]float64{40_000, 90_000}, 0, 100_000, []string{"0", "20 k", "40 k", "60 k", "80 k", "100 k"}},
		{[]float64{3, 9.9}, 0, 12, []string{"0", "2", "4", "6", "8", "10", "12"}},
		{[]float64{3, 300}, 2, 500, []string{"2", "5", "10", "20", "50", "100", "200", "500"}},
		{[]float64{1, 80_000}, 0.5, 100_000, []string{"1", "10", "100", "1 k", "10 k", "100 k"}},
	} {
		s := upScale(c.values)
		if s.min != c.min || s.max != c.max || !slices.Equal(labelsOf(s), c.labels) {
			t.Errorf("%v: from %v to %v, labels %q", c.values, s.min, s.max, labelsOf(s))
		}
	}
}

func TestAxes_TheNumbersOfTwoLinesAreApart(t *testing.T) {
	at := func(x, y float64) point { return point{x, y, true} }
	c := curve{Series: []series{{Points: []point{at(1, 5), at(2, 5), at(3, 5), at(4, 5)}}, {Points: []point{at(1, 6), at(2, 4), at(3, 5)}}}}
	for i, want := range [][]bool{{true, false, false, false}, {false, true, true}} {
		for n, p := range c.Series[i].Points {
			if got := c.below(p, i); got != want[n] {
				t.Errorf("series %d at %v: %v", i, p.X, got)
			}
		}
	}
}

func TestAxes_EveryValueLiesOnItsAxis(t *testing.T) {
	r := random(11, 0)
	for range 2000 {
		var values []float64
		for range 1 + r.IntN(6) {
			values = append(values, float64(1+r.IntN(1000))*[]float64{0.001, 1, 1000, 1e6}[r.IntN(4)])
		}
		low, high := bounds(values)
		for name, s := range map[string]scale{"across": acrossScale(values), "up": upScale(values)} {
			if s.min > low || s.max < high || s.min >= s.max || s.log && s.min <= 0 || len(s.ticks) == 0 || len(s.ticks) > 40 {
				t.Fatalf("%s: %v is on %+v", name, values, s)
			}
		}
	}
}

func TestAxes_ShortNumbersKeepTheirSize(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 7: "7", 300: "300", 1000: "1 k", 112_345: "112 k", 999_990: "1 M", 1.5e6: "1.5 M", 1e8: "100 M", 2e9: "2 G"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) is %q, want %q", v, got, want)
		}
	}
}

func TestAxes_TextIsBrokenBetweenWords(t *testing.T) {
	if got := wrapped("one two  three four", 9); !slices.Equal(got, []string{"one two", "three", "four"}) {
		t.Errorf("%q", got)
	}
	if got := wrapped("", 9); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
