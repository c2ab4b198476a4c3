package simdb

// Bug is a fault injected into the fake, as if a statement or the schema were written wrongly. The simulation must find each.
type Bug string

// Violated is what the fake panics with where a row breaks a CHECK: Postgres would refuse the statement, again and again.
type Violated string

// What can be injected.
const (
	BugMaxSeq              Bug = "the page is everything after the highest seq"
	BugXminHorizon         Bug = "the window ends at the oldest transaction in flight"
	BugEmptyXip            Bug = "the window's end forgets what is in flight, as on a standby"
	BugForgetsInFlight     Bug = "the page leaves out what was in flight when the window began"
	BugInventedCut         Bug = "a backlog is cut at an invented snapshot"
	BugUncorrectedCut      Bug = "a cut calls its own transaction ended"
	BugSaveWithoutFence    Bug = "a save asks for neither owner nor epoch"
	BugLateSave            Bug = "a save takes effect after later ones"
	BugParkWithoutEpoch    Bug = "a change of parked rows asks for neither owner nor epoch"
	BugClaimKeepsEpoch     Bug = "a claim does not raise the epoch, and nothing asks for the owner"
	BugNoIncarnation       Bug = "the incarnation is not looked at"
	BugIgnoresStarts       Bug = "a crash that keeps unlogged tables is not noticed"
	BugReclaimWithoutLock  Bug = "the test and the truncation are two steps without a lock"
	BugReclaimForgetsLong  Bug = "the test of a segment forgets what was in flight at the cursor"
	BugNoLeaseAhead        Bug = "a lease that a clock put far ahead does not count as run out"
	BugNoWake              Bug = "the next of a queue is not made due"
	BugReplayAtEnd         Bug = "a replay goes to the end of its queue"
	BugUnparkFollowers     Bug = "a follower is due at once"
	BugDeadLetterNoLetter  Bug = "an event is given up, and no letter is written"
	BugDeadLetterNoHold    Bug = "the letter of a malformed event does not hold its key"
	BugDeadLetterScheduled Bug = "a scheduled event is given up, and no letter is written"
	BugDueBehind           Bug = "an event that is parked is due, whatever is before it"
	BugEmptied             Bug = "a queue of which a row has left is said to have none"
	BugIgnoresLeases       Bug = "a command changes what a lane has leased"
	BugUnlockedCommand     Bug = "a command does not lock what is parked in the lane"
	BugNoLease             Bug = "what a lane reads is not leased"
	BugReplayWakesAll      Bug = "a replay enters a queue, and all rows of it are due"
	BugResumesFollowers    Bug = "the end of a hold makes followers due"
	BugResumesHeld         Bug = "a head is resumed whatever letter holds its key"
	BugReplayStaysOpen     Bug = "the letter of a published replay is not closed"
	BugDiscardNoWake       Bug = "a person discards a head, and the next of its queue is not made due"
	BugNamesTheNext        Bug = "of a row that cannot be read the next one is named"
)
