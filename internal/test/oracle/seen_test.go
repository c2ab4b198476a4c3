package oracle

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

func TestSeen_OraclesThatSawNothingSawTooLittle(t *testing.T) {
	t.Parallel()
	whole := func() Run {
		// What is by nobody that is known, or by another than the owner, shows nothing.
		return Run{LaneLog: []LaneChange{{Owner: "relay/0"}, {Owner: "relay/0", By: "relay/0"}, {By: "relay/0"}},
			PositionLog: []PositionChange{{}, {By: "consumer/0"}}, TakenLog: []Taken{{}, {By: "consumer/0"}, {By: "consumer/0"}},
			Entries: []history.Entry{{Op: history.Claim}, {Op: history.Publish}}, Cursors: []CursorSample{{Done: 3}, {Done: 4}}}
	}
	if got, want := SeenIn(whole()), (Seen{Lanes: 1, Positions: 1, Taken: 2, Claims: 1, Published: 7}); got != want {
		t.Errorf("it is %+v, want %+v", got, want)
	}
	if err := TooLittle(whole()); err != nil {
		t.Error(err)
	}
	for name, forget := range map[string]func(*Run){
		"lanes": func(r *Run) { r.LaneLog = r.LaneLog[:1] }, "positions": func(r *Run) { r.PositionLog = r.PositionLog[:1] },
		"events taken in": func(r *Run) { r.TakenLog = r.TakenLog[:1] }, "claims": func(r *Run) { r.Entries = r.Entries[1:] },
		"looks": func(r *Run) { r.Cursors = []CursorSample{{}} },
	} {
		run := whole()
		forget(&run)
		if TooLittle(run) == nil {
			t.Errorf("without %s it is enough", name)
		}
		run.Limits.NoHistory = true
		if err := TooLittle(run); (err == nil) != (name == "claims") {
			t.Errorf("in a run without a history, without %s: %v", name, err)
		}
	}
}
