package oracle

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/history"
)

// hygiene is O10: the server is left as it was, every process that nobody killed ended by itself and left nothing, and
// nobody logged what is in an event.
func hygiene(b *book, found *findings) {
	for _, l := range b.Leftovers {
		found.add(LeftBehind, "%s: %s", l.What, l.Text)
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
