package console

import "strings"

// line is a line of two texts that are compared: of both, or of one.
type line struct {
	Sign string // " " of both, "-" of the old one, "+" of the new one
	Text string
}

// mostCompared is how many lines of each text are compared; of longer ones the rest is shown as changed.
const mostCompared = 1000

// compare lists the lines of two texts so that as many as possible are common (by their longest common subsequence).
func compare(old, now string) []line {
	a, b := strings.Split(old, "\n"), strings.Split(now, "\n")
	var restA, restB []string
	if len(a) > mostCompared {
		a, restA = a[:mostCompared], a[mostCompared:]
	}
	if len(b) > mostCompared {
		b, restB = b[:mostCompared], b[mostCompared:]
	}
	common := make([][]int, len(a)+1) // common[i][j]: of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int, len(b)+1)
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
	var lines []line
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			lines = append(lines, line{" ", a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			lines = append(lines, line{"-", a[i]})
			i++
		default:
			lines = append(lines, line{"+", b[j]})
			j++
		}
	}
	for _, text := range restA {
		lines = append(lines, line{"-", text})
	}
	for _, text := range restB {
		lines = append(lines, line{"+", text})
	}
	return lines
}
