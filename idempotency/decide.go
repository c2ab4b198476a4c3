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

	"github.com/holdfast-go/holdfast/idempotency/store"
)

// This file holds every decision about a request, without clock, database or context.

// stored is a key's row.
type stored struct {
	Fingerprint []byte
	Version     int16 // of the fingerprint
	State       string
	Answer      store.Answer
	Owner       [16]byte
	Fence       int64 // 0 in transaction mode
	Attempt     int
	Live        bool // the lease has not run out, by the database's clock
	CreatedAt   time.Time
	ExpiresAt   time.Time
	Expired     bool // by the database's clock
}

// found is the verdict on a request whose key was looked up.
type found int

const (
	foundNothing  found = iota // run the handler
	foundAnswer                // replay it
	foundOther                 // a different request has the key
	foundPending               // a request under a lease uses the key, or did
	foundUnusable              // the row cannot be trusted: do not run or replay
)

// foundOf decides what a key's row means for a request with this fingerprint. s is nil if there is no row.
func foundOf(s *stored, fingerprint []byte) found {
	switch {
	case s == nil || s.Expired:
		return foundNothing
	case !comparableVersions(s.Version, int16(fingerprint[0])), len(s.Fingerprint) != sha256.Size && len(s.Fingerprint) != wholeSize:
		return foundUnusable
	case !s.hasHash(fingerprint):
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

// hasHash reports whether the row has the hash of a fingerprint, and its version. One of the two may be of a build without checksums.
func (s *stored) hasHash(fingerprint []byte) bool {
	return s.Version == int16(fingerprint[0]) && bytes.Equal(comparedOf(s.Fingerprint), comparedOf(fingerprint[1:]))
}

// comparableVersions reports whether fingerprints of two versions, of a row and of a request, say whether they are of one request.
func comparableVersions(row, request int16) bool {
	switch row {
	case versionForm: // An earlier build may have stored the form of a document whose bytes count now.
		return request == versionForm
	case versionBytes:
		return request == versionForm || request == versionBytes
	case versionHostForm, versionHostBytes:
		return request == versionHostForm || request == versionHostBytes
	}
	return false
}

// claimable reports whether it is worth trying to claim the key under a fingerprint. The claim itself decides.
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
	stateOmitted  = "omitted" // the body was too long to store
)

// disposition is the verdict on a handler's answer.
type disposition int

const (
	keepAll    disposition = iota // keep the effect and the answer
	keepAnswer                    // keep the answer; undo what the handler wrote
	keepNone                      // keep nothing: the key is free again
)

// answerFacts are the facts about an answer that decide what is kept.
type answerFacts struct {
	status        int  // 0 if it wrote none
	doNotStore    bool // the handler called DoNotStore
	commitOnError bool
}

// decide says what is kept of an answer and of what its handler wrote.
func decide(c answerFacts, stores func(status int) bool) disposition {
	switch {
	case c.status == 0, c.status >= 500:
		return keepNone
	case c.status < 400: // The client learns that it is done, so it must be done, and a repeat must get the same answer.
		return keepAll
	case c.doNotStore:
		return keepNone
	case c.commitOnError:
		return keepAll
	case !stores(c.status):
		return keepNone
	default:
		return keepAnswer
	}
}

// uncommitted returns why a batch that ends with COMMIT was not carried out. ended is the server's answer to the
// COMMIT, err the batch's error. It returns nil if the batch was carried out. An error that wraps errUnknown means that
// it may have been.
func uncommitted(ended string, err error) error {
	var pg *pgconn.PgError
	switch {
	case ended == "COMMIT": // whatever happened after it
		return nil
	case err == nil:
		return pgx.ErrTxCommitRollback
	case !errors.As(err, &pg), sessionOver(pg):
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	return err
}

// sessionOver reports whether an error ends a session, of the server or of a pooler before it, and so is no answer to
// the statement. A server that stops during a COMMIT carries it out and then reports this.
func sessionOver(pg *pgconn.PgError) bool {
	switch {
	case pg.Severity == "FATAL", pg.Severity == "PANIC", pg.SeverityUnlocalized == "FATAL", pg.SeverityUnlocalized == "PANIC":
		return true
	}
	return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "57P") // older poolers send them with severity ERROR
}

// bodyless reports whether an answer with this status has no body (RFC 9110, section 6.4.1).
func bodyless(status int) bool {
	return status < 200 || status == http.StatusNoContent || status == http.StatusNotModified
}
