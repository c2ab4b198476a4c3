package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/retry"
)

// This file decides what to do with an event whose transaction failed, and does nothing: values in, values out. No clock,
// database, logger or global random.

// action is what is done about a failure.
type action int

const (
	actAgain  action = iota // run it again after delay, in this process
	actPark                 // keep it in `stored`, due after delay
	actDead                 // write a dead letter
	actReturn               // hand the error to the caller
)

func (a action) String() string { return [...]string{"again", "park", "dead", "return"}[a] }

// history is what an event has been through.
type history struct {
	attempts  int           // tries that failed or were cut short, the last one included
	contended int           // tries in a row that were contended and cost nothing
	waits     int           // tries in a row that failed for the database's sake
	losses    int           // tries since the last that cost an attempt that were lost (faultLost), or whose COMMIT was not answered
	quick     int           // quick tries that are left
	age       time.Duration // since the first failure, by the database's clock
	first     time.Time     // when it failed first; zero while it has not, and for a stored event, the age of which comes from the database
	stored    bool          // it is a row of `stored`: its claim has counted the attempt
	decided   bool          // what becomes of it is decided and only to be written: no handler runs any more
	patient   bool          // the caller waits as long as the database is away
}

// verdict is what to do next, and why.
type verdict struct {
	do     action
	delay  time.Duration
	free   bool // no attempt is spent
	reason string

	failure failure // what it is about: the failure that after was given, or what that amounts to
}

const (
	maxContended = 20
	maxImpatient = 3 // how often Receive meets an absent database before it says so

	// maxLosses is how often in a row a connection may break, or a server say that it cannot work, while an event is handled
	// until that costs an attempt. What does so by itself seldom meets one event so often; a handler that brings it about
	// meets nothing else.
	maxLosses = 5
)

// after is the history of an event whose last transaction failed, and what to do next.
func (h history) after(p retry.Policy, f failure, now time.Time, random float64) (history, verdict) {
	// 1. What the failure counts as.
	switch {
	case !h.decided:
		f.fault, f.err = amounts(h, f.fault, f.err)
	case f.fault == faultEvent, f.fault == faultContended && h.contended >= maxContended:
		f.fault = faultDatabase // No handler ran that could be to blame: write the outcome again, later.
	}
	// 2. When it failed first, and how often. The claim of a stored event has counted this attempt.
	if !h.stored {
		if h.first.IsZero() && (f.fault == faultEvent || f.fault == faultContended) {
			h.first = now
		}
		if !h.first.IsZero() {
			h.age = now.Sub(h.first)
		}
		if f.fault == faultEvent {
			h = h.spent()
		}
	}
	// 3. What to do.
	v := decide(p, h, f.fault, f.err, random)
	switch f.fault {
	case faultContended:
		h.contended++
		if !v.free { // It never gets through: that costs an attempt.
			if !h.stored {
				h = h.spent()
			}
			v = decide(p, h, faultEvent, f.err, random)
		}
	case faultDatabase:
		h.waits++
	case faultUnknown:
		h.waits, h.losses = h.waits+1, h.losses+1
	case faultLost:
		h.losses++
	}
	if h.stored && f.fault.outage() {
		// Not again from here: the lease would run out while the database is away. Back into the queue, unspent.
		v = verdict{do: actPark, free: true, delay: v.delay}
	}
	if v.do == actAgain && !v.free {
		h.quick--
	}
	v.failure = f
	return h, v
}

// spent is the history after a try that cost an attempt.
func (h history) spent() history {
	h.attempts, h.contended, h.waits, h.losses = h.attempts+1, 0, 0, 0
	return h
}

// elsewhere is what to do where there is no time for another try in place.
func (h history) elsewhere(p retry.Policy, f failure, random float64) verdict {
	h.quick = 0
	v := decide(p, h, faultEvent, f.err, random)
	v.failure = f
	return v
}

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
	case faultLost: // Patient or not: amounts ends it.
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
		return verdict{do: actAgain, delay: spread(immediateBase, immediateCap, h.attempts, random)}
	default:
		return verdict{do: actPark, delay: delay}
	}
}

// ranOut says that the handler used up its time. To try it again in place would hold up its partition as long again.
func ranOut(err error) bool {
	var h *handlerError
	return errors.As(err, &h) && h.timedOut
}
