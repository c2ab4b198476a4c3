package holdfasttest

import (
	"fmt"
	"strings"
)

// mostLines is the number of lines beyond which the difference of two texts is not looked for line by line: it takes their product.
const mostLines = 3000

// around is how many equal lines are shown before and after those that differ.
const around = 3

// diffLines shows what has to be taken from want (-) and added (+) to get got, with some lines around it.
func diffLines(want, got []string) string {
	// Lines that are equal at both ends take no part in the search.
	before := 0
	for before < len(want) && before < len(got) && want[before] == got[before] {
		before++
	}
	after := 0
	for after < len(want)-before && after < len(got)-before && want[len(want)-1-after] == got[len(got)-1-after] {
		after++
	}
	a, b := want[before:len(want)-after], got[before:len(got)-after]
	var edits []string
	if len(a) > mostLines || len(b) > mostLines {
		edits = []string{fmt.Sprintf("  … %d lines differ from %d others", len(b), len(a))}
	} else {
		edits = editsOf(a, b)
	}
	all := make([]string, 0, before+len(edits)+after)
	for _, line := range want[:before] {
		all = append(all, "  "+line)
	}
	all = append(all, edits...)
	for _, line := range want[len(want)-after:] {
		all = append(all, "  "+line)
	}
	return shorten(all)
}

// editsOf finds the longest common lines of a and b, and shows the others with their signs.
func editsOf(a, b []string) (edits []string) {
	common := make([][]int32, len(a)+1) // of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			edits = append(edits, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			edits = append(edits, "- "+a[i])
			i++
		default:
			edits = append(edits, "+ "+b[j])
			j++
		}
	}
	return edits
}

// shorten leaves out lines that are far from any that differ.
func shorten(lines []string) string {
	near := make([]bool, len(lines))
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "  … ") {
			continue
		}
		for j := max(0, i-around); j <= min(len(lines)-1, i+around); j++ {
			near[j] = true
		}
	}
	var b strings.Builder
	skipped := false
	for i, line := range lines {
		switch {
		case near[i]:
			b.WriteString(line + "\n")
			skipped = false
		case !skipped:
			b.WriteString("  …\n")
			skipped = true
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}
