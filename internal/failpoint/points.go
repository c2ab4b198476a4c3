package failpoint

// Point is a place between two steps where it matters that a process may end.
//
// Its comment says what lies before it | what lies after it.
type Point string

// The producer.
const (
	OutboxWriting   Point = "outbox.writing"   // the caller's change is made in its transaction | the event is appended to the log
	OutboxWritten   Point = "outbox.written"   // the event is appended | the caller commits
	OutboxCommitted Point = "outbox.committed" // the caller's COMMIT is answered | the caller says so (hit by the caller: the library has no part in it)
)

// The relay.
const (
	RelayClaiming         Point = "relay.claiming"           // the relay is counted among the others | lanes are claimed
	RelayClaimed          Point = "relay.claimed"            // lanes are claimed | what is parked in them is read, and they start
	RelayReading          Point = "relay.reading"            // a lane stands at its cursor | a page is read
	RelayProducing        Point = "relay.producing"          // events are read | they are sent to Kafka
	RelayProduced         Point = "relay.produced"           // Kafka has answered | the answers are taken into account
	RelayMoved            Point = "relay.moved"              // the cursor has moved in memory | the saver is notified
	RelaySaving           Point = "relay.saving"             // cursors have moved in memory | they are saved
	RelaySaved            Point = "relay.saved"              // cursors are saved | memory knows it
	RelayParking          Point = "relay.parking"            // events are parked and the cursor is past them | COMMIT
	RelayParked           Point = "relay.parked"             // COMMIT of that | memory knows it
	RelayDelaying         Point = "relay.delaying"           // a parked event was refused again and is delayed | COMMIT
	RelayUnparking        Point = "relay.unparking"          // a parked event is in Kafka and leaves the table | COMMIT
	RelayUnparked         Point = "relay.unparked"           // COMMIT of that | memory knows it
	RelayDeadLettering    Point = "relay.dead_lettering"     // a parked event leaves the table and is a dead letter | COMMIT
	RelayDeadLettered     Point = "relay.dead_lettered"      // COMMIT of that | memory knows it
	RelayAnswered         Point = "relay.answered"           // a held topic has taken an event, which has left the table | the rest of the topic is resumed
	RelayResuming         Point = "relay.resuming"           // the events of a topic that is back are due | COMMIT
	RelayResumed          Point = "relay.resumed"            // COMMIT of that | memory forgets that the topic was held
	RelayReleasing        Point = "relay.releasing"          // a key that was held is due, as its dead letter is dealt with | COMMIT
	RelayReleased         Point = "relay.released"           // COMMIT of that | memory forgets that the key was held
	RelayReleasingOnClaim Point = "relay.releasing_on_claim" // a key whose dead letter was dealt with while nobody owned its lane is due | COMMIT
	RelayScheduling       Point = "relay.scheduling"         // scheduled events are moved into the log | COMMIT
	RelayScheduled        Point = "relay.scheduled"          // COMMIT of that | the lanes are notified
	RelayReclaiming       Point = "relay.reclaiming"         // a segment of the log seems to have been read | it is locked, tested and emptied, in one call
	RelayReclaimed        Point = "relay.reclaimed"          // that call was answered | memory knows it
	RelayRotating         Point = "relay.rotating"           // the current segment is full | the log rotates to the next one
	RelayRotated          Point = "relay.rotated"            // the log has rotated | memory knows it
	RelayStopping         Point = "relay.stopping"           // a lane has finished what was in progress | its cursor is saved
	RelayYielding         Point = "relay.yielding"           // the cursor is saved | the lane is released
	RelayYielded          Point = "relay.yielded"            // the lane is released | memory knows it
	RelayDeregistering    Point = "relay.deregistering"      // all lanes are released | the relay is deregistered
)

// The consumer.
const (
	InboxAssigning        Point = "inbox.assigning"         // a partition's fence is held and its epoch raised | COMMIT
	InboxAssigned         Point = "inbox.assigned"          // COMMIT of that | memory knows it, and reading begins
	InboxFetched          Point = "inbox.fetched"           // records are fetched | work on the first begins
	InboxCounting         Point = "inbox.counting"          // an event comes after an unclean end | its start is counted
	InboxCounted          Point = "inbox.counted"           // the start is counted, in a transaction of its own | the event is taken in
	InboxInserting        Point = "inbox.inserting"         // a worker has an event | BEGIN, fence, insert
	InboxInserted         Point = "inbox.inserted"          // its row is inserted | its handler runs
	InboxStepping         Point = "inbox.stepping"          // a step of a handler is not recorded | its function runs
	InboxStepped          Point = "inbox.stepped"           // a step's function has run | its result is recorded
	InboxStepRecorded     Point = "inbox.step_recorded"     // the result is recorded, in a transaction of its own | the handler goes on
	InboxHandled          Point = "inbox.handled"           // its handler has run | the worker goes on
	InboxCommitting       Point = "inbox.committing"        // the worker has gone on | COMMIT is sent, alone or with the next BEGIN
	InboxBatched          Point = "inbox.batched"           // the rows of a batch are inserted | its handler runs
	InboxCommitted        Point = "inbox.committed"         // COMMIT is answered | the tracker counts the event as settled
	InboxParking          Point = "inbox.parking"           // a failed event, or one after it, is stored | COMMIT
	InboxDeadLettering    Point = "inbox.dead_lettering"    // an event that is taken in is a dead letter | COMMIT
	InboxDecided          Point = "inbox.decided"           // the outcome of a single event is committed: handled, stored, dead | the tracker counts it as settled
	InboxSaving           Point = "inbox.saving"            // events are settled | their partition's position is saved
	InboxSaved            Point = "inbox.saved"             // the position is saved | memory knows it
	InboxCommittingOffset Point = "inbox.committing_offset" // the position is saved, and memory knows it | the offset is committed to Kafka
	InboxOffsetCommitted  Point = "inbox.offset_committed"  // the offset is committed | memory knows it

	InboxClaiming            Point = "inbox.claiming"              // a stored event may be due | it is claimed, and the attempt counted
	InboxClaimed             Point = "inbox.claimed"               // stored events are claimed | their handlers run
	InboxRetried             Point = "inbox.retried"               // the handler of a stored event has run | its row is removed, and the next of its key becomes due
	InboxSettling            Point = "inbox.settling"              // its row is removed | COMMIT
	InboxSettled             Point = "inbox.settled"               // COMMIT of that | memory knows it
	InboxPostponing          Point = "inbox.postponing"            // a stored event failed, or is handed back, and is delayed | COMMIT
	InboxDeadLetteringStored Point = "inbox.dead_lettering_stored" // a stored event is a dead letter and its row removed | COMMIT
	InboxWritten             Point = "inbox.written"               // COMMIT of the outcome of a stored event that failed | memory knows it

	InboxSweeping  Point = "inbox.sweeping"  // old rows of the inbox are removed, and the mark is moved | COMMIT
	InboxSwept     Point = "inbox.swept"     // COMMIT of that | memory knows it
	InboxReleasing Point = "inbox.releasing" // nothing of a partition is in progress any more | it is released, with its position
	InboxReleased  Point = "inbox.released"  // it is released | the last offset is committed, and the group left
)

// The dead letters.
const (
	DLQChanging Point = "dlq.changing" // a dead letter is replayed, edited or discarded | COMMIT
	DLQChanged  Point = "dlq.changed"  // COMMIT of that | the caller gets its answer
)
