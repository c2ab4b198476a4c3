package console_test

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// What is written can be read by people who see little: WCAG 2.2, 1.4.3, wants a contrast of 4.5 to 1, in light and in dark colours.
func TestStyle_TextsHaveEnoughContrast(t *testing.T) {
	t.Parallel()
	css, err := os.ReadFile("static/console.css")
	if err != nil {
		t.Fatal(err)
	}
	colours := [2]map[string]string{{}, {}} // light and dark
	for _, found := range regexp.MustCompile(`--(\w+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\)`).FindAllStringSubmatch(string(css), -1) {
		colours[0][found[1]], colours[1][found[1]] = found[2], found[3]
	}
	for scheme, of := range map[string]map[string]string{"light": colours[0], "dark": colours[1]} {
		for _, ground := range []string{"page", "panel", "badpanel"} {
			for _, ink := range []string{"text", "soft", "link", "bad", "well"} {
				if of[ground] == "" || of[ink] == "" {
					t.Fatalf("%s has no colour %s or %s", scheme, ground, ink)
				}
				if got := contrast(of[ink], of[ground]); got < 4.5 {
					t.Errorf("%s: %s on %s has a contrast of %.2f to 1", scheme, ink, ground, got)
				}
			}
		}
	}
	if got := fmt.Sprintf("%.2f %.2f", contrast("000000", "ffffff"), contrast("777777", "ffffff")); got != "21.00 4.48" {
		t.Errorf("black, and a grey, on white have contrasts of %s", got)
	}
}

// contrast is the ratio of two colours, as WCAG 2.2 defines it.
func contrast(a, b string) float64 {
	la, lb := luminance(a), luminance(b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

func luminance(colour string) (sum float64) {
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, _ := strconv.ParseUint(colour[2*i:2*i+2], 16, 8)
		v := float64(n) / 255
		if v <= 0.04045 {
			v /= 12.92
		} else {
			v = math.Pow((v+0.055)/1.055, 2.4)
		}
		sum += weight * v
	}
	return sum
}
