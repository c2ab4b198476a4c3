package inbox

import (
	"context"
	"time"
)

// NoOffset stands for the committed offset of a partition of which the group has none.
const NoOffset = -1

// Source is a consumer group: what Consume takes events from. Package kafkago has one for Kafka. Package sourcetest checks
// any other, and holds a small one in memory as an example.
type Source interface {
	// Open prepares to join the group, for one call of Consume. It need not reach a broker. An error ends Consume: return
	// one that names every setting that can never work, and nothing for what waiting may cure.
	//
	// handover is how long the Inbox may take, at most, to let its handlers finish after Generation.Over was closed
	// (Config.StopTimeout and Config.Grace). The group must bear with a member for longer than that.
	Open(ctx context.Context, handover time.Duration) (Session, error)
}

// Session is a membership in the group. One goroutine at a time calls its methods.
type Session interface {
	// Next joins the group and waits until it has given its partitions out, or until ctx ends. The generation before was
	// left. An error is logged and waited out, and Next is called again; one that wraps ErrConfiguration ends Consume.
	Next(ctx context.Context) (Generation, error)

	// Close leaves the group. It is called once, after the last generation was left, and nothing is called after it.
	Close()
}

// Generation is one distribution of the partitions among the members of the group.
type Generation interface {
	// Assigned returns the partitions of this node, and where reading of each starts. It answers the same all the time.
	Assigned() map[TopicPartition]Start

	// Over returns a channel that is closed when the group wants the partitions back. The group then waits for Leave, as
	// long as it bears with a member, before it gives them to another.
	Over() <-chan struct{}

	// Bounds returns the first offset that the partition's log holds and the one after its last. They are equal where the
	// log is empty. Calls of Bounds and Fetch for different partitions may be made at the same time.
	Bounds(ctx context.Context, tp TopicPartition) (first, end int64, err error)

	// Fetch returns a run of records from offset on, in the order of their offsets, and waits a moment (half a second, say)
	// where there is none yet; the page is empty then. The records are the caller's. Fetch returns an error that wraps
	// ErrOffsetOutOfRange when offset lies before the log's first or after its end, and never jumps over a record in
	// silence: that error ends Consume. Any other is logged and waited out.
	Fetch(ctx context.Context, tp TopicPartition, offset int64) (Page, error)

	// Commit commits, for each partition in offsets, the offset to go on from. One goroutine at a time calls it, also
	// after Over was closed, and never after Leave. An error loses nothing: what is not committed is read again.
	// When the group has given a partition to another member meanwhile, Commit must fail.
	Commit(ctx context.Context, offsets map[TopicPartition]int64) error

	// Leave says that this node has let go of all its partitions, and that the group may go on. It ends the generation if
	// that is not over. It may be called more than once, and does not wait.
	Leave()
}

// TopicPartition names a partition of a topic.
type TopicPartition struct {
	Topic     string
	Partition int
}

// Start says where reading of a partition starts.
type Start struct {
	// Committed is the offset that the group committed last, NoOffset where it has none.
	Committed int64

	// AdoptCommitted starts at Committed where Postgres has no position yet: for a group that another program has consumed
	// for so far. Otherwise a partition without a position is read from its first offset, since nothing in this database
	// shows that anything was handled.
	AdoptCommitted bool

	// SkipDeleted goes on after records that were deleted before they were handled. Otherwise Consume returns
	// ErrOffsetOutOfRange.
	SkipDeleted bool
}

// Page is a run of a partition's log.
type Page struct {
	Records []Record

	// Next is the offset to read from next. Offsets below it that have no record in the pages never had one to be handled:
	// compaction took it, or its transaction was aborted.
	Next int64
}

// Record is a record of a log: an event in the binary mode of the CloudEvents 1.0 binding for Kafka.
type Record struct {
	Offset  int64
	Key     []byte // nil = no key
	Value   []byte // nil = tombstone
	Headers []Header
	Time    time.Time // the log's, for events that carry none
}

// Header is a header of a record. A record may have several with one name.
type Header struct {
	Key   string
	Value []byte
}
