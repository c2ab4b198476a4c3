package oracle

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// wrongStatement is an error of Postgres that no fault excuses: bad data (22), a prepared statement that is not there (26),
// a wrong statement or no right to it (42). Appendix A of PostgreSQL's documentation has the classes.
var wrongStatement = regexp.MustCompile(`SQLSTATE (22|26|42)[0-9A-Z]{3}`)

// hygiene is O10: nothing is left on the server, every process that was not killed ended by itself and left nothing, and no
// log has what is in an event, or an error of Postgres about a wrong statement.
func hygiene(b *book, found *findings) {
	for _, l := range b.Leftovers {
		found.add(LeftBehind, "%s: %s", l.What, l.Text)
	}
	for _, place := range b.Leaks {
		found.add(Leaked, "%s", place)
	}
	killed := map[Process]bool{}
	for _, p := range b.Killed {
		killed[p] = true
	}
	ended := map[Process]bool{}
	var begun []Process
	for i := range b.Entries {
		e := &b.Entries[i]
		who := Process{e.Actor, e.PID}
		switch e.Op {
		case history.Begin:
			begun = append(begun, who)
		case history.End:
			ended[who] = true
			if e.Text != "" {
				found.add(LeftBehind, "%s: %s", who, e.Text)
			}
		case history.Log:
			if b.Limits.Canary != "" && strings.Contains(e.Text, b.Limits.Canary) {
				found.add(Leaked, "%s at %s", who, clock(e.At)) // not the line: it has the payload
			} else if wrongStatement.MatchString(e.Text) {
				found.add(Mistaken, "%s at %s: %s", who, clock(e.At), e.Text)
			}
		}
	}
	for _, who := range begun {
		if !ended[who] && !killed[who] {
			found.add(Vanished, "%s", who)
		}
	}
}

// String is the place and the process: "relay/1[4711]".
func (p Process) String() string { return fmt.Sprintf("%s[%d]", p.Actor, p.PID) }
