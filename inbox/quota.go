package inbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file keeps the events that wait within bounds, so that a key that nobody attends to cannot fill the database.

// countEvery is how old a count of all that is stored may be.
const countEvery = 3 * time.Second

// quota keeps what is stored within Config.MaxStored and Config.MaxStoredKey.
type quota struct {
	*env
	usage usage
}

// usage is how many events of the consumer are stored, about.
type usage struct {
	mu       sync.Mutex
	events   int
	counted  time.Time
	counting bool // somebody is at it: the others go by the old figure

	queues map[[2]string]measuredQueue // of long queues, by topic and key
}

// measuredQueue is what is left of a long queue's limit until it is measured again. To measure it reads all of it, which is
// too much for every event that joins it.
type measuredQueue struct {
	measured time.Time
	left     int
}

const (
	// measureEach is how long a queue may be that is measured for every event.
	measureEach = 100

	// maxMeasuredQueues is how many long queues are remembered.
	maxMeasuredQueues = 1000
)

// enter takes some more into a queue that was measured a moment ago. False: measure it.
func (s *usage) enter(topic, key string, events int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	room, known := s.queues[[2]string{topic, key}]
	if !known || room.left < events || now.Sub(room.measured) >= countEvery {
		return false
	}
	room.left -= events
	s.queues[[2]string{topic, key}] = room
	return true
}

// measured notes how long a queue is. Half of what is left may enter before it is measured again: others may fill the rest.
func (s *usage) measured(topic, key string, length, limit int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if length < measureEach {
		delete(s.queues, [2]string{topic, key})
		return
	}
	if s.queues == nil || len(s.queues) >= maxMeasuredQueues {
		s.queues = map[[2]string]measuredQueue{}
	}
	s.queues[[2]string{topic, key}] = measuredQueue{now, min((limit-length)/2, length)}
}

// due says that the figure is old, and the caller is to count. It has to say what came of it.
func (s *usage) due(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counting || now.Sub(s.counted) < countEvery {
		return false
	}
	s.counting = true
	return true
}

// found takes a count, or its failure: then the next who asks counts.
func (s *usage) found(events int, now time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counting = false
	if err == nil {
		s.events, s.counted = events, now
	}
}

// leave takes back what add has counted, where it was not stored.
func (s *usage) leave(events int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = max(s.events-events, 0)
}

// add takes some more in, unless more would wait then than limit allows; a negative one allows all. It says how many wait.
func (s *usage) add(events, limit int) (waiting int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit >= 0 && s.events+events > limit {
		return s.events, false
	}
	s.events += events
	return s.events, true
}

// roomy says that so many more would fit without another count. It takes none in.
func (s *usage) roomy(events, limit int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return limit < 0 || now.Sub(s.counted) < countEvery && s.events+events <= limit
}

// measures is how long the queue of a key may be, where that has to be looked at before so many events join it; nil where not.
func (qu *quota) measures(topic, key string, events int) *int32 {
	limit := qu.c.MaxStoredKey
	if key == "" || limit <= 0 || qu.usage.enter(topic, key, events, time.Now()) {
		return nil
	}
	most := int32(min(limit, 1<<30))
	return &most
}

// checkLength says, by an error that wraps ErrFull, that nothing could join a queue, by how long it was.
func (qu *quota) checkLength(topic, key string, length int) error {
	limit := qu.c.MaxStoredKey
	qu.usage.measured(topic, key, min(length, limit), limit, time.Now())
	if length < limit {
		return nil
	}
	return fmt.Errorf("%w: %d events of one key of %s wait, and MaxStoredKey is %d: see to the first of them (holdfast status), or raise the limit",
		ErrFull, length, topic, limit)
}

// count counts all that is stored, where the last count is old. It is called before a lock of a key is taken: the
// count may take a while.
func (qu *quota) count(ctx context.Context, tx pgx.Tx) error {
	limit := qu.c.MaxStored
	if limit < 0 || !qu.usage.due(time.Now()) {
		return nil
	}
	var events int
	err := tx.QueryRow(ctx, qu.sql.storedCount, qu.c.Consumer, int32(min(limit, 1<<30))).Scan(&events)
	qu.usage.found(events, time.Now(), err)
	if err != nil {
		return fmt.Errorf("count what is stored: %w", err)
	}
	return nil
}

// enter takes one more event in. It says, by an error that wraps ErrFull, that as many wait as may.
func (qu *quota) enter() error {
	limit := qu.c.MaxStored
	if limit < 0 {
		return nil
	}
	if events, ok := qu.usage.add(1, limit); !ok {
		return fmt.Errorf("%w: %d events of the consumer wait, and MaxStored is %d: see to what fails (holdfast status), or raise the limit",
			ErrFull, events, limit)
	}
	return nil
}
