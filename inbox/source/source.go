// Package source is what a consumer group is to an inbox: implement Source to consume from another log than those that kafkago, contrib/franz
// and contrib/nats know. Package sourcetest checks an implementation, and has a small one in memory as an example.
//
// A Source opens a Session, its membership in the group. The Session has one Generation after the other: an assignment of
// partitions, of which the inbox fetches pages, and to which it commits offsets. What else a source can do it says by the interfaces
// beside these: Named, Grouped, Bounded, Incomplete and Incremental.
//
// Handlers need nothing of this.
package source

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Errors of a source that mean something to the inbox. Their errors wrap them.
var (
	// ErrConfiguration says that a setting can never work. It ends Consume and ConsumeUntil.
	ErrConfiguration = errors.New("configuration")

	// ErrOffsetOutOfRange says that a partition's log does not hold the next offset to read. Consume holds that partition, and goes on with
	// the others.
	ErrOffsetOutOfRange = errors.New("offset is out of range")
)

// NoOffset stands for the committed offset of a partition if the group has none.
const NoOffset = -1

// Source is a consumer group, from which inbox.Inbox.Consume takes events.
type Source interface {
	// Open prepares to join the group, for one call of Consume. It need not reach a broker. An error ends Consume: return one
	// that names every setting that can never work, and none for what may come right by waiting.
	//
	// handover is the longest time that the inbox needs to let its handlers finish after Generation.Over was closed
	// (inbox.Config.StopTimeout and Grace). The group must keep a member for longer than that.
	Open(ctx context.Context, handover time.Duration) (Session, error)
}

// Named is a Source that says of which messaging system it is, by the name that OpenTelemetry's semantic conventions for
// messaging have for it (messaging.system), as "nats". Traces and metrics then say so. The name must not change. A Source that
// is not a Named, or says "", is taken for one of Kafka.
type Named interface {
	Source
	System() string
}

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

// Grouped is a Generation that names its group. Groups that share an inbox.Config.Consumer by mistake are found by it and said in the
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

// Bounded is a Session that knows where its topics begin and end, for inbox.Inbox.ConsumeUntil.
type Bounded interface {
	Session

	// Extents returns the extent of each partition of the topics. at asks for Extent.At; if it is zero, At is End. An error is logged
	// and waited out; one that wraps ErrConfiguration, as for a topic that does not exist, ends ConsumeUntil. It may be called beside the
	// other methods.
	Extents(ctx context.Context, at time.Time) (map[TopicPartition]Extent, error)
}

// Extent is what a partition's log holds. The offsets may be without a record, where compaction or a transaction left a gap.
type Extent struct {
	First int64 // the log's first offset
	End   int64 // the offset after the last record that can be read now: what an open transaction holds back is not
	At    int64 // the first offset of a record of the asked time or later; End if there is none
}

// Incomplete is a Generation that knows which of its topics do not exist. Nothing is read of them, and nothing fails: the log says it
// once a minute.
type Incomplete interface {
	Generation

	// MissingTopics returns the topics of the group that did not exist when it was last looked; nil if that is not known.
	MissingTopics() []string
}

// Incremental is a Generation whose partitions come and go while it lasts. Assigned returns those of the beginning.
//
// If nobody has called Changes, a change ends the generation: Over is closed, and the next generation has all partitions.
type Incremental interface {
	Generation

	// Changes returns a channel of what changes after the beginning, in order. It is the same at every call, and nothing comes after
	// Over was closed.
	Changes() <-chan Change

	// Release says that this node has released some of the partitions that a change revoked, so that the group may give them to
	// others. Bounds, Fetch and Commit are not called for them any more. It does not wait, and many goroutines may call it at once.
	Release(of []TopicPartition)
}

// Change is a change of the partitions of a generation.
type Change struct {
	// Added are new partitions, and where to start reading each. Nobody else has them any more.
	Added map[TopicPartition]Start

	// Revoked are those that the group wants back. It waits for Incremental.Release, for as long as it keeps a member.
	Revoked []TopicPartition
}
