package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
)

// This file is a stored event under a lease: how long it is ours.

// claimed is a row of `stored` under our lease.
type claimed struct {
	e         holdfast.Event
	hash      []byte
	place     int64
	partition *int32
	offset    *int64
	attempts  int // this one included: the claim counted it
	losses    int // tries in a row that lost their connection
	errors    []string
	letter    *int64        // the letter that this is the replay of
	age       time.Duration // since its first failure; 0 where it never failed
	token     string
	until     time.Time // when its lease ends, at the earliest
}

// late says that too little of the lease is left for its handler, which could then not commit.
func (s *claimed) late(c Config) bool { return time.Until(s.until) < c.Timeout+c.Grace }

// leased is a context for what has to be written of the event: it ends with the lease, and finishTimeout after ctx does. A
// lease that is nearly over may be nobody else's yet, and the token tells: finishTimeout is left in any case.
func (s *claimed) leased(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, end := withGrace(ctx, finishTimeout)
	ctx, cancel := context.WithTimeout(longer, max(time.Until(s.until), finishTimeout))
	return ctx, func() { cancel(); end() }
}

// errLeaseLost is said where a stored event is no longer ours.
var errLeaseLost = errors.New("the lease on the stored event was lost")
