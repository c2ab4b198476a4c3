// Package failure decides what becomes of an event whose transaction failed. Nothing else does, and all of it is pure.
//
//	returned.go   what a handler that has returned has left behind: may its work be committed, or is that a HandlerError
//	fault.go      whose Fault an error is: the event's, the database's, nobody's
//	history.go    what follows from that and from what happened before: again, store, dead letter, return (History.After, a Verdict)
//	payload.go    an error of a codec
//	errortext.go  an error as a row or a log line holds it
//	ours.go       errors in our own words, which a log may have
package failure

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/retry"
)

// This file decides what to do with an event whose transaction failed. It is pure: values in, values out, without clock,
// database, logger or global random.

// Action is what to do after a failure.
type Action int

const (
	ActAgain  Action = iota // try again after delay, in this process
	ActStore                // store it, due after delay
	ActDead                 // write a dead letter
	ActReturn               // return the error to the caller
)

func (a Action) String() string { return [...]string{"again", "store", "dead", "return"}[a] }

// History is what has happened to an event so far.
type History struct {
	Attempts  int           // attempts spent, with the present one
	Contended int           // attempts in a row that were contended and spent nothing
	Waits     int           // attempts in a row that failed because of the database
	Losses    int           // tries in a row that lost their connection (FaultLost), or whose COMMIT was not answered
	Unable    int           // tries in a row that met a server without a disk to write on (FaultUnable)
	Doubts    int           // tries in a row that were Alone; 1 if it only tried what others had found away. At most one of the three is not 0
	Alone     bool          // of FaultUnavailable: nothing was known of the outage before this event said so
	Quick     int           // immediate retries that are left
	Age       time.Duration // since the first failure, outages included: by this process's clock, and of a stored event by the database's
	First     time.Time     // of the first failure; zero before it, and for a stored event, whose age the database knows
	Stored    bool          // it is a row of `stored`, and its claim has counted the attempt
	Decided   bool          // its outcome is decided and only has to be written: no handler runs any more
	WaitsLong bool          // the caller waits as long as the database is away
}

// Verdict is what to do next, and why.
type Verdict struct {
	Do     Action
	Delay  time.Duration
	Free   bool // it spends no attempt
	Reason string

	Failure Error // the failure that it answers, or what that failure amounts to
}

const (
	maxContended     = 20
	maxDatabaseWaits = 3 // how often Receive meets an absent database before it returns the error

	// MaxLosses is how often in a row a connection may break, or a server say that it cannot work, before that spends an
	// attempt. An outage seldom hits one event so often. A handler that causes it hits it every time.
	MaxLosses = 5

	// maxUnable is how often in a row a fresh event may meet a server that is unable before it goes into the queue of its key, where
	// it holds up no other. If the queue cannot be written either, it waits where it is.
	maxUnable = 5

	// aloneBase and aloneCap bound the waits of an event that alone says that something is away, after the first time.
	aloneBase, aloneCap = time.Second, 30 * time.Second

	// unableCap bounds the waits of a stored event for such a server: how late it may go on once the disk has room again. An event
	// whose own statement fills the disk does so no more often.
	unableCap = 30 * time.Second
)

// After takes the last failure into an event's history, and says what to do next.
func (h History) After(p retry.Policy, f Error, now time.Time, random float64) (History, Verdict) {
	// 1. What the failure amounts to.
	switch {
	case !h.Decided:
		f.Fault, f.Err = amounts(h, f.Fault, f.Err)
	case f.Fault == FaultEvent, f.Fault == FaultUnable, f.Fault == FaultUnavailable, f.Fault == FaultContended && h.Contended >= maxContended:
		f.Fault = FaultDatabase // No handler ran that could be to blame: write the outcome again, later.
	}
	// 2. When the event failed first, and how often. The claim of a stored event has counted this attempt.
	if !h.Stored {
		if h.First.IsZero() && (f.Fault == FaultEvent || f.Fault == FaultContended) {
			h.First = now
		}
		if !h.First.IsZero() {
			h.Age = now.Sub(h.First)
		}
		if f.Fault == FaultEvent {
			h = h.spent()
		}
	}
	// 3. What to do.
	v := decide(p, h, f.Fault, f.Err, random)
	switch f.Fault {
	case FaultContended:
		h.Contended++
		if !v.Free { // It never gets through. That spends an attempt.
			if !h.Stored {
				h = h.spent()
			}
			v = decide(p, h, FaultEvent, f.Err, random)
		}
	case FaultDatabase:
		h.Waits++
	case FaultUnable:
		h.Unable, h.Losses, h.Doubts = h.Unable+1, 0, 0
	case FaultUnknown:
		h.Waits, h.Losses, h.Unable, h.Doubts = h.Waits+1, h.Losses+1, 0, 0
	case FaultLost:
		h.Losses, h.Unable, h.Doubts = h.Losses+1, 0, 0
	case FaultUnavailable:
		switch {
		case h.Alone:
			h.Doubts++
		case h.Stored: // It has tried it. So it is not believed if others then find that it is back.
			h.Doubts = max(h.Doubts, 1)
		}
		h.Losses, h.Unable = 0, 0
	}
	if h.Stored && f.Fault.Outage() {
		// Do not wait here: the lease could end while the database is away. Back into the queue, and spend nothing.
		v = Verdict{Do: ActStore, Free: true, Delay: v.Delay}
	}
	if v.Do == ActAgain && !v.Free {
		h.Quick--
	}
	v.Failure = f
	return h, v
}

// spent is the history after an attempt was spent.
func (h History) spent() History {
	h.Attempts, h.Contended, h.Waits, h.Losses, h.Unable, h.Doubts = h.Attempts+1, 0, 0, 0, 0, 0
	return h
}

// doubted is added to Doubts in a row, where Losses are less (MaxLosses).
const doubted = 100

// Row is what the row of a stored event keeps of its tries in a row that spent no attempt: Losses, Unable below zero, or Doubts from doubted on.
func (h History) Row() int {
	if h.Doubts > 0 {
		return doubted + h.Doubts
	}
	return h.Losses - h.Unable
}

// FromRow is h with what Row has kept.
func (h History) FromRow(row int) History {
	h.Losses, h.Unable, h.Doubts = max(row, 0), max(-row, 0), 0
	if row > doubted {
		h.Losses, h.Doubts = 0, row-doubted
	}
	return h
}

// Elsewhere is the verdict when there is no time for another attempt in this process.
func (h History) Elsewhere(p retry.Policy, f Error, random float64) Verdict {
	h.Quick = 0
	v := decide(p, h, FaultEvent, f.Err, random)
	v.Failure = f
	return v
}

// amounts says what a fault amounts to, given those before it. A lost connection spends no attempt, nor does a server that
// cannot work or a COMMIT without an answer. But if every attempt of an event ended so, it would be tried forever and
// occupy a worker. What a server says of its disk amounts to no attempt, however often.
//
// An event that alone says that something is away, while others are handled, spends an attempt in the end, too. One that is not alone does not.
func amounts(h History, f Fault, err error) (Fault, error) {
	if f == FaultUnavailable && h.Alone && h.Doubts+1 >= MaxLosses {
		return FaultEvent, fmt.Errorf("%d times in a row this event said that something was away, and then others that need it were handled; the last error: %w", h.Doubts+1, err)
	}
	if f != FaultLost && f != FaultUnknown {
		return f, err
	}
	if saysUnable(err) {
		return FaultUnable, err
	}
	if h.Losses+1 < MaxLosses {
		return f, err
	}
	return FaultEvent, fmt.Errorf("%d times in a row the connection was lost, or a server could not work, while the handler ran or before COMMIT was "+
		"answered: check for a context in the handler that ends before its statement does (pgx then closes the connection), for a statement that "+
		"ends the connection or the server's process or exceeds a limit of the server (temp_file_limit), for calls to another server, and for "+
		"anything that cuts connections to Postgres; the last error: %w", h.Losses+1, err)
}

// decide says what to do with an event whose transaction failed with err.
func decide(p retry.Policy, h History, f Fault, err error, random float64) Verdict {
	switch f {
	case FaultStopped, FaultFenced, FaultInFlight:
		return Verdict{Do: ActReturn, Free: true}
	case FaultContended:
		if h.Contended < maxContended {
			return Verdict{
				Do:    ActAgain,
				Free:  true,
				Delay: loop.Spread(loop.ContendedBase, loop.ContendedCap, h.Contended+1, random),
			}
		}
		// It never gets through. From here on it is a failure like any other.
	case FaultDatabase, FaultUnknown:
		if !h.WaitsLong && h.Waits+1 >= maxDatabaseWaits {
			return Verdict{Do: ActReturn, Free: true}
		}
		return Verdict{
			Do:    ActAgain,
			Free:  true,
			Delay: loop.Spread(loop.DatabaseBase, loop.DatabaseCap, h.Waits+1, random),
		}
	case FaultLost: // Callers that do not wait get this too. amounts ends it.
		return Verdict{
			Do:    ActAgain,
			Free:  true,
			Delay: loop.Spread(loop.DatabaseBase, loop.DatabaseCap, h.Losses+1, random),
		}
	case FaultUnable: // Callers that do not wait get this too: better stored than sent away.
		v := Verdict{
			Do:    ActAgain,
			Free:  true,
			Delay: loop.Spread(loop.DatabaseBase, unableCap, h.Unable+1, random),
		}
		if h.Unable+1 >= maxUnable {
			v.Do = ActStore
		}
		return v
	case FaultUnavailable:
		v := Verdict{Do: ActStore, Free: true}
		if h.Alone && h.Doubts > 0 { // It is not believed: others go on, and it waits alone.
			v.Delay = loop.Spread(aloneBase, aloneCap, h.Doubts, random)
		}
		return v
	case FaultFull:
		if !h.Stored {
			return Verdict{Do: ActReturn, Free: true}
		}
		return Verdict{
			Do:    ActStore,
			Free:  true,
			Delay: loop.Spread(loop.FullBase, loop.FullCap, 1, random),
		} // Its handler stores events.
	}
	after, asked := retry.AfterOf(err)
	delay := p.Delay(h.Attempts, random)
	if asked {
		delay = after
	}
	switch {
	case retry.IsPermanent(err):
		return Verdict{Do: ActDead, Reason: permanentReason(err)}
	case p.Last(h.Attempts):
		return Verdict{Do: ActDead, Reason: fmt.Sprintf("it failed %d times", h.Attempts)}
	case p.Budget > 0 && h.Age+delay > p.Budget:
		return Verdict{Do: ActDead, Reason: fmt.Sprintf("its next attempt would come later than %s after its first failure", p.Budget)}
	case h.Quick > 0 && !h.Stored && !asked && !ranOut(err):
		return Verdict{Do: ActAgain, Delay: loop.Spread(loop.ImmediateBase, loop.ImmediateCap, h.Attempts, random)}
	default:
		return Verdict{Do: ActStore, Delay: delay}
	}
}

// permanentReason is why an event is given up after a permanent failure.
func permanentReason(err error) string {
	var payload *PayloadError // no other error's method: a handler's may say, or do, anything
	if errors.As(err, &payload) {
		return payload.Reason()
	}
	return "its handler returned a permanent failure"
}

// ranOut reports that the handler used up its time. Another attempt at once would hold up its partition as long again.
func ranOut(err error) bool {
	var h *HandlerError
	return errors.As(err, &h) && h.TimedOut
}
