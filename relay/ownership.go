package relay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// ownership is what a relay knows of a lane's row from the claim on: under which epoch the lane is ours, until when, how far it is
// published, and how much of that is durable.
//
// It begins with the answer to the claim, where cursor and saved are the same. From then on
//
//   - run's goroutine moves the cursor past what is settled (reached), and writes it in transactions of the lane's own (wrote);
//   - the saver makes it durable and renews the lease for all lanes of the relay at once (toSave, savedUpTo);
//   - and it ends when the relay releases the lane, or when lost is called: by a save that finds another owner, or by the poller
//     when the connection to the database was lost.
//
// Invariants:
//
//   - The cursor never moves back, and saved never passes it.
//   - The database holds saved, unless doubtful says that it may hold more: then the lane is dropped, and nothing of it is saved
//     any more. A cursor in memory that is older must not overwrite what a transaction of ours may have written.
//   - leaseUntil is counted from before the statement that renewed the lease. So we hold the lease to be over before others do.
//   - published is a total, which never falls: a save says it again, whatever became of the one before. Saves of a lane are numbered in
//     the order in which they read it, so that of the row does not fall either.
//   - While a transaction of the lane's own is open (openTransactions), no save writes the lane: its row is locked then, and
//     the transaction may write a newer cursor.
//
// The claim sets number, epoch, token and published. Nothing changes the first three. Methods may be called by any goroutine; toSave and
// savedUpTo are a pair, which the saver's mutex keeps together.
type ownership struct {
	number int
	epoch  int64
	token  string // of the incarnation of the database in which the lane was claimed
	lost   context.CancelCauseFunc

	mu         sync.Mutex
	cursor     cursor       // published up to here; a save makes it durable
	saved      cursor       // what the database holds
	leaseUntil time.Time    // by our monotonic clock
	unsaved    passedEvents // what cursor is past and saved may not be, for the producer

	published atomic.Int64 // events that the broker has acknowledged since the lane was created, as the claim and the answers since say

	openTransactions int         // our transactions that are open, or whose end is not recorded yet; guarded by the saver's mutex
	leftOut          atomic.Bool // by the last save, for the sake of a transaction
	doubtful         atomic.Bool // a transaction of ours failed, or its COMMIT was not answered: our memory may be wrong
}

// publishedUpTo is how far the lane is published.
func (o *ownership) publishedUpTo() cursor {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cursor
}

// reached moves the cursor, in memory, past what is settled.
func (o *ownership) reached(c cursor, past passedEvents) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cursor = c
	o.tell(past)
}

// wrote notes that a transaction of the lane's own was committed: it wrote c and renewed the lease.
func (o *ownership) wrote(c cursor, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cursor, o.saved, o.leaseUntil = c, c, until
}

// wrotePast adds what is durable by such a transaction. The producer hears of it with the next save.
func (o *ownership) wrotePast(past passedEvents) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tell(past)
}

func (o *ownership) tell(past passedEvents) {
	o.unsaved.events = append(o.unsaved.events, past.events...)
	if !past.readAt.IsZero() {
		o.unsaved.readAt = past.readAt
	}
}

// toSave is what a save writes. If further is false, only the place within a window has changed, or nothing.
func (o *ownership) toSave() (c cursor, further bool, past passedEvents) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cursor, o.cursor.done != o.saved.done || o.cursor.upto != o.saved.upto, o.unsaved
}

// savedUpTo notes that a save of what toSave returned has succeeded: all of it is durable, and the lease is renewed.
func (o *ownership) savedUpTo(c cursor, past passedEvents, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.saved, o.leaseUntil = c, until
	o.unsaved.events = append([]publish.EventName(nil), o.unsaved.events[len(past.events):]...)
}

// behind says that something is published which the database does not know of.
func (o *ownership) behind() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.saved != o.cursor
}

// renewedWithin says whether a lease of this length was renewed no longer than age ago.
func (o *ownership) renewedWithin(age, lease time.Duration, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return now.Before(o.leaseUntil.Add(age - lease))
}
