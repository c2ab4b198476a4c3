package inbox

import (
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file says that a partition stands still because a producer's transaction is open: consumers that read committed records get nothing
// from its first record on until it ends. A producer that hangs, or died under a long transaction.timeout.ms, looks like a
// consumer that does.

const (
	withheldAfter = 2 * time.Minute // Kafka's default time-out has ended that of a producer that died by then.
	withheldEvery = 10 * time.Minute
)

// withheld is since when a partition has given out nothing for an open transaction. The zero value: it gives out what it has.
type withheld struct {
	offset int64 // where it stands
	since  time.Time
	said   time.Time // zero: not yet
}

// after is what is known after a page that was asked for from offset on, and whether to say it.
func (w withheld) after(pg *source.Page, offset int64, now time.Time) (next withheld, say bool) {
	switch {
	case pg.Withheld <= 0 || pg.Next > offset:
		return withheld{}, false
	case w.since.IsZero() || w.offset != offset:
		return withheld{offset: offset, since: now}, false
	case now.Sub(w.since) < withheldAfter || !w.said.IsZero() && now.Sub(w.said) < withheldEvery:
		return w, false
	}
	w.said = now
	return w, true
}

// sayWithheld logs that an open transaction has held up the partition for long.
func (p *partition) sayWithheld(pg *source.Page, offset int64) {
	if pg.Withheld <= 0 && p.withheld == (withheld{}) {
		return // as nearly always
	}
	now, say := time.Now(), false
	if p.withheld, say = p.withheld.after(pg, offset, now); say {
		p.c.Logger.Warn("partition waits for a producer's transaction that is open", "consumer", p.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition,
			"offset", pg.Next, "withheld", pg.Withheld, "for", now.Sub(p.withheld.since).Round(time.Second))
	}
}
