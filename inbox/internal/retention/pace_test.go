package retention

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/seed"
)

func at(seconds int) *time.Time {
	t := time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC)
	return &t
}

func TestPace_APassGoesOnAndTheNextBeginsAtTheOldestRowLeft(t *testing.T) {
	for _, row := range []struct {
		name string
		m    mark
		s    swept
		want mark
	}{
		{"nothing was ever there", mark{}, swept{limit: 10}, mark{}},
		{"a full turn goes on at the last row", mark{}, swept{limit: 10, Read: 10, last: at(9)}, mark{from: at(9)}},
		{"a full turn remembers what stayed", mark{}, swept{limit: 10, Read: 10, last: at(9), kept: at(3)}, mark{from: at(9), kept: at(3)}},
		{"what stayed first is the oldest", mark{from: at(9), kept: at(3)}, swept{limit: 10, Read: 10, last: at(20), kept: at(12)}, mark{from: at(20), kept: at(3)}},
		{"a pass that ends goes back to what stayed", mark{from: at(9), kept: at(3)}, swept{limit: 10, Read: 4, last: at(12)}, mark{from: at(3)}},
		{"a pass that ends after nothing stayed goes on", mark{from: at(9)}, swept{limit: 10, Read: 4, last: at(12)}, mark{from: at(12)}},
		{"an empty turn stands where it was", mark{from: at(9)}, swept{limit: 10}, mark{from: at(9)}},
		{"an empty turn goes back to what stayed", mark{from: at(9), kept: at(3)}, swept{limit: 10}, mark{from: at(3)}},
		{"a row older than what stayed is the oldest", mark{from: at(9), kept: at(8)}, swept{limit: 10, Read: 10, last: at(9), kept: at(1)}, mark{from: at(9), kept: at(1)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := row.m.after(row.s, false)
			same := func(a, b *time.Time) bool { return a == nil && b == nil || a != nil && b != nil && a.Equal(*b) }
			if !same(got.from, row.want.from) || !same(got.kept, row.want.kept) {
				t.Errorf("got %v %v, want %v %v", got.from, got.kept, row.want.from, row.want.kept)
			}
		})
	}
}

func TestPace_RetentionFitsItsTurnsToTheirTarget(t *testing.T) {
	week := 7 * 24 * time.Hour
	for _, row := range []struct {
		name  string
		s     swept
		from  *time.Time
		limit int
		wait  time.Duration
	}{
		{"a quick full turn is followed by a larger one", swept{limit: 1000, Read: 1000, Removed: 1000, took: 6 * time.Millisecond}, nil, 2000, 194 * time.Millisecond},
		{"it grows to a bound", swept{limit: 4000, Read: 4000, Removed: 1, took: 6 * time.Millisecond}, nil, mostLimit, 194 * time.Millisecond},
		{"a turn in time stays as it is", swept{limit: 1000, Read: 1000, Removed: 1000, took: 60 * time.Millisecond}, nil, 1000, 1940 * time.Millisecond},
		{"a slow one is followed by a smaller one", swept{limit: 1000, Read: 1000, Removed: 1000, took: 300 * time.Millisecond}, nil, 500, 9700 * time.Millisecond},
		{"it shrinks to a bound", swept{limit: 150, Read: 150, Removed: 1, took: 300 * time.Millisecond}, nil, leastLimit, 9700 * time.Millisecond},
		{"a very slow one is followed by no more than the longest pause", swept{limit: 100, Read: 100, took: 25 * time.Second}, nil, 100, longestPause},
		{"the end of a pass is followed by a minute", swept{limit: 1000, Read: 10, Removed: 10, took: time.Millisecond}, nil, 1000, time.Minute},
		{"an overdue backlog is worked for a tenth of the time", swept{limit: 1000, Read: 1000, Removed: 1000, took: 30 * time.Millisecond, overdue: 24 * time.Hour}, nil, 1000, 270 * time.Millisecond},
		{"rows of one instant that stay are read past at last", swept{limit: 5000, Read: 5000, last: at(5), took: 300 * time.Millisecond}, at(5), 10000, 9700 * time.Millisecond},
		{"and then turns are small again", swept{limit: 10000, Read: 10000, last: at(9), took: 60 * time.Millisecond}, at(5), mostLimit, 1940 * time.Millisecond},
	} {
		t.Run(row.name, func(t *testing.T) {
			limit, wait := pace(row.s, row.s.stuck(row.from), week)
			if limit != row.limit || wait.Round(time.Millisecond) != row.wait {
				t.Errorf("got %d after %v, want %d after %v", limit, wait, row.limit, row.wait)
			}
		})
	}
}

func TestPace_RetentionTakesNoMoreThanItsShareOfTheTime(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	for range 10_000 {
		s := swept{limit: 1 + random.IntN(10_000), took: time.Duration(random.Int64N(int64(10 * time.Second))), overdue: time.Duration(random.Int64N(int64(time.Hour)))}
		s.Read = random.IntN(s.limit + 1)
		share := share
		if s.overdue > 6*time.Minute {
			share = lateShare
		}
		_, wait := pace(s, false, time.Hour)
		if got := float64(s.took) / float64(s.took+wait); got > share+1e-6 {
			t.Fatalf("%+v: %.4f of the time, want at most %.2f", s, got, share)
		}
	}
}

// TestPace_APassMeetsEveryRowHoweverTheyLie plays passes over random rows: each row that may go is gone after two passes, and
// none is read twice in a pass unless it shares its instant with others.
func TestPace_APassMeetsEveryRowHoweverTheyLie(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		type row struct {
			second int
			stays  bool
		}
		var rows []row // in order
		for s := range 1 + random.IntN(30) {
			for range random.IntN(1 + random.IntN(40)) {
				rows = append(rows, row{s, random.IntN(3) == 0})
			}
		}
		m, limit := mark{}, 1+random.IntN(8)
		for turns, passes := 0, 0; passes < 2; turns++ {
			if turns > 2000 {
				t.Fatalf("seed %d: the pass does not end", seed)
			}
			s := swept{limit: limit, took: 2 * target}
			var left []row
			for _, r := range rows {
				if s.Read == limit || m.from != nil && at(r.second).Before(*m.from) {
					left = append(left, r)
					continue
				}
				s.Read++
				s.last = at(r.second)
				if !r.stays {
					s.Removed++
					continue
				}
				left = append(left, r)
				if s.kept == nil {
					s.kept = at(r.second)
				}
			}
			rows = left
			from := m.from
			m = m.after(s, false)
			if s.Read < limit {
				passes++
				if passes == 1 { // What held rows back is gone.
					for i := range rows {
						rows[i].stays = false
					}
				}
			}
			limit, _ = pace(s, s.stuck(from), time.Hour)
		}
		if len(rows) != 0 {
			t.Fatalf("seed %d: %d rows are left", seed, len(rows))
		}
	}
}
