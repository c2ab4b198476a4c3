package oracle

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// Seen counts the evidence for fencing and for the truth of cursors (O6, O7). It is not in the history: it comes from
// triggers and from looks, so it could be missing unnoticed.
type Seen struct {
	Lanes     int // changes of lanes that their owners made
	Positions int // changes of positions whose maker is known
	Taken     int // events taken in by a known process
	Claims    int // that relays say they have made
	Published int // events that the saved cursors called published when they were looked at
}

// SeenIn counts what a run has seen.
func SeenIn(run Run) (seen Seen) {
	for _, c := range run.LaneLog {
		if c.By != "" && c.By == c.Owner {
			seen.Lanes++
		}
	}
	for _, c := range run.PositionLog {
		if c.By != "" {
			seen.Positions++
		}
	}
	for _, t := range run.TakenLog {
		if t.By != "" {
			seen.Taken++
		}
	}
	for _, entry := range run.Entries {
		if entry.Op == history.Claim {
			seen.Claims++
		}
	}
	for _, s := range run.Cursors {
		seen.Published += s.Done
	}
	return seen
}

// TooLittle is an error if a run lacks a kind of evidence: an oracle without evidence finds nothing. Claims come from the
// history: a run without one (Limits.NoHistory) need not have them.
func TooLittle(run Run) error {
	seen := SeenIn(run)
	if seen.Lanes == 0 || seen.Positions == 0 || seen.Taken == 0 || seen.Published == 0 || seen.Claims == 0 && !run.Limits.NoHistory {
		return fmt.Errorf("O6 and O7 saw too little to judge by: %s", seen)
	}
	return nil
}

func (s Seen) String() string {
	return fmt.Sprintf("%d changes of lanes, %d of positions and %d events taken in, by known processes; %d claims reported; %d events in looks at the cursors",
		s.Lanes, s.Positions, s.Taken, s.Claims, s.Published)
}
