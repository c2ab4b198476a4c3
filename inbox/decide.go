package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/retry"
)

// This file decides and does nothing: values in, values out. No clock, database, logger or global random.

// fault says whose fault it is that a transaction did not come to its end.
type fault int

const (
	faultEvent     fault = iota // the handler failed on the event: an attempt is spent
	faultContended              // 40001 or 40P01: nobody's fault, at once again
	faultDatabase               // the database or the way to it: wait, and spend no attempt
	faultUnknown                // COMMIT without an answer: look before anything is decided
	faultStopped                // we were told to stop: hand back what is in hand
	faultFenced                 // another node has the partition: let go of it
	faultFull                   // it would have to wait where too many do: whoever has it waits for room
	faultLost                   // the connection broke under the handler, or a server told it that it cannot work: not its doing, unless it goes on (amounts)
	faultInFlight               // another transaction has the event, and it was not to be waited for
)

func (f fault) String() string {
	return [...]string{"event", "contended", "database", "unknown", "stopped", "fenced", "full", "lost", "in flight"}[f]
}

// circumstances is what else is known of a transaction that failed.
type circumstances struct {
	stopped    bool // the context that we gave it was cancelled from outside
	timedOut   bool // its handler ran into Config.Timeout
	connLost   bool // the connection was closed when it failed
	inHandler  bool // the error is the handler's, not that of one of our own statements
	committing bool // the error is the answer to COMMIT
}

// judge says whose fault err is. The order matters: a connection that pgx closed because the handler's time was up is
// the handler's fault, one that broke under it is not. What a handler was told by a server that cannot work need not come
// from our database, nor concern any event but its own.
func judge(err error, c circumstances) fault {
	var pgErr *pgconn.PgError
	isPg := errors.As(err, &pgErr)
	switch {
	case errors.Is(err, errFenced):
		return faultFenced
	case errors.Is(err, ErrFull):
		return faultFull
	case errors.Is(err, ErrInFlight):
		return faultInFlight
	case c.committing && !isPg && !errors.Is(err, pgx.ErrTxCommitRollback):
		return faultUnknown // Never ask pgconn.SafeToRetry here: it says yes to a COMMIT that was carried out.
	case c.committing && isPg && unavailable(pgErr.Code):
		return faultUnknown // The server went away around the COMMIT. Looking costs little, guessing wrong a lot.
	case c.timedOut:
		return faultEvent
	case c.stopped:
		return faultStopped
	case isPg && (pgErr.Code == "40001" || pgErr.Code == "40P01"):
		return faultContended
	case c.inHandler && (c.connLost || isPg && unavailable(pgErr.Code)):
		return faultLost
	case c.connLost:
		return faultDatabase
	case c.inHandler, c.committing:
		return faultEvent
	default:
		return faultDatabase // One of our own statements: no event can be blamed for it.
	}
}

// unavailable says whether a SQLSTATE means that the server cannot work now, whatever it is asked.
func unavailable(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", "57P05", "25006":
		return true // shutting down, crashed, starting, session timed out, read only: a standby
	}
	// Connection exceptions, insufficient resources, system errors.
	return len(code) == 5 && (code[:2] == "08" || code[:2] == "53" || code[:2] == "58")
}

// action is what is done about a failure.
type action int

const (
	actAgain  action = iota // run it again after delay, in this process
	actPark                 // keep it in `stored`, due after delay
	actDead                 // write a dead letter
	actReturn               // hand the error to the caller
)

func (a action) String() string { return [...]string{"again", "park", "dead", "return"}[a] }

// history is what an event has behind it.
type history struct {
	attempts  int           // tries that failed or were cut short, the last one included
	contended int           // tries in a row that were contended and cost nothing
	waits     int           // tries in a row that failed for the database's sake
	losses    int           // tries since the last that cost an attempt that were lost (faultLost), or whose COMMIT was not answered
	quick     int           // quick tries that are left
	age       time.Duration // since the first failure, by the database's clock
	stored    bool          // it is a row of `stored`
	patient   bool          // the caller waits as long as the database is away
}

// verdict is what to do next, and why.
type verdict struct {
	do     action
	delay  time.Duration
	free   bool // no attempt is spent
	reason string
}

const (
	maxContended = 20
	maxImpatient = 3 // how often Receive meets an absent database before it says so

	// maxLosses is how often in a row a connection may break, or a server say that it cannot work, while an event is handled
	// until that costs an attempt. What does so by itself seldom meets one event so often; a handler that brings it about
	// meets nothing else.
	maxLosses = 5

	contendedBase, contendedCap = 2 * time.Millisecond, 200 * time.Millisecond
	databaseBase, databaseCap   = 50 * time.Millisecond, 15 * time.Second
	fullBase, fullCap           = 500 * time.Millisecond, 10 * time.Second
	quickBase, quickCap         = 20 * time.Millisecond, 200 * time.Millisecond
)

// amounts says what a fault counts as beside those before it: a connection that is lost costs the event nothing, nor
// does a server that cannot work, nor a COMMIT without an answer, but an event whose every try ends so would be tried for
// ever, and keep a worker for as long.
func amounts(h history, f fault, err error) (fault, error) {
	if (f != faultLost && f != faultUnknown) || h.losses+1 < maxLosses {
		return f, err
	}
	return faultEvent, fmt.Errorf("%d times in a row its connection was lost, or a server said that it cannot work, while its handler ran or before COMMIT "+
		"was answered: look for a statement of the handler whose context ends before it does (pgx closes the connection then), for one "+
		"that ends the connection or the server's process, for one that asks for more than its server gives (temp_file_limit) or for "+
		"another server, and for what cuts connections between here and Postgres; the last time: %w", h.losses+1, err)
}

// decide says what to do with an event whose transaction failed with err.
func decide(p retry.Policy, h history, f fault, err error, random float64) verdict {
	switch f {
	case faultStopped, faultFenced, faultInFlight:
		return verdict{do: actReturn, free: true}
	case faultContended:
		if h.contended < maxContended {
			return verdict{do: actAgain, free: true, delay: spread(contendedBase, contendedCap, h.contended+1, random)}
		}
		// It never gets through: from here on it is a failure like others.
	case faultDatabase, faultUnknown:
		if !h.patient && h.waits+1 >= maxImpatient {
			return verdict{do: actReturn, free: true}
		}
		return verdict{do: actAgain, free: true, delay: spread(databaseBase, databaseCap, h.waits+1, random)}
	case faultLost: // However little patience there is: amounts ends it.
		return verdict{do: actAgain, free: true, delay: spread(databaseBase, databaseCap, h.losses+1, random)}
	case faultFull:
		if !h.stored {
			return verdict{do: actReturn, free: true}
		}
		return verdict{do: actPark, free: true, delay: spread(fullBase, fullCap, 1, random)} // Its handler stores events.
	}
	after, asked := retry.AfterOf(err)
	delay := p.Delay(h.attempts, random)
	if asked {
		delay = after
	}
	switch {
	case retry.IsPermanent(err):
		return verdict{do: actDead, reason: "its handler calls the failure permanent"}
	case p.Last(h.attempts):
		return verdict{do: actDead, reason: fmt.Sprintf("it failed %d times", h.attempts)}
	case p.Budget > 0 && h.age+delay > p.Budget:
		return verdict{do: actDead, reason: fmt.Sprintf("its next attempt would come later than %s after its first failure", p.Budget)}
	case h.quick > 0 && !h.stored && !asked && !ranOut(err):
		return verdict{do: actAgain, delay: spread(quickBase, quickCap, h.attempts, random)}
	default:
		return verdict{do: actPark, delay: delay}
	}
}

// roomAfter is how long a partition waits before it tries the next of the events that wait for room, after so many tries
// in a row that found none. Of many, each is tried about as often as if it were alone, down to a try every fullBase.
func roomAfter(tries, waiting int, random float64) time.Duration {
	return max(spread(fullBase, fullCap, tries, random)/time.Duration(waiting), fullBase)
}

// rest is how long a loop pauses after a turn that took so long: times as long, so that it is no load for a busy database,
// but at least and at most so long. Without a most, one answer that was lost would be followed by minutes of nothing.
func rest(took time.Duration, times int, least, most time.Duration) time.Duration {
	return min(max(time.Duration(times)*took, least), most)
}

// ranOut says that the handler used up its time. To try it again in place would hold up its partition as long again.
func ranOut(err error) bool {
	var h *handlerError
	return errors.As(err, &h) && h.timedOut
}

// spread is a delay with equal jitter: at least half of what doubles from base to limit, so that a wait is a wait.
func spread(base, limit time.Duration, attempt int, random float64) time.Duration {
	ceiling := limit
	if doublings := max(attempt, 1) - 1; doublings < 32 && base<<doublings < limit {
		ceiling = base << doublings
	}
	return ceiling/2 + time.Duration(random*float64(ceiling/2))
}

// course is what is done with a record of a partition when it is met.
type course int

const (
	courseHandle  course = iota // run its handler
	courseSkip                  // write nothing
	courseInvalid               // a letter: it is no event that the tables can hold
	courseStale                 // a letter, unless its row shows what became of it
	courseUnknown               // store it, or a letter
	courseKnown                 // write nothing: its row shows what became of it
)

func (c course) String() string {
	return [...]string{"handle", "skip", "invalid", "stale", "unknown", "known"}[c]
}

// sighting is what is known of a record when it is met.
type sighting struct {
	invalid  bool // it is no event that the tables can hold
	garbled  bool // nor can its type be read
	handled  bool // this node has a handler for its type
	declared bool // another node has
	stale    bool // it lies below what was settled when this node was given the partition
}

// courseOf says what is done with a record. The order matters: what others write for others to the same topic need not be
// an event that our tables can hold, and is nobody's loss. Below the position an event may have been handled long
// ago, by whichever node knew its type then, and its row may be gone: to store it for such a node would be to handle it
// twice.
func courseOf(s sighting, u Unknown) course {
	switch {
	case !s.handled && !s.declared && !s.garbled && u == UnknownSkip:
		return courseSkip
	case s.invalid:
		return courseInvalid
	case s.stale:
		return courseStale
	case !s.handled:
		return courseUnknown
	default:
		return courseHandle
	}
}

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
