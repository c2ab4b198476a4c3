package inbox

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Of several nodes one tells, so that what is shown does not jump between what each of them counts.
func TestBackfillTeller_OneNodeTellsOfABackfill(t *testing.T) {
	for _, c := range []struct {
		name   string
		set    string // what another node has said
		ends   bool
		stands bool
	}{
		{"another tells", "told_at = now() - interval '20 seconds'", false, true},
		{"another tells, and this one has ended", "told_at = now() - interval '20 seconds'", true, true},
		{"another has said nothing for 30 s", "told_at = now() - interval '31 seconds'", false, false},
		{"another has ended early", "ended_at = now(), error = 'stopped'", true, false},
		{"another has reached the bound, and so has this one", "ended_at = now()", true, true},
		{"another has reached the bound, and this one goes on", "ended_at = now()", false, false},
		{"it told before", "node = 'this'", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			in.node = "this"
			pgtest.Exec(t, b.db, "insert into holdfast.consumer_backfill (consumer, node, began_at, partitions, partitions_left, done, remaining, per_second) values ('billing', 'other', now(), 1, 1, 1, 1, 1)")
			pgtest.Exec(t, b.db, "update holdfast.consumer_backfill set "+c.set)
			if err := in.writeBackfill(t.Context(), Progress{Done: 77}, c.ends, nil); err != nil {
				t.Fatal(err)
			}
			if stands := b.count("select done from holdfast.consumer_backfill") != 77; stands != c.stands {
				t.Errorf("what the other said stands: %t", stands)
			}
		})
	}
}
