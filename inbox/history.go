package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/retry"
)

// This file decides what to do with an event whose transaction failed. It is pure: values in, values out, without clock,
// database, logger or global random.

// action is what to do after a failure.
type action int

const (
	actAgain  action = iota // try again after delay, in this process
	actStore                // store it, due after delay
	actDead                 // write a dead letter
	actReturn               // return the error to the caller
)

func (a action) String() string { return [...]string{"again", "store", "dead", "return"}[a] }

// history is what has happened to an event so far.
type history struct {
	attempts  int           // attempts spent, with the present one
	contended int           // attempts in a row that were contended and spent nothing
	waits     int           // attempts in a row that failed because of the database
	losses    int           // lost connections (faultLost) and unanswered COMMITs since an attempt was last spent
	quick     int           // immediate retries that are left
	age       time.Duration // since the first failure, by the database's clock
	first     time.Time     // of the first failure; zero before it, and for a stored event, whose age the database knows
	stored    bool          // it is a row of `stored`, and its claim has counted the attempt
	decided   bool          // its outcome is decided and only has to be written: no handler runs any more
	waitsLong bool          // the caller waits as long as the database is away
}

// verdict is what to do next, and why.
type verdict struct {
	do     action
	delay  time.Duration
	free   bool // it spends no attempt
	reason string

	failure failure // the failure that it answers, or what that failure amounts to
}

const (
	maxContended     = 20
	maxDatabaseWaits = 3 // how often Receive meets an absent database before it returns the error

	// maxLosses is how often in a row a connection may break, or a server say that it cannot work, before that spends an
	// attempt. An outage seldom hits one event so often. A handler that causes it hits it every time.
	maxLosses = 5
)

// after takes the last failure into an event's history, and says what to do next.
func (h history) after(p retry.Policy, f failure, now time.Time, random float64) (history, verdict) {
	// 1. What the failure amounts to.
	switch {
	case !h.decided:
		f.fault, f.err = amounts(h, f.fault, f.err)
	case f.fault == faultEvent, f.fault == faultContended && h.contended >= maxContended:
		f.fault = faultDatabase // No handler ran that could be to blame: write the outcome again, later.
	}
	// 2. When the event failed first, and how often. The claim of a stored event has counted this attempt.
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
		if !v.free { // It never gets through. That spends an attempt.
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
		// Do not wait here: the lease could end while the database is away. Back into the queue, and spend nothing.
		v = verdict{do: actStore, free: true, delay: v.delay}
	}
	if v.do == actAgain && !v.free {
		h.quick--
	}
	v.failure = f
	return h, v
}

// spent is the history after an attempt was spent.
func (h history) spent() history {
	h.attempts, h.contended, h.waits, h.losses = h.attempts+1, 0, 0, 0
	return h
}

// elsewhere is the verdict when there is no time for another attempt in this process.
func (h history) elsewhere(p retry.Policy, f failure, random float64) verdict {
	h.quick = 0
	v := decide(p, h, faultEvent, f.err, random)
	v.failure = f
	return v
}

// amounts says what a fault amounts to, given those before it. A lost connection spends no attempt, nor does a server that
// cannot work or a COMMIT without an answer. But if every attempt of an event ended so, it would be tried forever and
// occupy a worker.
func amounts(h history, f fault, err error) (fault, error) {
	if (f != faultLost && f != faultUnknown) || h.losses+1 < maxLosses {
		return f, err
	}
	return faultEvent, fmt.Errorf("%d times in a row the connection was lost, or a server could not work, while the handler ran or before COMMIT was "+
		"answered: check for a context in the handler that ends before its statement does (pgx then closes the connection), for a statement that "+
		"ends the connection or the server's process or exceeds a limit of the server (temp_file_limit), for calls to another server, and for "+
		"anything that cuts connections to Postgres; the last error: %w", h.losses+1, err)
}

// decide says what to do with an event whose transaction failed with err.
func decide(p retry.Policy, h history, f fault, err error, random float64) verdict {
	switch f {
	case faultStopped, faultFenced, faultInFlight:
		return verdict{do: actReturn, free: true}
	case faultContended:
		if h.contended < maxContended {
			return verdict{do: actAgain, free: true, delay: loop.Spread(contendedBase, contendedCap, h.contended+1, random)}
		}
		// It never gets through. From here on it is a failure like any other.
	case faultDatabase, faultUnknown:
		if !h.waitsLong && h.waits+1 >= maxDatabaseWaits {
			return verdict{do: actReturn, free: true}
		}
		return verdict{do: actAgain, free: true, delay: loop.Spread(databaseBase, databaseCap, h.waits+1, random)}
	case faultLost: // Callers that do not wait get this too. amounts ends it.
		return verdict{do: actAgain, free: true, delay: loop.Spread(databaseBase, databaseCap, h.losses+1, random)}
	case faultFull:
		if !h.stored {
			return verdict{do: actReturn, free: true}
		}
		return verdict{do: actStore, free: true, delay: loop.Spread(fullBase, fullCap, 1, random)} // Its handler stores events.
	}
	after, asked := retry.AfterOf(err)
	delay := p.Delay(h.attempts, random)
	if asked {
		delay = after
	}
	switch {
	case retry.IsPermanent(err):
		return verdict{do: actDead, reason: permanentReason(err)}
	case p.Last(h.attempts):
		return verdict{do: actDead, reason: fmt.Sprintf("it failed %d times", h.attempts)}
	case p.Budget > 0 && h.age+delay > p.Budget:
		return verdict{do: actDead, reason: fmt.Sprintf("its next attempt would come later than %s after its first failure", p.Budget)}
	case h.quick > 0 && !h.stored && !asked && !ranOut(err):
		return verdict{do: actAgain, delay: loop.Spread(immediateBase, immediateCap, h.attempts, random)}
	default:
		return verdict{do: actStore, delay: delay}
	}
}

// permanentReason is why an event is given up after a permanent failure.
func permanentReason(err error) string {
	var payload interface{ reason() string }
	if errors.As(err, &payload) {
		return payload.reason()
	}
	return "its handler returned a permanent failure"
}

// ranOut reports that the handler used up its time. Another attempt at once would hold up its partition as long again.
func ranOut(err error) bool {
	var h *handlerError
	return errors.As(err, &h) && h.timedOut
}
