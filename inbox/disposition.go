package inbox

// This file decides what is done with a record when it is met. It does nothing: values in, values out.

// disposition is what is done with a record of a partition when it is met.
type disposition int

const (
	disposeHandle  disposition = iota // run its handler
	disposeSkip                       // write nothing
	disposeInvalid                    // a letter: it is no event that the tables can hold
	disposeStale                      // a letter, unless its row shows what became of it
	disposeUnknown                    // store it, or a letter
	disposeKnown                      // write nothing: its row shows what became of it
)

func (c disposition) String() string {
	return [...]string{"handle", "skip", "invalid", "stale", "unknown", "known"}[c]
}

// recordFacts is what is known of a record when it is met.
type recordFacts struct {
	invalid  bool // it is no event that the tables can hold
	garbled  bool // nor can its type be read
	handled  bool // this node has a handler for its type
	declared bool // another node has
	stale    bool // it lies below what was settled when this node was given the partition
}

// dispositionOf says what is done with a record. The order matters: what others write for others to the same topic need not be
// an event that our tables can hold, and is nobody's loss. Below the position an event may have been handled long
// ago, by whichever node knew its type then, and its row may be gone: to store it for such a node would be to handle it
// twice.
func dispositionOf(s recordFacts, u Unknown) disposition {
	switch {
	case !s.handled && !s.declared && !s.garbled && u == UnknownSkip:
		return disposeSkip
	case s.invalid:
		return disposeInvalid
	case s.stale:
		return disposeStale
	case !s.handled:
		return disposeUnknown
	default:
		return disposeHandle
	}
}
