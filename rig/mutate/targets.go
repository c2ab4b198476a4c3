package main

import (
	"regexp"
	"strings"
)

// target is a part of a package: what is mutated, and which tests are asked.
type target struct {
	dir   string
	files []string
	tests string   // a regular expression
	flags []string // of the test binary

	// Of statements in SQL: whose tests are asked besides those of dir. files are then those with statements.
	sql  bool
	also []string
}

// Only tests without a server are asked where they can tell: a survivor costs the time of all tests that reach it.
const (
	relayTests = `_(Without|TheFirst)|_\w*(AReader|CallOfTheReader|ACursorMoves|WindowOf|WindowIs|PlannedWindow|Snapshots?(Are|Knows)|WhatIsPrinted|OneHundred|Saver|ASave(LeavesOut|SaysOf|Sends|ThatFails)|ASaverRenews|KeysResume|AnAnswerIs|WithoutAKeyWaits|TheLastAttemptIs|WhatIsToBeParked|OnlyWhatWas|ADestination|AServerWhere|AClaim|ARelayThatStopsClaims|TheAnswersOf|TheRingTurns|ThatWereTried|RoomInTheBudget|TheBudget(Counts|GivesOut)|ALaneRestsBy|` +
		`SlowSave|Saves(Rest|Of)|Disposition|ReplayGoes|WhatBecomes|LaneThat(Keeps|Ran)|LanesRest|SharesOf|LateAnswer|Budget(Is|Counts|Keeps)|` +
		`Tracker|Settle|Claims?(That|Of|Is)|Fault|Header(s|That)(Of|Are|Is)|Binary|CallOfThe|FirstSchedules|APlace|AList|APageIsFull|ARowIsThe|TurnsAtTheCalls|LeavesHasNoTurn|WaitingForItsTurn|ASlowCallGives|ASaveKeepsWhat|WhatATransactionOf|SomethingCanBeSent|CallsAreCounted|GoesToItsPartition|NoPageIsTaken|OfTheLogAreNoisy|ACallThatIsSlow|LooksAgainWhen|WhatEnters|WhatIsHeldIs|OnlyRowsOf|ALookFollows|AnExceptionIs|QuietTenant|NoisyCall|SharesNoCall|ShareACall)`
	inboxTests = `_\w*(Record(Is)|FailureIs|OfAFailure|WithoutRoomOne|AgainAndAgain|MoreOftenThan|LowerOfPosition|AnUnsettledEvent|AnOffset(OutOf|ThatIs)|ATrackerCounts|ADelayDoubles|AHistory|ADecidedEvent|` +
		`IsHandedBackFor|HandlerIsJudged|PostgresRefusesBehind|RestsInProportion|Fault|ADelay|ABudgetEnds|ADeadline|AVerdict|AHandlersError|AFailureOf|OnlyAHandler|ContentionWithout|AnEndedContext)`
)

// targets are what issue after issue found bugs in: the code that decides, and the loops that carry decisions out.
var targets = []target{
	{
		dir: "relay", tests: relayTests,
		files: []string{"cursor.go", "reading.go", "snapshot.go", "log.go", "budget.go", "failing.go", "saver.go", "decide.go", "tracker.go", "claim.go", "calls.go", "ownership.go", "sending.go", "room.go"},
	},
	{
		dir: "inbox", tests: inboxTests,
		files: []string{"disposition.go"},
	},
	// Each test of these files needs Postgres. Their own tests ask one part at a time, and are quick.
	{dir: "inbox/internal/position", tests: `^Test(Fence|Start|Position)_`, files: []string{"fence.go", "start.go", "position.go"}},
	{dir: "inbox", tests: `_(Saving|Committing|Looking|Releasing)`, files: []string{"position.go"}},
	{dir: "inbox", tests: `_(Identifying|Rereading)`, files: []string{"checkpoint.go"}},
	{dir: "inbox", tests: `_Counting`, files: []string{"starts.go"}},
	{dir: "inbox", tests: `_(Recording(Writes|Under|Says)|DeadLettering|Knowing)`, files: []string{"ledger.go"}},
	{dir: "internal/state", tests: `_(WhatNeeds|WhatALaneWaits|AFullLog|ALaneWithout|ARelayThatClaims)`, files: []string{"needs.go"}},
	{dir: "inbox/internal/failure", tests: `^Test`, files: []string{"history.go", "returned.go", "fault.go"}},
	{dir: "inbox/internal/readahead", tests: `^Test(Tracker|Bound)_`, files: []string{"tracker.go", "bound.go"}},
	{dir: "inbox/internal/group", tests: `^Test`, files: []string{"group.go"}},
	{dir: "inbox/internal/turns", tests: `^Test`, files: []string{"turns.go"}},
	{dir: "inbox/internal/loop", tests: `^Test`, files: []string{"delay.go"}},
	{dir: "inbox/internal/retention", tests: `^TestPace`, files: []string{"pace.go"}},
	{dir: "idempotency/internal/lease", tests: `^Test`, files: []string{"lease.go"}},
	{dir: "internal/kafkafault", tests: `^Test`, files: []string{"kafkafault.go"}},
	// Statements. Their mutants meet the tests of a package that prepare them, until one fails.
	{dir: "dlq", sql: true, files: []string{"queries.go"}},
	{dir: "waiting", sql: true, files: []string{"queries.go"}},
	{dir: "internal/state", sql: true, files: []string{"queries.go"}, also: []string{"metrics"}},
	{dir: "internal/backlog", sql: true, files: []string{"backlog.go"}},
	{dir: "idempotency", sql: true, files: []string{"queries.go"}},
	{dir: "relay", sql: true, files: []string{"queries.go", "parked_queries.go", "schedule_queries.go"}},
	{dir: "inbox", sql: true, files: []string{"queries.go", "letter_queries.go"}},
	{dir: "inbox/internal/position", sql: true, files: []string{"queries.go"}, also: []string{"inbox"}},
	{dir: "inbox/internal/retention", sql: true, files: []string{"queries.go"}, also: []string{"inbox"}},
	{dir: "outbox", sql: true, files: []string{"queries.go", "schema.sql"}, also: []string{".", "rig/rights", "rig/path", "rig/versions", "relay", "dlq", "waiting", "internal/backlog"}},
}

// path is a file's from the top of the repository.
func (t target) path(file string) string {
	if strings.HasSuffix(file, ".sql") {
		return file
	}
	return t.dir + "/" + file
}

// chosen are the files of the target that a pattern asks for.
func (t target) chosen(only *regexp.Regexp) []string {
	var files []string
	for _, name := range t.files {
		if only.MatchString(t.path(name)) {
			files = append(files, name)
		}
	}
	return files
}
