package inbox

import (
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file computes delays. It is pure: values in, values out.

// The shortest and the longest delays. databaseCap is also how long a consumer may go on waiting once the database, or the
// broker, is back: so it is short, although an outage may be long.
const (
	contendedBase, contendedCap = 2 * time.Millisecond, 200 * time.Millisecond
	databaseBase, databaseCap   = 50 * time.Millisecond, 2 * time.Second
	fullBase, fullCap           = 500 * time.Millisecond, 10 * time.Second
	immediateBase, immediateCap = 20 * time.Millisecond, 200 * time.Millisecond
)

// capacityDelay is how long a partition waits before it tries the next event that found no room. tries counts tries in a row
// that found none. With many events waiting, each is tried about as often as if it were alone, but the partition tries at
// most every fullBase.
func capacityDelay(tries, waiting int, random float64) time.Duration {
	return max(loop.Spread(fullBase, fullCap, tries, random)/time.Duration(waiting), fullBase)
}
