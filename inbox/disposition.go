package inbox

// This file decides what to do with a record that was read. It is pure: values in, values out.

// disposition is what to do with a record of a partition.
type disposition int

const (
	disposeHandle  disposition = iota // run its handler
	disposeSkip                       // write nothing
	disposeInvalid                    // dead-letter it: the tables cannot hold it
	disposeStale                      // dead-letter it, unless a row shows what became of it
	disposeUnknown                    // store it, or dead-letter it
	disposeKnown                      // write nothing: a row shows what became of it
)

func (d disposition) String() string {
	return [...]string{"handle", "skip", "invalid", "stale", "unknown", "known"}[d]
}

// recordFacts is what is known of a record when it is read.
type recordFacts struct {
	invalid  bool // the tables cannot hold it
	garbled  bool // not even its type can be read
	handled  bool // this node has a handler for its type
	declared bool // another node has one
	stale    bool // it lies below the position that the partition had when this node was given it
}

// dispositionOf decides what to do with a record. The order of the cases matters. Other programs may write to the same topic
// for each other: their records need not fit our tables, and skipping them loses nothing. A stale event may have been handled
// long ago, by a node that knew its type then, and its row may be gone. To store it for such a node could handle it twice.
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
