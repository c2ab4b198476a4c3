// Package nodes says which consumers have a node that lives, by the table consumer_type in which each node announces its types. Status,
// doctor and the console share it, so that they say the same of one consumer.
package nodes

import "time"

const (
	// Every is how often a node announces itself. DeclareFor is how far ahead it does so.
	Every      = 20 * time.Second
	DeclareFor = 2 * time.Minute

	// silentFor is for how long nobody is heard of a consumer until its nodes count as gone: two announcements may be late.
	silentFor = time.Minute
)

// Rows is a row for each consumer that has ever announced itself, in the order of Row's fields. A consumer whose backfill
// (inbox.Inbox.ConsumeUntil) was the last that it did has ended as it should. A node that has said that it stops does not live. $1 is DeclareFor, and $2 silentFor, in microseconds.
const Rows = `-- nodes.consumers
select t.consumer,
       count(distinct t.node) filter (where not t.stopped and t.seen_until > now() + ($1::bigint - $2::bigint) * interval '1 microsecond'),
       round(extract(epoch from now() - max(t.seen_until) + $1::bigint * interval '1 microsecond'))::bigint,
       exists (select from holdfast.consumer_backfill b
                where b.consumer = t.consumer and b.ended_at > max(t.seen_until) - ($1::bigint + $2::bigint) * interval '1 microsecond')
  from holdfast.consumer_type t group by t.consumer order by t.consumer`

// Args are the arguments of Rows.
func Args() []any { return []any{DeclareFor.Microseconds(), silentFor.Microseconds()} }

// Row is what is known of a consumer's nodes.
type Row struct {
	Consumer string
	Living   int64
	Silent   int64 // seconds since one was heard of
	Ended    bool  // its backfill has ended, and nothing was heard since
}

// Gone says that no node of it has lived for a while, and that one should: a node that stops may be about to start again.
func (r Row) Gone() bool { return r.Living == 0 && !r.Ended && r.For() >= silentFor }

// For is how long nobody was heard of it. The console's page asks.
func (r Row) For() time.Duration { return time.Duration(r.Silent) * time.Second }
