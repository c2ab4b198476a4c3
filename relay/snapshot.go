package relay

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// snapshot is a pg_snapshot: it says which transactions had ended. Those below xmin had, and those from xmax on had not.
// Between the two, those in flight had not.
type snapshot struct {
	xmin, xmax uint64
	inFlight   []uint64 // sorted; Invariant: xmin <= inFlight[i] < xmax
}

// parseSnapshot reads the text form of pg_snapshot, "xmin:xmax:xip,xip".
func parseSnapshot(text string) (snapshot, error) {
	fail := func(rule string) (snapshot, error) {
		return snapshot{}, fmt.Errorf("parse snapshot %.80q: %s", text, rule)
	}
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return fail("it must be xmin:xmax:list")
	}
	var s snapshot
	var err error
	if s.xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return fail("xmin must be a number")
	}
	if s.xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil || s.xmax < s.xmin || s.xmin == 0 {
		return fail("xmax must be a number not below xmin, and xmin not 0")
	}
	if parts[2] == "" {
		return s, nil
	}
	for _, field := range strings.Split(parts[2], ",") {
		xid, err := strconv.ParseUint(field, 10, 64)
		if err != nil || xid < s.xmin || xid >= s.xmax {
			return fail("every listed transaction must be a number from xmin up to and without xmax")
		}
		if n := len(s.inFlight); n > 0 && s.inFlight[n-1] >= xid {
			return fail("the listed transactions must ascend")
		}
		s.inFlight = append(s.inFlight, xid)
	}
	return s, nil
}

// String is the text form that Postgres reads.
func (s snapshot) String() string {
	b := strconv.AppendUint(nil, s.xmin, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, s.xmax, 10)
	b = append(b, ':')
	for i, xid := range s.inFlight {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, xid, 10)
	}
	return string(b)
}

// visible says whether transaction xid had ended when the snapshot was taken.
func (s snapshot) visible(xid uint64) bool {
	if xid < s.xmin {
		return true
	}
	if xid >= s.xmax {
		return false
	}
	_, listed := slices.BinarySearch(s.inFlight, xid)
	return !listed
}

// without returns the snapshot in which xid had not ended yet. A transaction's own snapshot does not list its xid as in
// flight, so it calls the writing transaction ended. Every cut stored in the log must be corrected in this way before use.
func (s snapshot) without(xid uint64) snapshot {
	if !s.visible(xid) {
		return s
	}
	at, _ := slices.BinarySearch(s.inFlight, xid)
	s.inFlight = slices.Insert(slices.Clone(s.inFlight), at, xid)
	s.xmin = min(s.xmin, xid)
	return s
}

// follows says whether everything that had ended at an earlier snapshot had ended at s too. It is so of every snapshot that
// the server has taken later.
func (s snapshot) follows(earlier snapshot) bool {
	return s.xmax >= earlier.xmax && !slices.ContainsFunc(s.inFlight, earlier.visible)
}
