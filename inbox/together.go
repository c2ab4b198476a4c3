package inbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/group"
)

// This file lets a worker do several jobs in one transaction, if their registrations and package group allow it: BEGIN, COMMIT and the
// look at what is known are shared. If a handler fails, or anything else, the transaction is rolled back and each of its jobs comes
// alone: none has lost an attempt.

// groupWith returns the jobs that j's transaction takes in: j, what waits for it in its key, and others that are ready.
func (w *worker) groupWith(j *job) []*job {
	g, now := group.New(maxGroup, w.workers.ready(), w.workers.receiver.c.Workers, w.workers.receiver.groups), time.Now()
	joins := func(j *job, follows bool) (group.Timing, bool) {
		if j.kind != jobAlone || j.single || j.intake != nil || j.owner.stopped() {
			return group.Timing{}, false
		}
		eventType := j.ds[0].e.Type
		if w.workers.receiver.dependencies.waits(eventType) {
			return group.Timing{}, false
		}
		alone := w.workers.receiver.runner.needsItsOwn(eventType) || w.workers.receiver.turnsOf(eventType) != nil
		t := w.workers.timings.Get(eventType).UpTo(w.workers.receiver.of(eventType).Group, alone)
		return t, g.Admits(t, follows, now)
	}
	js := []*job{j}
	t, ok := joins(j, false)
	for follows := false; ok; {
		g = g.With(t, follows)
		last := js[len(js)-1]
		next := last.owner.follower(last, 1)
		if follows = next != nil; follows {
			if t, ok = joins(next, true); !ok {
				last.owner.putBack(last)
				return js
			}
		} else if next = w.workers.takeIf(func(j *job) bool { t, ok = joins(j, false); return ok }); next == nil {
			return js
		}
		js = append(js, next)
	}
	return js
}

// noteAlone notes how long the handler of an event took that ran alone.
func (w *worker) noteAlone(j *job, out Outcome, took time.Duration) {
	if len(j.ds) == 1 && (out == Handled || out == "") {
		w.workers.timings.Change(j.ds[0].e.Type, func(t group.Timing) group.Timing { return t.Ran(took, time.Now(), w.workers.receiver.groups) })
	}
}

// workGroup does a group of jobs up to its COMMIT.
func (w *worker) workGroup(js []*job) {
	for {
		begun := time.Now()
		a := attempt{number: 1}
		for _, j := range js {
			j.ds[0].took = 0
			a.ds, a.group = append(a.ds, j.ds[0]), append(a.group, j.ctx)
		}
		o, committed, err := w.pipeline.open(js[0].ctx, a)
		w.committed(committed, nil)
		if errors.Is(err, errNotOpened) {
			continue
		}
		if err == nil {
			js = w.leaveKnown(js, &o)
			_, err = w.pipeline.run(js[0].ctx, o)
		}
		if err != nil {
			w.failedGroup(js, err)
			return
		}
		w.last = &tried{job: js[0], out: Handled, begun: begun, group: w.leaveNotBegun(js)}
		return
	}
}

// leaveKnown takes the jobs out of an opened group whose events may not be handled now: they are known, or wait for earlier events of
// their keys, or their partition is lost. They come alone. It returns the others. Without any the group does not run.
func (w *worker) leaveKnown(js []*job, o *opened) []*job {
	if o.err != nil || o.fresh == nil {
		return js
	}
	stays := make([]bool, len(js))
	var ds []*delivery
	var group []context.Context
	for i := range js {
		if stays[i] = o.fresh[i] && (!follows(js, i) || stays[i-1]); stays[i] {
			ds, group = append(ds, o.ds[i]), append(group, o.group[i])
		}
	}
	if len(ds) == 0 {
		o.err = errOneByOne
		return js
	}
	o.ds, o.group = ds, group
	return w.leave(js, stays, true)
}

// leaveNotBegun takes the jobs out of a group that has run whose handlers were not begun: there was no time for them. They wait again,
// as they did before.
func (w *worker) leaveNotBegun(js []*job) []*job {
	stays := make([]bool, len(js))
	for i, j := range js {
		stays[i] = j.ds[0].took > 0
	}
	return w.leave(js, stays, false)
}

// leave takes jobs out of a group, alone for good or not, and what follows them in their keys. It returns those that stay.
func (w *worker) leave(js []*job, stays []bool, alone bool) (kept []*job) {
	for i, j := range slices.Backward(js) {
		if stays[i] {
			kept = append(kept, j)
			continue
		}
		j.single = j.single || alone
		if follows(js, i) {
			js[i-1].owner.putBack(js[i-1])
		} else {
			w.workers.add(j)
		}
	}
	slices.Reverse(kept)
	return kept
}

// follows reports that a job of a group follows the one before it in its key.
func follows(js []*job, i int) bool { return i > 0 && js[i-1].follower == js[i] }

// committedGroup takes in the answer to the COMMIT of a group.
func (w *worker) committedGroup(js []*job, err error) {
	if err != nil {
		w.failedGroup(js, err)
		return
	}
	now := time.Now()
	for _, eventType := range typesOf(js) {
		w.workers.timings.Change(eventType, func(t group.Timing) group.Timing { return t.Succeeded(len(js)) })
	}
	for _, j := range js {
		d := j.ds[0]
		w.workers.timings.Change(d.e.Type, func(t group.Timing) group.Timing { return t.Ran(d.took, now, w.workers.receiver.groups) })
		w.workers.receiver.report(d, Handled, d.took)
		j.owner.settle(d)
		j.owner.conclude(j, nil)
	}
}

// failedGroup lets each job of a group that failed come alone. If a handler may be to blame, groups of its type get smaller.
func (w *worker) failedGroup(js []*job, failed error) {
	now := time.Now()
	var f *failure.Error
	if errors.As(failed, &f) && (f.Fault == failure.FaultEvent || f.Fault == failure.FaultContended) {
		to := func(t group.Timing) group.Timing { return t.Failed(len(js), now, w.workers.receiver.groups) }
		var h *failure.HandlerError
		if errors.As(failed, &h) {
			at := js[0] // the last whose handler ran
			for _, j := range js {
				if j.ds[0].took > 0 {
					at = j
				}
			}
			took := at.ds[0].took
			w.workers.timings.Change(at.ds[0].e.Type, func(t group.Timing) group.Timing { return to(t.Ran(took, now, w.workers.receiver.groups)) })
		} else { // COMMIT: nobody knows whose row it was.
			for _, eventType := range typesOf(js) {
				w.workers.timings.Change(eventType, to)
			}
		}
	}
	if f != nil && f.Fault.Outage() {
		w.workers.receiver.transientOf(js[0].ds[0], f.Err)
	}
	if f != nil { // The others need not find out, too.
		es := make([]holdfast.Event, len(js))
		for i, j := range js {
			es[i] = j.ds[0].e
		}
		w.workers.receiver.dependencies.blamed(js[0].ctx, f, es, failure.History{})
	}
	for _, j := range js {
		j.ds[0].inDoubt = j.ds[0].inDoubt || f != nil && f.Fault == failure.FaultUnknown
	}
	w.leave(js, make([]bool, len(js)), true)
}

func typesOf(js []*job) (types []string) {
	for _, j := range js {
		if t := j.ds[0].e.Type; !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types
}
