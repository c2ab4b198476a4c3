// Package problems checks how bad input is refused.
package problems

import (
	"regexp"
	"strings"
	"testing"
)

// form is that of every problem: field, value, rule. What the value is of may come before: "write events: event 1: …".
var form = regexp.MustCompile(`^([a-z][a-z0-9 ]*: )*[a-z][a-z0-9' ]* (is|has) .+: it must `)

// HaveForm fails the test unless each problem in err, one a line, names field, value and rule.
func HaveForm(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		t.Error("bad input is accepted")
		return
	}
	for line := range strings.Lines(err.Error()) {
		if !form.MatchString(line) {
			t.Errorf("%q does not name field, value and rule: want %s", strings.TrimSpace(line), form)
		}
	}
}
