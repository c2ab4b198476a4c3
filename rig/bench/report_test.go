package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestReport_FiguresArePrintedAsJSONAndNothingElse(t *testing.T) {
	r := newReport(true)
	r.goal("speed", 7, "x", atLeast(12))
	r.info("events", 300_000, "events/s")
	r.note("a note")
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	var figures []map[string]any
	if err := json.Unmarshal(out.Bytes(), &figures); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if len(figures) != 2 || figures[0]["goal"] != ">= 12" || figures[0]["ok"] != false || figures[1]["goal"] != "" || figures[1]["ok"] != true {
		t.Errorf("figures are %v", figures)
	}
}

func TestReport_AShortFigureSaysSo(t *testing.T) {
	r := newReport(false)
	r.goal("speed", 7, "x", atLeast(12))
	r.goal("wait", 7, "ms", below(10))
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "short") != 1 || strings.Count(out.String(), "ok") != 1 {
		t.Errorf("printed %s", out.String())
	}
}

func TestReport_GoalsAtTheirLimits(t *testing.T) {
	for _, c := range []struct {
		g     goal
		value float64
		met   bool
	}{
		{atLeast(0.8), 0.8, true}, {atLeast(0.8), 0.79, false}, {atMost(0), 0, true}, {atMost(0), 1, false}, {below(10), 10, false}, {below(10), 9.9, true},
	} {
		if got := c.g.met(c.value); got != c.met {
			t.Errorf("%v %s %v is %v", c.value, c.g.sign, c.g.limit, got)
		}
	}
}

func TestReport_NumbersHaveTheDigitsTheyDeserve(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 12: "12", 0.8123: "0.812", 3.14159: "3.14", 31.4159: "31.4", 314.159: "314", 3141.59: "3,142", 1234567: "1,234,567", 999: "999"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) is %s, want %s", v, got, want)
		}
	}
}

func TestReport_AMedianIsTheMiddle(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

func TestReport_AHistogramCountsEverything(t *testing.T) {
	text := histogram([]time.Duration{time.Millisecond / 2, 3 * time.Millisecond, 3 * time.Millisecond, 2 * time.Second})
	want := []string{"< 1 ms 1 25.0%", "< 4 ms 2 50.0%", ">= 1000 ms 1 25.0%"}
	lines := strings.Split(text, "\n")
	if len(lines) != len(want) {
		t.Fatalf("histogram is\n%s", text)
	}
	for i, line := range lines {
		if got := strings.Join(strings.Fields(strings.TrimRight(line, "# ")), " "); got != want[i] {
			t.Errorf("line %d is %q, want %q", i, got, want[i])
		}
	}
}

func TestReport_MemoryThatGrowsIsSeen(t *testing.T) {
	var flat, growing []memorySample
	for i := range int64(100) {
		flat = append(flat, memorySample{i * 10, 40})
		growing = append(growing, memorySample{i * 10, 40 + float64(i)})
	}
	if growth := growthOf(flat, 1000); growth != 1 {
		t.Errorf("flat: growth %v", growth)
	}
	if growth := growthOf(growing, 1000); growth < 1.3 {
		t.Errorf("growing: growth %v", growth)
	}
}

func TestReport_APayloadHasItsSizeAndIsJSON(t *testing.T) {
	if b := payload(random(1, 2), payloadBytes); len(b) != payloadBytes || !json.Valid(b) {
		t.Errorf("%d bytes: %s", len(b), b)
	}
}
