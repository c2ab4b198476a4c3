package relay

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// This file bounds how many lines of one kind a process logs. A cluster that is away takes a thousand topics with it, and a broken
// producer's events are given up by the thousand: twenty lines show what it is about, and one says how many more there are.

// noticesEach is how many lines of a kind a process logs in noticeEvery.
const noticesEach = 20

// noticeQuota counts lines by their kind, which is their message. It may be used by many goroutines. The zero value is ready.
type noticeQuota struct {
	mu    sync.Mutex
	kinds map[string]*noticeKind
}

type noticeKind struct {
	since time.Time // of the first line of this minute
	said  int
	more  int // that were not said
}

// moreNotices are lines of a kind that were not said.
type moreNotices struct {
	kind string
	more int
}

// takes says whether there is room for one more line of a kind.
func (q *noticeQuota) takes(kind string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.kinds == nil {
		q.kinds = map[string]*noticeKind{}
	}
	k := q.kinds[kind]
	if k == nil {
		k = &noticeKind{since: now}
		q.kinds[kind] = k
	}
	if now.Sub(k.since) >= noticeEvery && k.more == 0 { // What is left to say is taken first.
		k.since, k.said = now, 0
	}
	if k.said < noticesEach {
		k.said++
		return true
	}
	k.more++
	return false
}

// rest takes what was not said in minutes that are over; of all minutes if the relay ends.
func (q *noticeQuota) rest(ends bool, now time.Time) (all []moreNotices) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for kind, k := range q.kinds {
		if now.Sub(k.since) < noticeEvery && !ends {
			continue
		}
		if k.more > 0 {
			all = append(all, moreNotices{kind, k.more})
		}
		delete(q.kinds, kind)
	}
	slices.SortFunc(all, func(a, b moreNotices) int { return cmp.Compare(a.kind, b.kind) })
	return all
}

// mayLog says whether a line with this message may be logged now.
func (r *Relay) mayLog(message string) bool { return r.lines.takes(message, r.env.now()) }

// logMore says how many lines were left out. It is called at least once a second.
func (r *Relay) logMore(ends bool) {
	for _, m := range r.lines.rest(ends, r.env.now()) {
		r.c.Logger.Warn("lines left out: more of the same within a minute", "message", m.kind, "logged", noticesEach, "more", m.more)
	}
}
