// Package history is what a run did, as reported by all its parts: producers, relays, consumers, and the one that made
// the faults. Each writes its own file of JSON lines, outside the system under test, one write(2) an entry:
// a process that is killed leaves at most one torn line, its last. Read puts the files together.
//
// Nothing here judges; package oracle does.
package history

import "time"

// Op is what was done.
type Op string

// What the parts of a run do.
const (
	// Intend comes before a producer's COMMIT: these events are about to be.
	Intend Op = "intend"
	// Commit is its outcome. OK was answered; Failed was refused or rolled back; Unknown had no answer.
	Commit Op = "commit"
	// Publish comes before events go to the broker.
	Publish Op = "publish"
	// Acknowledge is the broker's answer to them, by result.
	Acknowledge Op = "acknowledge"
	// Claim says that a relay has a lane, under an epoch; Lose that it has it no longer, handed back (OK) or not (Failed).
	Claim Op = "claim"
	Lose  Op = "lose"
	// Receive is a consumer's outcome for an event, once that is durable. Text says which.
	Receive Op = "receive"
	// Effect is a handler about to do what an event asks for. It may yet be rolled back.
	Effect Op = "effect"
	// Step is the end of a handler's step that was not recorded before, by how: OK is recorded. Text is its name.
	Step Op = "step"
	// Letter is an event that was given up.
	Letter Op = "letter"
	// Decide is the answer to a person's command on events that wait: Text is the command's name, Num how many events it has
	// changed. OK says that this is all; Unknown says that there was an error, and that more may be changed.
	Decide Op = "decide"
	// Log is a line that a part logged as a warning or an error: Text is its message.
	Log Op = "log"
	// Begin and End are a process's first and last entries. An End lists in Text what it left behind: goroutines,
	// connections. A process that was killed has no End.
	Begin Op = "begin"
	End   Op = "end"

	// Fault and Heal are the beginning and the end of a fault, whose name is Text. Recovered comes when all that was
	// committed until Heal has arrived.
	Fault     Op = "fault"
	Heal      Op = "heal"
	Recovered Op = "recovered"
)

// Result is how it went.
type Result string

const (
	OK      Result = "ok"
	Failed  Result = "failed"
	Unknown Result = "unknown" // there was no answer: both may be true
)

// Entry is one line.
type Entry struct {
	At    time.Time `json:"at"`              // by the clock of the machine, which all who take part share
	Actor string    `json:"actor"`           // "relay/1": whose place in the run; a process that is started again keeps it
	PID   int       `json:"pid,omitempty"`   // which process had that place
	Op    Op        `json:"op"`              //
	IDs   []string  `json:"ids,omitempty"`   // the events
	Key   string    `json:"key,omitempty"`   // of Intend and Effect
	Num   int64     `json:"num,omitempty"`   // place in its key's order, drawn under the key's row lock; of Decide a count
	Lane  int       `json:"lane,omitempty"`  // of Claim and Lose
	Epoch int64     `json:"epoch,omitempty"` // of Claim
	How   Result    `json:"how,omitempty"`
	Text  string    `json:"text,omitempty"`
}
