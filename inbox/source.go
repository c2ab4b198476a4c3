package inbox

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/wire"
)

// source is a consumer group, as far as we need one. kafka.go implements it over kafka-go; tests need no broker.
type source interface {
	// next waits until the group has given partitions out. An error other than ctx's is waited out, unless it wraps
	// ErrConfiguration: that ends Consume.
	next(ctx context.Context) (generation, error)

	// close leaves the group, after the last generation's leave.
	close()
}

// generation is one distribution of the partitions among the members of the group.
type generation interface {
	// assigned says which partitions are ours, and the group's committed offset of each, noOffset where there is none.
	assigned() map[topicPartition]int64

	// over is closed when the partitions are to be given up.
	over() <-chan struct{}

	// bounds returns the first offset of the log and the one after its last.
	bounds(ctx context.Context, tp topicPartition) (first, end int64, err error)

	// fetch returns what lies at offset and after it, and waits a moment where nothing does. The error wraps
	// ErrOffsetOutOfRange when the log does not hold the offset. Calls for different partitions may be made at once.
	fetch(ctx context.Context, tp topicPartition, offset int64) (page, error)

	// commit commits offsets to the group. Called by one goroutine at a time, also after over.
	commit(offsets map[topicPartition]int64) error

	// leave says that we have let go of every partition, and that the group may go on: it ends the generation if that is
	// not over.
	leave()
}

type topicPartition struct {
	topic     string
	partition int
}

// page is a run of a partition's log.
type page struct {
	records []record
	next    int64 // the offset to read from next: offsets below it that have no record never had one for us
}

type record struct {
	offset  int64
	key     []byte
	value   []byte
	headers []wire.Header
	at      time.Time
}
