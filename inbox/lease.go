package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file is a stored event under a lease: until when it belongs to this node.

// claimed is a row of `stored` under a lease of this node.
type claimed struct {
	e         holdfast.Event
	hash      []byte
	place     int64
	partition *int32
	offset    *int64
	attempts  int // with the present one, which the claim counted
	losses    int // tries in a row that spent no attempt: failure.History.Row
	errors    []string
	letter    *int64        // the dead letter that this event is a replay of
	age       time.Duration // since its first failure; 0 if it never failed
	nextAt    time.Time     // when it came due, by the database's clock
	overdue   time.Duration // since then
	token     string
	until     time.Time // the lease lasts at least until then
	reserved  int64     // of storedMemory
	left      bool      // the next event of the key waits for a claim
	alone     bool      // it has the turn of suspects
	tries     []string  // what it tries, until it is told how that ended (trial.go)
}

// kafkaPartition is where the event came from, -1 if not from Kafka.
func (cl *claimed) kafkaPartition() int {
	if cl.partition == nil {
		return -1
	}
	return int(*cl.partition)
}

// silent is how many attempts before this one ended without a word. Of an event with as many errors as are kept nobody can tell.
func (cl *claimed) silent() int { return min(cl.attempts-1, failure.MaxErrors) - len(cl.errors) }

// suspect reports that the event may have ended its process.
func (cl *claimed) suspect() bool { return cl.silent() > 0 }

// unsaid are errors for the silent attempts, once one has ended with an error: the event is no suspect any more.
func (cl *claimed) unsaid() (texts []string) {
	for range cl.silent() {
		texts = append(texts, failure.BoundedError(failure.Ours("nothing was recorded of an attempt: the process ended, or lost it")))
	}
	return texts
}

// late reports that the lease may end before the handler does. Its transaction could then not commit.
func (cl *claimed) late(c Config) bool { return time.Until(cl.until) < c.Timeout+c.Grace }

// leased is a context for writing down what became of the event. It ends with the lease, or finishTimeout after ctx ends. It
// always lasts for finishTimeout: an expired lease may not be taken yet, and its token tells.
func (cl *claimed) leased(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, end := loop.WithGrace(ctx, finishTimeout)
	ctx, cancel := context.WithTimeout(longer, max(time.Until(cl.until), finishTimeout))
	return ctx, func() { cancel(); end() }
}

// errLeaseLost means that a stored event no longer belongs to this node.
var errLeaseLost = errors.New("the lease on the stored event was lost")
