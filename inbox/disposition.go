package inbox

// This file decides what is done with a record when it is met. It does nothing: values in, values out.

// course is what is done with a record of a partition when it is met.
type course int

const (
	courseHandle  course = iota // run its handler
	courseSkip                  // write nothing
	courseInvalid               // a letter: it is no event that the tables can hold
	courseStale                 // a letter, unless its row shows what became of it
	courseUnknown               // store it, or a letter
	courseKnown                 // write nothing: its row shows what became of it
)

func (c course) String() string {
	return [...]string{"handle", "skip", "invalid", "stale", "unknown", "known"}[c]
}

// sighting is what is known of a record when it is met.
type sighting struct {
	invalid  bool // it is no event that the tables can hold
	garbled  bool // nor can its type be read
	handled  bool // this node has a handler for its type
	declared bool // another node has
	stale    bool // it lies below what was settled when this node was given the partition
}

// courseOf says what is done with a record. The order matters: what others write for others to the same topic need not be
// an event that our tables can hold, and is nobody's loss. Below the position an event may have been handled long
// ago, by whichever node knew its type then, and its row may be gone: to store it for such a node would be to handle it
// twice.
func courseOf(s sighting, u Unknown) course {
	switch {
	case !s.handled && !s.declared && !s.garbled && u == UnknownSkip:
		return courseSkip
	case s.invalid:
		return courseInvalid
	case s.stale:
		return courseStale
	case !s.handled:
		return courseUnknown
	default:
		return courseHandle
	}
}
