//go:build failpoints && unix

package failpoint

import (
	_ "embed"
	"regexp"
	"strings"
)

//go:embed points.go
var source string

// Declaration is a point and what lies before and after it, as points.go says it.
type Declaration struct {
	Name          string // of the constant
	Point         Point
	Before, After string
}

// Declared are all points, in the order of points.go.
func Declared() []Declaration {
	line := regexp.MustCompile(`(?m)^\t(\w+)\s+Point = "([a-z_.]+)"\s*// (.*)$`)
	var all []Declaration
	for _, m := range line.FindAllStringSubmatch(source, -1) {
		before, after, _ := strings.Cut(m[3], " | ")
		all = append(all, Declaration{m[1], Point(m[2]), before, after})
	}
	return all
}
