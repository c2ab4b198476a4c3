package position

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/source"
)

func TestStart_StartAtIsTheLowerOfPositionAndCommittedOffset(t *testing.T) {
	for name, row := range map[string]struct {
		position, committed, first, end int64
		same, adopt, skip               bool
		want                            Reading
		refusal                         string
	}{
		"a new consumer and group start at the first offset":             {position: source.NoOffset, committed: source.NoOffset, first: 0, end: 10, want: Reading{0, 0}},
		"a new consumer of an old topic starts at the first offset left": {position: source.NoOffset, committed: source.NoOffset, first: 4, end: 10, want: Reading{4, 4}},
		"a committed offset without a position promises nothing":         {position: source.NoOffset, committed: 7, first: 0, end: 10, want: Reading{0, 0}},
		"unless it is adopted":                                                              {position: source.NoOffset, committed: 7, first: 0, end: 10, adopt: true, want: Reading{7, 7}},
		"there is nothing to adopt":                                                         {position: source.NoOffset, committed: source.NoOffset, first: 4, end: 10, adopt: true, want: Reading{4, 4}},
		"the group is further than Postgres":                                                {position: 5, committed: 8, first: 0, end: 10, want: Reading{5, 5}},
		"Postgres is further than the group":                                                {position: 8, committed: 5, first: 0, end: 10, want: Reading{5, 8}},
		"the group has forgotten its offset, or the topic":                                  {position: 8, committed: source.NoOffset, first: 3, end: 10, want: Reading{3, 8}},
		"the group has forgotten its offset, not the topic":                                 {position: 8, committed: source.NoOffset, first: 3, end: 10, same: true, want: Reading{8, 8}},
		"the group was set back on purpose, in the same log":                                {position: 8, committed: 4, first: 3, end: 10, same: true, want: Reading{4, 8}},
		"the group has forgotten its offset, and the log ends before the position":          {position: 11, committed: source.NoOffset, first: 0, end: 10, same: true, refusal: "its position is 11"},
		"the group has forgotten its offset, and unhandled offsets of the log were deleted": {position: 5, committed: source.NoOffset, first: 7, end: 10, same: true, refusal: ": 2 offsets were deleted before they were handled"},
		"it has, and unhandled offsets were deleted":                                        {position: 5, committed: source.NoOffset, first: 7, end: 10, refusal: ": 2 offsets were deleted before they were handled"},
		"it has, and it is accepted":                                                        {position: 5, committed: source.NoOffset, first: 7, end: 10, skip: true, want: Reading{7, 7}},
		"it has, and nothing was handled":                                                   {position: 0, committed: source.NoOffset, first: 0, end: 10, want: Reading{0, 0}},
		"both are at the end":                                                               {position: 10, committed: 10, first: 0, end: 10, want: Reading{10, 10}},
		"everything below the position was deleted":                                         {position: 8, committed: 8, first: 8, end: 10, want: Reading{8, 8}},
		"only settled offsets were deleted":                                                 {position: 8, committed: 3, first: 6, end: 10, want: Reading{6, 8}},
		"all settled offsets and no others were deleted":                                    {position: 8, committed: 3, first: 8, end: 10, want: Reading{8, 8}},
		"the position lies behind the log":                                                  {position: 11, committed: 5, first: 0, end: 10, refusal: "its position is 11, but the log ends at 10"},
		"the committed offset lies behind the log":                                          {position: 5, committed: 11, first: 0, end: 10, refusal: "committed offset is 11, but the log ends at 10"},
		"an adopted offset lies behind the log":                                             {position: source.NoOffset, committed: 11, first: 0, end: 10, adopt: true, refusal: "is 11, but the log ends at 10"},
		"unhandled offsets were deleted":                                                    {position: 5, committed: 5, first: 7, end: 10, refusal: ": 2 offsets were deleted before they were handled"},
		"unhandled offsets were deleted and it is accepted":                                 {position: 5, committed: 5, first: 7, end: 10, skip: true, want: Reading{7, 7}},
	} {
		got, err := StartAt(row.position, row.committed, row.first, row.end, row.same, row.adopt, row.skip)
		switch {
		case row.refusal == "" && (err != nil || got != row.want):
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, row.want)
		case row.refusal != "" && (!errors.Is(err, source.ErrOffsetOutOfRange) || !strings.Contains(err.Error(), row.refusal)):
			t.Errorf("%s: error %v, want %q", name, err, row.refusal)
		}
	}
}

// Only of a position beyond the log's end is there a statement that helps.
func TestStart_ARemedyIsNamedForAPositionBeyondTheEnd(t *testing.T) {
	table := New(Config{Schema: "shop", Consumer: "it's"})
	_, beyond := StartAt(11, 5, 0, 10, false, false, false)
	_, deleted := StartAt(5, 5, 7, 10, false, false, false)
	err := table.Remedied(beyond, "orders", 3)
	for _, says := range []string{
		"its position is 11", "delete from \"shop\".consumer_position where consumer = 'it''s' and topic = 'orders' and partition = 3;",
		"delete from \"shop\".inbox where consumer = 'it''s' and topic = 'orders' and partition = 3 and event_id like 'kafka:%';",
		"update \"shop\".consumer_position set position = 10 where consumer = 'it''s' and topic = 'orders' and partition = 3;",
	} {
		if !errors.Is(err, source.ErrOffsetOutOfRange) || !strings.Contains(err.Error(), says) {
			t.Errorf("the error is %v, want one that says %q", err, says)
		}
	}
	if err := table.Remedied(deleted, "orders", 3); err == nil || err.Error() != deleted.Error() {
		t.Errorf("the error is %v, want %v alone", err, deleted)
	}
	if got, want := table.SkipTo("orders", 3, 12), "update \"shop\".consumer_position set position = 12 where consumer = 'it''s' and topic = 'orders' and partition = 3"; got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
}
