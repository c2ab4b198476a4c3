package main

import "regexp"

// target is a part of a package: what is mutated, and which tests are asked.
type target struct {
	dir   string
	files []string
	tests string   // a regular expression
	flags []string // of the test binary
}

// Tests without a server are asked wherever they can tell: a survivor costs the time of all tests that reach it.
const (
	relayTests = `^Test(.*(Cursor|Cut|Snapshot|Window|Reader|Page|Saver|Save|Saves|Disposition|Replay|Parked|Lane|Lanes|Planned|Without|Printed|Budget|Tracker|Claim|Claims|Incarnation|FirstSchedules|Header|Headers|Fault|Heads|Probe).*)$`
	inboxTests = `^Test(.*(Record|Failure|Decide|Judge|Judged|Event|Attempt|Offset|History|DecidedEvent|HandedBack|Lineup|Handler|Refuses|Tracker|Delay|Spread).*)$`
)

// targets are what issue after issue found bugs in: the code that decides, and the loops that carry decisions out.
var targets = []target{
	{
		dir: "relay", tests: relayTests,
		files: []string{"cursor.go", "reading.go", "snapshot.go", "log.go", "budget.go", "failing.go", "saver.go", "decide.go", "tracker.go", "claim.go"},
	},
	{
		dir: "inbox", tests: inboxTests,
		files: []string{"history.go", "returned.go", "fault.go", "backoff.go", "disposition.go", "tracker.go"},
	},
	{
		dir: "inbox", tests: `^Test.*(Fence|Fenced|Zombie|Owner|Position|Offsets|Assigned|Checkpoint)`,
		files: []string{"fence.go", "position.go", "checkpoint.go"},
	},
	{
		dir: "inbox", tests: `^Test.*(Suspect|Starts|Start|Deadly|Crash|Conflict|Edited|Duplicate|Dead|Letter)`,
		files: []string{"starts.go", "ledger.go"},
	},
}

// chosen are the files of the target that a pattern asks for.
func (t target) chosen(only *regexp.Regexp) []string {
	var files []string
	for _, name := range t.files {
		if only.MatchString(t.dir + "/" + name) {
			files = append(files, name)
		}
	}
	return files
}
