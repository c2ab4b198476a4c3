package inbox

import "fmt"

// This file decides where a partition is read from. It does nothing: values in, values out.

// reading is where a partition is read from.
type reading struct {
	start    int64 // the first offset to fetch
	position int64 // everything below is settled: below it only duplicates and stale events are met
}

// startAt chooses where to read a partition from: the lower of our position and the group's committed offset. Never
// above our position, because after a failover or a restore of Postgres the effects are gone while Kafka's offset
// stays; and it never jumps over records silently. Where the group has no committed offset although we have a position,
// same decides: the log holds the event that we settled last, so the offset has expired, and all below the position is
// settled. Otherwise the topic may have been deleted and made again, and our position may be one of the new log by
// chance: everything is read, what was handled is a duplicate, and what lies below the position and was not is stale.
// position is NoOffset when Postgres has none; first and end are the bounds of the log.
func startAt(position, committed, first, end int64, same, adopt, skipDeleted bool) (reading, error) {
	if position == NoOffset {
		switch {
		case adopt && committed != NoOffset:
			position = committed
		default:
			// A new consumer begins at the first offset there is. A committed offset without a position is no promise of ours.
			position, committed = first, NoOffset
		}
	}
	if position > end {
		return reading{}, &beyondEnd{position: position, end: end}
	}
	if committed > end {
		return reading{}, fmt.Errorf("%w: the group's committed offset is %d, but the log ends at %d: the topic was made again or its log cut short; "+
			"reset the group's offset to %d, or below where events have come since", ErrOffsetOutOfRange, committed, end, end)
	}
	start := min(position, committed)
	switch {
	case committed != NoOffset:
	case same:
		start = position
	default:
		start = min(position, first)
	}
	if start < first {
		// What is below our position is settled, so that its deletion loses nothing.
		start = min(first, position)
	}
	if start < first {
		if !skipDeleted {
			return reading{}, fmt.Errorf("%w: offset %d is next, but the log begins at %d: %d offsets were deleted before they were handled; "+
				"lengthen the topic's retention, and set SkipDeleted to go on behind the gap", ErrOffsetOutOfRange, start, first, first-start)
		}
		start, position = first, first
	}
	return reading{start: start, position: position}, nil
}

// beyondEnd is the refusal of a position that the log does not reach. It is an ErrOffsetOutOfRange.
type beyondEnd struct{ position, end int64 }

func (e *beyondEnd) Unwrap() error { return ErrOffsetOutOfRange }

func (e *beyondEnd) Error() string {
	return fmt.Sprintf("%v: its position is %d, but the log ends at %d", ErrOffsetOutOfRange, e.position, e.end)
}

// remedy is what an operator does about it; row is the table and where its row is found. Of a log that was cut short the
// row must stay: without a position everything left in the log is read, and what retention has forgotten handled twice.
func (e *beyondEnd) remedy(table, row string) string {
	return fmt.Sprintf("if the topic was made again, delete the partition's row of consumer_position: delete from %s where %s; "+
		"if its log was cut short, keep the row: update %s set position = %d where %s; and reset the group's offset to the same, "+
		"both lower where events have come since the cut", table, row, table, e.end, row)
}
