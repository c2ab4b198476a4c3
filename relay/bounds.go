package relay

// bounds are how much a relay does at once and remembers. None of them changes what it promises: the simulation draws small ones.
type bounds struct {
	pageBytes   int64 // of a page of a lane: enough for all events of a page that are of a usual size
	places      int   // of events in a window that are listed in advance; at least, two pages
	parks       int   // events that one transaction parks, and
	parkBytes   int   // bytes of these
	resumes     int   // parked events that one transaction makes due when what they waited for takes events again
	moves       int   // scheduled events that one transaction moves into the log, and
	moveBytes   int64 // bytes of these
	listed      int   // queues that one statement lists
	queues      int   // with parked events, that a lane remembers
	drainQueues int   // of whose parked events one statement reads those that are due, and what follows them
	drainEvents int   // that it reads, and beyond which a lane reads no more; half as many may be stuck, beyond which it fails: then no row is to blame
}

// usualBounds are the bounds of every relay.
var usualBounds = bounds{
	pageBytes:   4 << 20,
	places:      50_000,
	parks:       5000,
	parkBytes:   1 << 20,
	resumes:     5000,
	moves:       1000,
	moveBytes:   32 << 20,
	listed:      2000,
	queues:      10_000,
	drainQueues: 500,
	drainEvents: 2000,
}
