package position

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// This file decides where to read a partition from, and says what a person does about a log that cannot be read on.

// Reading is where to read a partition from.
type Reading struct {
	Start    int64 // the first offset to fetch
	Position int64 // every offset below it is settled: events there are duplicates or stale
}

// StartAt chooses where to read a partition from: at the consumer's position or at the group's committed offset, whichever is
// lower. It is never above the position: after a failover or a restore of Postgres the effects are gone while Kafka's offset
// stays. It never skips records silently.
//
// The group may have no committed offset although there is a position. same then says that the log holds the event that was
// settled last. So the offset has expired, and everything below the position is settled. Otherwise the topic may have been
// deleted and made again, and the position may exist in the new log by chance. Then everything is read: what was handled is a
// duplicate, and what was not, below the position, is stale.
//
// position is NoOffset if Postgres has none. first and end are the bounds of the log.
func StartAt(position, committed, first, end int64, same, adopt, skipDeleted bool) (Reading, error) {
	if position == source.NoOffset {
		switch {
		case adopt && committed != source.NoOffset:
			position = committed
		default:
			// A new consumer begins at the first offset. Without a position, a committed offset promises nothing.
			position, committed = first, source.NoOffset
		}
	}
	if position > end {
		return Reading{}, &beyondEnd{position: position, end: end}
	}
	if committed > end {
		return Reading{}, fmt.Errorf("%w: the group's committed offset is %d, but the log ends at %d: the topic was recreated, or its log was cut short; "+
			"stop the group's nodes and reset the group's offset to %d, or lower if events have come since", source.ErrOffsetOutOfRange, committed, end, end)
	}
	start := min(position, committed)
	switch {
	case committed != source.NoOffset:
	case same:
		start = position
	default:
		start = min(position, first)
	}
	if start < first {
		// What lies below the position is settled. Its deletion loses nothing.
		start = min(first, position)
	}
	if start < first {
		if !skipDeleted {
			return Reading{}, fmt.Errorf("%w: offset %d is next, but the log begins at %d: %d offsets were deleted before they were handled; "+
				"lengthen the topic's retention, and start again with SkipDeleted to continue after the gap", source.ErrOffsetOutOfRange, start, first, first-start)
		}
		start, position = first, first
	}
	return Reading{Start: start, Position: position}, nil
}

// beyondEnd is a source.ErrOffsetOutOfRange for a position that the log does not reach.
type beyondEnd struct{ position, end int64 }

func (e *beyondEnd) Unwrap() error { return source.ErrOffsetOutOfRange }

func (e *beyondEnd) Error() string {
	return fmt.Sprintf("%v: its position is %d, but the log ends at %d", source.ErrOffsetOutOfRange, e.position, e.end)
}

// Remedied adds to a refusal of StartAt what an operator does about it. After a log was cut short the row must stay: without a
// position everything left in the log is read, and events that retention has forgotten are handled twice. After a topic was made
// again, rows of events whose ids are offsets must go: the new log has other events at these offsets. They go first, as a node
// that runs reads on as soon as the position has gone.
func (t *Table) Remedied(refused error, topic string, partition int) error {
	var beyond *beyondEnd
	if !errors.As(refused, &beyond) {
		return refused
	}
	table, inbox := sqlschema.In(t.Schema, "holdfast.consumer_position"), sqlschema.In(t.Schema, "holdfast.inbox")
	row := t.row(topic, partition)
	return fmt.Errorf("%w: if the topic was recreated, delete the inbox rows of events without an id of their own, and then the partition's row of consumer_position: "+
		"delete from %s where %s and event_id like 'kafka:%%'; delete from %s where %s; "+
		"if its log was cut short, keep the row: %s; then stop the group's nodes and reset the group's offset to the same value; "+
		"use a lower one for both if events have come since the cut", refused, inbox, row, table, row, t.SkipTo(topic, partition, beyond.end))
}

// SkipTo is the statement by which a person lets the partition go on at an offset.
func (t *Table) SkipTo(topic string, partition int, offset int64) string {
	return fmt.Sprintf("update %s set position = %d where %s", sqlschema.In(t.Schema, "holdfast.consumer_position"), offset, t.row(topic, partition))
}

// row is a condition for statements that a person runs.
func (t *Table) row(topic string, partition int) string {
	return fmt.Sprintf("consumer = %s and topic = %s and partition = %d", quoted(t.Consumer), quoted(topic), partition)
}

// quoted is text as an SQL literal, for statements that a person runs.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
