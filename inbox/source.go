package inbox

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// NoOffset stands for the committed offset of a partition if the group has none.
const NoOffset = -1

// Source is a consumer group, from which Consume takes events. Packages kafkago and contrib/franz have one for Kafka,
// contrib/nats for NATS JetStream. Package sourcetest checks any other, and has a small one in memory as an example.
type Source interface {
	// Open prepares to join the group, for one call of Consume. It need not reach a broker. An error ends Consume: return one
	// that names every setting that can never work, and none for what may come right by waiting.
	//
	// handover is the longest time that the Inbox needs to let its handlers finish after Generation.Over was closed
	// (Config.StopTimeout and Config.Grace). The group must keep a member for longer than that.
	Open(ctx context.Context, handover time.Duration) (Session, error)
}

// NamedSource is a Source that says of which messaging system it is, by the name that OpenTelemetry's semantic conventions for
// messaging have for it (messaging.system), as "nats". Traces and metrics then say so. The name must not change. A Source that
// is not a NamedSource is taken for one of Kafka.
type NamedSource interface {
	Source
	System() string
}

// systemOf is the messaging system of a source.
func systemOf(s Source) string {
	if named, ok := s.(NamedSource); ok {
		return named.System()
	}
	return systemKafka
}

const systemKafka = "kafka"

// Session is a membership in the group. One goroutine at a time calls its methods.
type Session interface {
	// Next joins the group. It waits until the group has assigned its partitions, or until ctx ends. The caller has called
	// Leave of the generation before. An error is logged and waited out, and Next is called again; one that wraps ErrConfiguration ends
	// Consume.
	Next(ctx context.Context) (Generation, error)

	// Close leaves the group. It is called once, last, after the last generation was left.
	Close()
}

// Generation is one assignment of the partitions to the members of the group.
type Generation interface {
	// Assigned returns the partitions of this node, and where to start reading each. Its answer does not change.
	Assigned() map[TopicPartition]Start

	// Over returns a channel that is closed when the group wants the partitions back. Before it gives them to another member, the
	// group waits for Leave, for as long as it keeps a member.
	Over() <-chan struct{}

	// Bounds returns the first offset in the partition's log and the one after its last. They are equal if the log is empty.
	// Bounds and Fetch may be called for different partitions at once.
	Bounds(ctx context.Context, tp TopicPartition) (first, end int64, err error)

	// Fetch returns a run of records from offset on, in the order of their offsets. If there are none yet, it waits for a moment
	// (such as half a second) and returns an empty page. The records belong to the caller.
	//
	// The records of a page, unpacked, have at most about maxBytes. One that alone has more comes first in its page, without
	// its value (Record.LeftOut); Fetch is then called again for it with more bytes, if there are as many. In all Fetch takes
	// no more than a few times maxBytes of memory, whatever a record unpacks to. If that is impossible, the error wraps
	// a *TooLargeError.
	//
	// If offset lies before the log's first or after its end, the error wraps ErrOffsetOutOfRange, which holds the partition:
	// Fetch never skips a record silently. Any other error is logged and waited out.
	Fetch(ctx context.Context, tp TopicPartition, offset, maxBytes int64) (Page, error)

	// Commit commits, for each partition in offsets, the offset at which to continue. One goroutine at a time calls it, also after
	// Over was closed, and never after Leave. An error loses nothing: what is not committed is read again. Commit must fail
	// when the group has given a partition to another member.
	Commit(ctx context.Context, offsets map[TopicPartition]int64) error

	// Leave says that this node has released all its partitions, and that the group may go on. It ends the generation if that is
	// not over. It may be called more than once, and does not wait.
	Leave()
}

// Grouped is a Generation that names its group. Groups that share a Config.Consumer by mistake are found by it and said in the
// log.
type Grouped interface {
	Generation

	// GroupID returns the group's name. It does not change.
	GroupID() string
}

// TopicPartition names a partition of a topic.
type TopicPartition struct {
	Topic     string
	Partition int
}

// Start says where to start reading a partition.
type Start struct {
	// Committed is the offset that the group committed last; NoOffset if it has none.
	Committed int64

	// AdoptCommitted starts at Committed if Postgres has no position yet: for a group that another program has consumed for.
	// Otherwise a partition without a position is read from its first offset, since nothing in this database shows that
	// anything was handled.
	AdoptCommitted bool

	// SkipDeleted continues after records that were deleted before they were handled. Otherwise Consume holds the partition
	// (ErrOffsetOutOfRange).
	SkipDeleted bool
}

// Page is a run of a partition's log.
type Page struct {
	Records []Record

	// Next is the next offset to read. Offsets below it without a record in the pages have none to handle: compaction removed
	// it, or its transaction was aborted.
	Next int64

	// Wants is with how many bytes the next call of Fetch would work best; 0 if with as many as this one. A source that has to
	// unpack again what comes before a record asks for more in this way.
	Wants int64

	// Withheld is how many offsets the log has from Next on and does not give out yet, because a producer's transaction is open. It is
	// 0 for a page with records, and of a source that cannot know. If it lasts, the log says so.
	Withheld int64
}

// Record is a record of a log: an event in the binary or the structured mode of the CloudEvents 1.0 binding for Kafka. A Source of another
// broker gives headers the names that this binding has, such as ce_id.
type Record struct {
	Offset  int64
	Key     []byte // nil = no key
	Value   []byte // nil = tombstone
	Headers []Header
	Time    time.Time // the log's time, for events that carry none

	// LeftOut is 0, or about how many bytes the record has if its value was left out because they are too many. Long headers
	// and a long key may be left out too.
	LeftOut int64
}

// TooLargeError is the error of a Fetch that cannot go on within its bytes. With Needs bytes it could; 0 means that no number
// helps. Consume holds the partition if there are fewer.
type TooLargeError struct {
	Needs int64
	Next  int64 // the offset after the records that cannot be read
	Err   error
}

func (e *TooLargeError) Error() string { return foreign.Text(e.Err) }

func (e *TooLargeError) Unwrap() error { return e.Err }

// Header is a header of a record. A record may have several with one name.
type Header struct {
	Key   string
	Value []byte
}
