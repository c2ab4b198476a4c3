package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/process"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/retry"
)

// Config configures a Relay. The zero Config works and is safe.
type Config struct {
	// Schema is the Postgres schema that holdfast.Migrate created. Defaults to "holdfast".
	Schema string

	// Name identifies this relay and must be unique among all that run, such as a pod's name. At most 255 bytes.
	// Defaults to the host's name, the process id and a random part.
	Name string

	// Lease is how long lanes stay with a relay that gives no sign of life: the time before another relay takes over. A
	// relay whose saves fail stops publishing at half of it. Use the same value for all relays of a schema. A relay whose
	// Lease is less than half of another's believes that the other's clock was wrong, and takes its lanes. At least 500 ms.
	// Defaults to 5 s.
	Lease time.Duration

	// PollMin and PollMax bound the pause between two looks at an idle log. The pause doubles from PollMin to PollMax while
	// nothing is found. Default to 2 ms and 150 ms.
	PollMin, PollMax time.Duration

	// BatchSize is the number of events in a page, which is read by one statement, and the most that one call of the
	// publisher gets. Between 1 and 50000.
	// Defaults to 2,000.
	BatchSize int

	// TenantSeparator tells tenants apart: a key that has it begins with its tenant's name, as "acme/order-7" with "/". Then, while
	// some tenants have a backlog, events of the others overtake it, and wait for their own only. The order of keys holds. A crash, a
	// stop or a handover of a lane repeats what was ahead of the backlog: up to 20,000 events of a lane. Meanwhile four calls of the
	// publisher have events of the backlog, of all lanes of a relay, besides those that take over a second, and those of more than 32
	// partitions together (publish.Gatherer). At most 16 bytes. The same for all relays of a database, or their repeats are more. Not with a
	// publish.LanePublisher, whose promise is to repeat nothing.
	// Defaults to none: all events of a lane wait for each other.
	TenantSeparator string

	// Retry is for events that the broker refuses for what they are, such as one that is too large. Attempts counts the first
	// try too; after the last one the event becomes a dead letter. There are at least two, because a dead letter is made of a
	// parked event. Zero fields default to 5 attempts, a base of 1 s and a cap of 1 min. An unreachable broker, a
	// missing topic and a partition without a leader spend no attempts: the relay waits for them indefinitely.
	Retry retry.Policy

	// HoldKey keeps the later events of a key parked after its event became a dead letter, until a person replays or
	// discards it. Defaults to false: the key goes on.
	HoldKey bool

	// DeadLetterTopic publishes a notice of every dead letter to a Kafka topic too, each time an event is given up: "*.dlq"
	// is the event's topic followed by ".dlq", "dead-letters" is one topic for all. The notice goes through the log in the
	// transaction that writes the dead letter. It has no payload, because the broker has just refused that; the dead letter
	// has it. docs/operations/dead-letters.md lists the headers. Dead letters of events for such a topic are not published, nor are
	// those that a person makes of waiting events (holdfast waiting give-up). Create the topics first.
	// Defaults to "", off.
	DeadLetterTopic string

	// ParkAfter is how long a partition that is unavailable or does not answer may keep the cursor of a lane waiting. Then its
	// events are parked, and published when it takes them. They are parked after a second already if they keep other events
	// from being read. -1 means never: such a partition then holds its lane. Defaults to 10 s.
	ParkAfter time.Duration

	// MemoryBudget is how many bytes of events, with their headers, are in memory at a time, of all lanes together: those that
	// wait for an acknowledgement, also of a lane that was lost meanwhile, and those that are read ahead. Each is counted twice:
	// encoding it takes as much. A page is read when there is room for 4 MiB of events; what it has beyond that, because its last event
	// is large, counts too, and the next page waits for it. Parked events that are tried come on top: three
	// eighths of it for all lanes, at most 3 MiB a lane. At least 16 MiB. Defaults to 128 MiB.
	MemoryBudget int64

	// SegmentBytes is the size, large payloads included, at which the log rotates to its next segment. It has four. At least
	// 1 MiB. Defaults to 128 MiB.
	SegmentBytes int64

	// StopTimeout bounds how long Run takes to finish what is in progress after its context is done. Defaults to 15 s, which
	// is more than a publisher's own bound.
	StopTimeout time.Duration

	// Observer is notified of what the relay does. Defaults to nothing.
	Observer Observer

	// Logger gets what a person should see: lost lanes, held topics, dead letters. Of each message about topics, partitions or
	// events it gets at most 20 a minute, and then how many more there were. It never gets payloads, header values or
	// connection strings. Defaults to slog.Default().
	Logger *slog.Logger
}

var defaultRetry = retry.Policy{Attempts: 5, Base: time.Second, Cap: time.Minute}

// holdPolicy spaces the tries while something is unavailable. A try costs little; what waits for it after the end of an
// outage may be all events of a lane.
var holdPolicy = retry.Policy{Attempts: -1, Base: 100 * time.Millisecond, Cap: 2 * time.Second}

func (c Config) withDefaults() Config {
	if c.Schema == "" {
		c.Schema = sqlschema.Default
	}
	if c.Name == "" {
		c.Name = process.Name("relay")
	}
	for _, d := range []struct {
		field    *time.Duration
		standard time.Duration
	}{{&c.Lease, 5 * time.Second}, {&c.PollMin, 2 * time.Millisecond}, {&c.PollMax, max(150*time.Millisecond, c.PollMin)},
		{&c.ParkAfter, 10 * time.Second}, {&c.StopTimeout, 15 * time.Second}} {
		if *d.field == 0 {
			*d.field = d.standard
		}
	}
	if c.BatchSize == 0 {
		c.BatchSize = 2000
	}
	if c.MemoryBudget == 0 {
		c.MemoryBudget = 128 << 20
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 128 << 20
	}
	c.Retry = c.Retry.Or(defaultRetry)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// validate names every problem: field, value and rule.
func (c Config) validate() error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if err := sqlschema.Validate(c.Schema); err != nil {
		problems = append(problems, err)
	}
	if len(c.Name) > 255 {
		wrong("name is %d bytes long: it must be at most 255", len(c.Name))
	}
	if c.Lease < 500*time.Millisecond {
		wrong("lease is %v: it must be at least 500ms, so that a slow save does not lose the lanes", c.Lease)
	}
	if c.PollMin < time.Millisecond {
		wrong("poll min is %v: it must be at least 1ms", c.PollMin)
	}
	if c.PollMax < c.PollMin {
		wrong("poll max is %v: it must be at least poll min, %v", c.PollMax, c.PollMin)
	}
	if c.PollMax > c.Lease {
		wrong("poll max is %v: it must be at most the lease, %v", c.PollMax, c.Lease)
	}
	if c.BatchSize < 1 || c.BatchSize > 50_000 {
		wrong("batch size is %d: it must be between 1 and 50000", c.BatchSize)
	}
	if len(c.TenantSeparator) > 16 || strings.ContainsRune(c.TenantSeparator, 0) {
		wrong("tenant separator is %.60q: it must have at most 16 bytes, and no NUL", c.TenantSeparator)
	}
	if err := wire.ValidateLetterTopic(c.DeadLetterTopic); err != nil {
		problems = append(problems, err)
	}
	if c.ParkAfter < 0 && c.ParkAfter != -1 {
		wrong("park after is %v: it must be positive, 0 for the default, or -1 for never", c.ParkAfter)
	}
	if c.MemoryBudget < 16<<20 {
		wrong("memory budget is %d: it must be at least 16 MiB", c.MemoryBudget)
	}
	if c.SegmentBytes < 1<<20 {
		wrong("segment bytes is %d: it must be at least 1 MiB", c.SegmentBytes)
	}
	if c.StopTimeout < 0 {
		wrong("stop timeout is %v: it must be positive, or 0 for the default", c.StopTimeout)
	}
	if err := c.Retry.Validate("retry"); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
