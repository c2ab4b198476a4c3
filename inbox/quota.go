package inbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file bounds how many events are stored, so that a key that nobody looks after cannot fill the database.

// countEvery is how old a count of the stored events may be.
const countEvery = 3 * time.Second

// quota keeps what is stored within Config.MaxStored and Config.MaxStoredKey.
type quota struct {
	*env
	usage  usage
	admits func(eventType string) bool // an event of the type may be stored beyond MaxStored: dependencies.admits
}

// usage estimates how many events of the consumer are stored.
type usage struct {
	mu       sync.Mutex
	events   int
	counted  time.Time
	counting bool // one caller is counting: the others use the old figure

	queues map[[2]string]measuredQueue // of long queues, by topic and key
}

// measuredQueue is how much may still join a long queue before it is measured again. To measure a queue is to read all of it,
// which is too much for every event that joins it.
type measuredQueue struct {
	measured time.Time
	left     int
}

const (
	// measureEach is the length up to which a queue is measured for every event.
	measureEach = 100

	// maxMeasuredQueues is how many long queues are remembered.
	maxMeasuredQueues = 1000
)

// enter counts events into a queue that was measured recently. It returns false when the queue has to be measured.
func (u *usage) enter(topic, key string, events int, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	room, known := u.queues[[2]string{topic, key}]
	if !known || room.left < events || now.Sub(room.measured) >= countEvery {
		return false
	}
	room.left -= events
	u.queues[[2]string{topic, key}] = room
	return true
}

// measured notes the length of a queue. Half of what is left may join before it is measured again, since other nodes may fill the
// rest.
func (u *usage) measured(topic, key string, length, limit int, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if length < measureEach {
		delete(u.queues, [2]string{topic, key})
		return
	}
	if u.queues == nil || len(u.queues) >= maxMeasuredQueues {
		u.queues = map[[2]string]measuredQueue{}
	}
	u.queues[[2]string{topic, key}] = measuredQueue{now, min((limit-length)/2, length)}
}

// due reports that the figure is old and that the caller has to count. The caller must call found afterwards.
func (u *usage) due(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.counting || now.Sub(u.counted) < countEvery {
		return false
	}
	u.counting = true
	return true
}

// found takes in a count, or its failure: then the next caller counts.
func (u *usage) found(events int, now time.Time, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.counting = false
	if err == nil {
		u.events, u.counted = events, now
	}
}

// leave takes back what add counted.
func (u *usage) leave(events int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.events = max(u.events-events, 0)
}

// add counts events in, unless more than limit would then be stored. A negative limit allows all. It returns how many are stored.
func (u *usage) add(events, limit int) (waiting int, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if limit >= 0 && u.events+events > limit {
		return u.events, false
	}
	u.events += events
	return u.events, true
}

// roomy reports that so many more would fit without another count. It counts none in.
func (u *usage) roomy(events, limit int, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return limit < 0 || now.Sub(u.counted) < countEvery && u.events+events <= limit
}

// measures is the limit of a queue if it has to be measured before these events join it; nil if it need not be.
func (qu *quota) measures(topic, key string, events int) *int32 {
	limit := qu.c.MaxStoredKey
	if key == "" || limit <= 0 || qu.usage.enter(topic, key, events, time.Now()) {
		return nil
	}
	most := int32(min(limit, 1<<30))
	return &most
}

// checkLength takes in the length of a queue. It returns an error that wraps ErrFull if nothing could join.
func (qu *quota) checkLength(topic, key string, length int) error {
	limit := qu.c.MaxStoredKey
	qu.usage.measured(topic, key, min(length, limit), limit, time.Now())
	if length < limit {
		return nil
	}
	return fmt.Errorf("%w: %d events of one key of %s wait, and MaxStoredKey is %d: look at the first of them (holdfast status), or raise the limit",
		ErrFull, length, topic, limit)
}

// count counts all stored events if the last count is old. It comes before the lock of a key, because it may take a while.
func (qu *quota) count(ctx context.Context, db rowQuerier) error {
	limit := qu.c.MaxStored
	if limit < 0 || !qu.usage.due(time.Now()) {
		return nil
	}
	var events int
	err := db.QueryRow(ctx, qu.sql.storedCount, qu.c.Consumer, int32(min(limit, 1<<30))).Scan(&events)
	qu.usage.found(events, time.Now(), err)
	if err != nil {
		return fmt.Errorf("count what is stored: %w", err)
	}
	return nil
}

// roomy reports that so many events of a key could be stored, as far as one can tell: others of the key may be stored already.
func (qu *quota) roomy(ctx context.Context, events int) bool {
	if limit := qu.c.MaxStoredKey; limit >= 0 && limit < 2*events {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	return qu.count(ctx, qu.pool) == nil && qu.usage.roomy(events, qu.c.MaxStored, time.Now())
}

// enter counts events in, all or none. It returns an error that wraps ErrFull when too many are stored. leave takes back those whose
// transaction did not commit. A transaction of the caller may still be rolled back: then the next count is right again.
func (qu *quota) enter(ds ...*delivery) error {
	limit := qu.c.MaxStored
	if limit < 0 {
		return nil
	}
	events, ok := qu.usage.add(len(ds), limit)
	if !ok && len(ds) == 1 && qu.admits(ds[0].e.Type) {
		_, ok = qu.usage.add(1, -1)
	}
	if !ok {
		return fmt.Errorf("%w: %d events of the consumer wait, and MaxStored is %d: look at what fails (holdfast status), or raise the limit",
			ErrFull, events, limit)
	}
	for _, d := range ds {
		d.counted = true
	}
	return nil
}

// leave ends enter for events that were not stored. It does nothing for others.
func (qu *quota) leave(ds ...*delivery) {
	for _, d := range ds {
		if d.counted {
			d.counted = false
			qu.usage.leave(1)
		}
	}
}
