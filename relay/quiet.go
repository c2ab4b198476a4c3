package relay

import "time"

// sayEvery is how often a line of one kind and cause is logged that says that something is tried again.
const sayEvery = time.Minute

// again says whether to log now a line that comes again and again while something lasts: at most one a minute of each kind. It adds
// to the attributes of the line how many were left out.
func (r *Relay) again(kind string, attrs ...any) ([]any, bool) {
	suppressed, say := r.said.Allow(kind, sayEvery, r.env.now())
	if suppressed > 0 {
		attrs = append(attrs, "suppressed", suppressed)
	}
	return attrs, say
}
