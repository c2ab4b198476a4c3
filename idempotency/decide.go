package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Every decision about a request, without clock, database or context.

// stored is what the table holds of a key.
type stored struct {
	Fingerprint []byte
	Version     int16 // of the fingerprint
	State       string
	Answer      StoredAnswer
	Owner       [16]byte
	Fence       int64 // 0 in transaction mode
	Attempt     int
	Live        bool // its lease has not run out, by the database's clock
	CreatedAt   time.Time
	ExpiresAt   time.Time
	Expired     bool // by the database's clock
}

// What was found for a request whose key was looked up.
type found int

const (
	foundNothing  found = iota // run the handler
	foundAnswer                // replay it
	foundOther                 // the key is another request's
	foundPending               // the key is in use, or was, by a request under a lease
	foundUnusable              // the row cannot be trusted: neither run nor replay
)

// foundOf says what a key's row means for a request. nil: there is none.
func foundOf(s *stored, fingerprint []byte) found {
	switch {
	case s == nil || s.Expired:
		return foundNothing
	case s.Version != fingerprintVersion, len(s.Fingerprint) != len(fingerprint):
		return foundUnusable
	case !bytes.Equal(s.Fingerprint, fingerprint):
		return foundOther
	case s.State == statePending:
		return foundPending
	case s.State != stateComplete && s.State != stateOmitted, s.Answer.Status < 200 || s.Answer.Status > 599:
		return foundUnusable
	}
	if s.State == stateComplete {
		if hash := sha256.Sum256(s.Answer.Body); !bytes.Equal(hash[:], s.Answer.BodyHash) {
			return foundUnusable
		}
	}
	return foundAnswer
}

// claimable says that a claim under a fingerprint is worth trying: the claim itself decides.
func claimable(s *stored, fingerprint []byte) bool {
	switch foundOf(s, fingerprint) {
	case foundNothing:
		return true
	case foundPending:
		return !s.Live
	}
	return false
}

// States of a row.
const (
	statePending  = "pending" // under a lease
	stateComplete = "complete"
	stateOmitted  = "omitted" // its body was too long to keep
)

// What is kept of a handler's answer.
type disposition int

const (
	keepAll    disposition = iota // the effect and the answer
	keepAnswer                    // the answer; what the handler wrote is undone
	keepNone                      // nothing: the key is free again
)

// answerFacts is what decides that.
type answerFacts struct {
	status        int
	doNotStore    bool // the handler said so
	commitOnError bool
}

// decide says what becomes of an answer and of what its handler wrote.
func decide(c answerFacts, store func(status int) bool) disposition {
	switch {
	case c.status >= 500:
		return keepNone
	case c.status < 400: // The client hears that it is done: so it has to be, and a repeat has to get the same.
		return keepAll
	case c.doNotStore || !store(c.status):
		return keepNone
	case c.commitOnError:
		return keepAll
	default:
		return keepAnswer
	}
}

// uncommitted says of a batch with a COMMIT at its end, by what the server said of that and by the batch's error, why it was
// not carried out. nil: it was. An error that wraps errUnknown: it may have been.
func uncommitted(ended string, err error) error {
	var pg *pgconn.PgError
	switch {
	case ended == "COMMIT": // whatever happened behind it
		return nil
	case err == nil:
		return pgx.ErrTxCommitRollback
	case !errors.As(err, &pg), sessionOver(pg):
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	return err
}

// sessionOver says that an error is the end of a session, of the server's or of a pooler's before it, and no answer to the
// statement that was on its way: a server that is stopped during a COMMIT carries it out, and says this afterwards.
func sessionOver(pg *pgconn.PgError) bool {
	switch {
	case pg.Severity == "FATAL", pg.Severity == "PANIC", pg.SeverityUnlocalized == "FATAL", pg.SeverityUnlocalized == "PANIC":
		return true
	}
	return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "57P") // older poolers call them errors
}

// leaseLost says what became of a lease by the last try to renew it. A lease that may have run out is as good as lost: what
// still counts on it would do so beside another's.
func leaseLost(mine bool, err error, mayHaveRunOut bool) bool {
	if err != nil {
		return mayHaveRunOut
	}
	return !mine
}

// bodyless says that an answer of this status has no body (RFC 9110, section 6.4.1).
func bodyless(status int) bool {
	return status < 200 || status == http.StatusNoContent || status == http.StatusNotModified
}
