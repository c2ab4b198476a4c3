package relay

import "time"

// sayEvery is how often a line of one kind and cause is logged that says that something is tried again.
const sayEvery = time.Minute

// again says whether to log now a line that comes again and again while something lasts: at most one a minute of each kind. It adds
// to the attributes of the line how many were left out.
func (r *Relay) again(kind string, attrs ...any) ([]any, bool) {
	return r.againSince(kind, r.env.now(), attrs...)
}

// againSince is again for trouble that has lasted since then: what has begun anew since the last line is said after 5 s.
func (r *Relay) againSince(kind string, since time.Time, attrs ...any) ([]any, bool) {
	suppressed, say := r.said.AllowSince(kind, sayEvery, since, r.env.now())
	if suppressed > 0 {
		attrs = append(attrs, "suppressed", suppressed)
	}
	return attrs, say
}
