package inbox

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// statements are the constants of queries.go, for the configured schema and time-outs.
type statements struct {
	open, openFenced, openGroup, lock, tryLock                                                         string
	record, recordUnpaused, recordMany, fresh, known, knownMany                                        string // of an event's transaction
	store, storeMany, unrecord, storedCount                                                            string // of stored events
	letter, letterReopen, letterReplayed, edited, publishLetter                                        string
	interpret                                                                                          string
	claim, take, isHead, drop, settle, next, resume, deferFollowers, active, sweep, retry, stillStored string // of Run
	declare, stop, undeclare, declared, skip, paused                                                   string
	dependency, dependencyIs, dependencyTry                                                            string
	step, stepDone                                                                                     string // of step.go
	starts, start, takeBackStart, forgetStart, watermark, watermarkIs                                  string
	writeBackfill, awaitsClient                                                                        string
}

func newStatements(c Config) statements {
	in := func(statement string) string { return sqlschema.In(c.Schema, statement) }
	return statements{
		open:           openSQL,
		openFenced:     openFencedSQL,
		openGroup:      openGroupSQL,
		lock:           in(lockSQL),
		tryLock:        in(tryLockSQL),
		record:         in(recordSQL),
		recordUnpaused: in(recordUnpausedSQL),
		recordMany:     in(recordManySQL),
		fresh:          in(freshSQL),
		known:          in(knownSQL),
		knownMany:      in(knownManySQL),
		store:          in(storeSQL),
		storeMany:      in(storeManySQL),
		unrecord:       in(unrecordSQL),
		storedCount:    in(storedCountSQL),
		letter:         in(letterSQL),
		letterReopen:   in(letterReopenSQL),
		letterReplayed: in(letterReplayedSQL),
		edited:         in(editedSQL),
		publishLetter:  in(publishLetterSQL),
		interpret:      interpretSQL,
		claim:          in(claimSQL),
		take:           in(takeSQL),
		isHead:         in(isHeadSQL),
		drop:           in(dropSQL),
		settle:         in(settleSQL),
		next:           in(nextSQL),
		resume:         in(resumeSQL),
		deferFollowers: in(deferSQL),
		active:         in(activeSQL),
		sweep:          in(sweepSQL),
		retry:          in(retrySQL),
		stillStored:    in(stillStoredSQL),
		declare:        in(declareSQL),
		stop:           in(stopSQL),
		undeclare:      in(undeclareSQL),
		declared:       in(declaredSQL),
		skip:           in(skipSQL),
		paused:         in(pausedSQL),
		dependency:     in(dependencySQL),
		dependencyIs:   in(dependencyIsSQL),
		dependencyTry:  in(dependencyTrySQL),
		step:           in(stepSQL),
		stepDone:       in(stepDoneSQL),
		starts:         in(startsSQL),
		start:          in(startSQL),
		takeBackStart:  in(takeBackStartSQL),
		forgetStart:    in(forgetStartSQL),
		watermark:      in(watermarkSQL),
		watermarkIs:    in(watermarkIsSQL),
		writeBackfill:  in(writeBackfillSQL),
		awaitsClient:   in(awaitsClientSQL),
	}
}

// beginning is beginSQL under the time-outs of c: a handler may compute, or wait for a lock, for as long as it may run.
func beginning(c Config) string {
	return fmt.Sprintf(beginSQL, millis(idleTimeout(c)), millis(c.Timeout))
}

// idleTimeout is the time without a statement after which Postgres ends a transaction: its client must be dead.
func idleTimeout(c Config) time.Duration { return c.Timeout + c.Grace + 10*time.Second }

func millis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }

const (
	// declareEvery is how often a node declares its types. declareFor is how long it then counts as running.
	declareEvery = nodes.Every
	declareFor   = nodes.DeclareFor

	// believeFor is how much longer its types are left for it. It may be alive and unable to say so: cut off from Postgres, or
	// with a pool whose connections slow handlers hold. Events that are stored in vain can be found (package waiting) and
	// handled; events that are skipped are gone.
	believeFor = time.Hour
)
