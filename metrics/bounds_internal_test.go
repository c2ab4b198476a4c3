package metrics

import (
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/internal/backfill"
	"github.com/holdfast-go/holdfast/internal/state"
)

// However many consumers have done a backfill, those that need a person have figures.
func TestBounds_OfManyBackfillsThoseThatAreDoneAreLeftOut(t *testing.T) {
	t.Parallel()
	var rows []state.Backfill
	for i := range 3 * maxConsumers {
		rows = append(rows, state.Backfill{Row: backfill.Row{Consumer: fmt.Sprintf("c%03d", i), Ended: i%10 > 0, Remaining: 1}})
	}
	got := backfillsOf(rows)
	left := 0
	for _, of := range got {
		if !of.Done {
			left++
		}
	}
	if len(got) != maxConsumers || left != len(rows)/10 || got[1].Consumer != "c010" {
		t.Errorf("%d have figures, %d of them are not done: %+v", len(got), left, got)
	}
	done := 0
	for _, r := range (sample{Backfills: got}).readings() {
		if r.Index == 22 {
			done++
		}
	}
	if done != left {
		t.Errorf("%d have an age, want the %d that are not done", done, left)
	}
}

// However many dependencies were away once, those that are have figures.
func TestBounds_OfManyDependenciesThoseThatAreAwayHaveFigures(t *testing.T) {
	t.Parallel()
	var rows []state.Dependency
	for i := range 3 * maxNeeded {
		rows = append(rows, state.Dependency{Name: fmt.Sprintf("d%03d", i), Away: i%5 < 2, Next: int64(i%5) * -1000})
	}
	got := neededOf(rows)
	if len(got) != maxNeeded || got[0].Name != "d000" || got[29].Name != "d145" || got[30].Name != "d001" {
		t.Errorf("%d have figures: %+v", len(got), got)
	}
}

// The consumers with the most have figures, and the letters of a relay's lanes are one figure.
func TestBounds_OfManyConsumersThoseWithTheMostHaveFigures(t *testing.T) {
	t.Parallel()
	var stored []state.Stored
	for i := range 3 * maxConsumers {
		stored = append(stored, state.Stored{Consumer: fmt.Sprintf("c%03d", i), Events: i % 100})
	}
	if got := most(stored, func(of state.Stored) int { return of.Events }); len(got) != maxConsumers || got[0].Consumer != "c099" || got[49].Events != 50 {
		t.Errorf("%d have figures: %+v", len(got), got)
	}
	got := lettersOf([]state.Letters{{Lane: 3, Origin: "relay", Open: 2}, {Lane: 5, Origin: "relay", Open: 1}, {Lane: -1, Origin: "inbox", Consumer: "billing", Open: 4}})
	if want := []openLetters{{"inbox", "billing", 4}, {"relay", "", 3}}; !slices.Equal(got, want) {
		t.Errorf("letters are %+v, want %+v", got, want)
	}
}
