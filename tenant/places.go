package tenant

import "github.com/holdfast-go/holdfast/internal/rights"

// place is a table that may have something of a tenant, with its statements.
type place struct {
	name  string
	count string
	read  string // for Export

	erase  string // "": its rows go with those of another table
	counts bool   // erase returns how many rows, because it touches other tables too

	why string // what keeps rows after an erasure
}

const (
	inUse   = "a transaction has them locked, or wrote them meanwhile: repeat the erasure"
	inInbox = "they recognise a repeat, which would be handled again without them: they go after inbox.Config.Retention; EraseOptions.Inbox (--inbox) deletes those of settled events now"
)

// places are all tables with something of a tenant, in the order of an event's way. Rows that belong to others come before them, so
// that they are counted while those are there.
var places = []place{
	{name: "event", count: countEvents, read: exportEvents, erase: eraseEvents, why: inUse},
	{name: "scheduled", count: countWaiting, read: exportScheduled, erase: eraseScheduled, why: "a relay is moving them into the log, or they were written meanwhile: repeat the erasure"},
	{name: "written_once", count: countOnce, read: exportOnce, erase: eraseOnce, why: inUse},
	{name: "parked", count: countParked, read: exportParked, erase: eraseParked, why: inUse},
	{name: "inbox", count: countInbox, read: exportInbox, erase: eraseInbox, why: inInbox},
	{name: "inbox_step", count: countDone, read: exportDone, erase: eraseDone, why: inUse}, // before stored and letter, whose headers say whose they are
	{name: "stored", count: countStored, read: exportStored, erase: eraseStored, why: inUse},
	{name: "stored_action", count: countActions, read: exportActions, erase: eraseActions, why: inUse},
	{name: "start", count: countStarts, read: exportStarts, why: "their handlers run, or ended with their process: they go when those events are settled"},
	{name: "watermark", count: countMarks, read: exportMarks, erase: eraseMarks, why: inUse},
	{name: "letter_action", count: countLetterActions, read: exportLetterActions, why: "their dead letters remain"},
	{name: "letter", count: countLetters, read: exportLetters, erase: eraseLetters, counts: true, why: "they are being replayed, or were given up meanwhile: repeat the erasure"},
	{name: "letter_replay", count: countReplays, read: exportReplays, erase: eraseReplays, why: "they have not ended: let them continue, then repeat the erasure"},
	{name: "pause", count: countPauses, read: exportPauses, erase: erasePauses, counts: true, why: inUse},
	{name: "pause_action", count: countPaused, read: exportPaused, erase: erasePaused, why: inUse},
	{name: "idempotency_step", count: countSteps, read: exportSteps, why: "their requests run: repeat the erasure"},
	{name: "idempotency_request", count: countRequests, read: exportRequests, why: "they run: repeat the erasure"},
	{name: "idempotency", count: countAnswers, read: exportAnswers, erase: eraseAnswers, counts: true, why: "their requests run: repeat the erasure"},
	{name: "idempotency_expired", count: countExpired, read: exportExpired, erase: eraseExpired, why: inUse},
}

// nobodys are the tables that have nothing of a tenant, and what they have.
var nobodys = map[string]string{
	"installation": "the installation", "birth": "the installation", "cluster": "the installation", "incarnation": "the installation",
	"parked_lease": "keys of parked events, while they are being sent",
	"segments":     "the log", "lane": "cursors of the log", "relay": "processes", "retention": "a consumer's progress",
	"consumer_position": "offsets", "consumer_backfill": "counts of offsets", "consumer_type": "processes and types", "consumer_skip": "counts by topic and type", "dependency": "what handlers need",
	"consumer_binding": "database roles", "producer_binding": "database roles",
	"event_0": "it is read as a part of event", "event_1": "it is read as a part of event", "event_2": "it is read as a part of event", "event_3": "it is read as a part of event",
}

// beyond is what no statement of this package reaches.
var beyond = []string{
	"Kafka has what is published until its topic's retention or compaction removes it. Encrypt payloads with a key for each tenant, and delete the key.",
	"What relays and consumers have read into memory is published or handled as it was.",
	"Backups, replicas that are behind and the WAL archive have what was there. Postgres removes deleted rows from its files at the next vacuum.",
	"Events keep their key, id, type, source, topic and time until their segment of the log is emptied, or until they are published or handled.",
	"Systems that handlers called have what they were sent. What they returned to a step (inbox.Step) is erased here: a handler that calls for a tombstone calls again, with the same key.",
	"Steps of an event of which neither key, id nor source says whose it is, and which is neither stored nor a dead letter any more: its header is gone. They go with its row in inbox.",
	"Your own tables and logs, and other databases: run this in the databases of producers and of consumers.",
	"Requests whose scope had to be shortened (tenant-sha256:), and those of the scopes operation and global without a tenant, do not say whose they are: they expire.",
}

// What Export and Erase need beyond usage of the schema.
var (
	exportRights = []rights.Right{{Privileges: "select", Objects: "event, scheduled, written_once, parked, inbox, inbox_step, stored, stored_action, start, watermark, letter_action, letter, letter_replay, pause, pause_action, idempotency_step, idempotency_request, idempotency, idempotency_expired"}}
	eraseRights  = append([]rights.Right{
		{Privileges: "update", Objects: "event, parked, stored, letter_action"},
		{Privileges: "update, delete", Objects: "scheduled, written_once, inbox, inbox_step, watermark, letter, idempotency, idempotency_expired"},
		{Privileges: "delete", Objects: "stored_action, letter_replay, pause, pause_action, idempotency_step, idempotency_request"},
		{Privileges: "insert", Objects: "letter_action"},
	}, exportRights...)
)
