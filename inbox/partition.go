package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/internal/turns"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// partition reads one partition, for as long as it belongs to this node: from the group's assignment until it is released or lost. It is
// made anew for each assignment, and never used again.
//
// Its life, in the order in which it only ever goes:
//
//	assigned    run has called assign: Postgres has raised the partition's epoch, fence is that right, and track begins
//	            where reading starts. Before, fence and track are nil, and there is nothing to release.
//	reading     the reader fetches page after page (read) and begins their events (begin); workers handle them.
//	halted      reading has ended: the node stops, the group takes the partition back, or failed says what stopped it.
//	            No event begins any more. Those that workers have may finish; the others are left to the next reader.
//	ended       working is 0: no worker has anything of it, and its memory is given back (run). A handler that hangs may
//	            still run; then the end is not clean.
//	released    the last position is saved with whether the end was clean (consumer.release). Of a partition that was
//	            lost the statement changes nothing: it names the epoch and the token of the fence.
//
// A partition may be lost at any time between: fenced is set, and from then on nothing of it is saved or committed to
// Kafka, since what is written belongs to another owner, another incarnation of the database, or a position that a person has changed.
// What a transaction had already committed stands: it held the fence.
//
// An event's way through it:
//
//	read        The reader looks for each event of a page what is to be done with it: whether the inbox may know it
//	            (recognise), and after an unclean end whether it may have ended the process (countChunk).
//	begun       It gives the event's offset and memory to track, in the order of offsets. What is known or skipped
//	            settles at once. What may have ended the process is handled alone, by the reader (replaySerially).
//	scheduled   All else is a job in scheduler: behind the job that has its key, collecting in a batch of its type, or
//	            handed out to workers.
//	at capacity A job that found no room for its event waits in atCapacity, and is tried again.
//	settled     Its outcome is durable: handled, stored, dead, skipped or known. track may move on.
//	concluded   The worker has ended the job (conclude), and what waited for it is handed out.
//
// Who does what. One goroutine, the reader, runs run and all that it calls: assign, read, begin, and the counted replay after an unclean
// end. Workers call the methods of jobOwner (dispatch.go). The consumer's saver asks unsaved and uncommitted every so often, and
// others may take the partition away (lose) and end its reading (halt). mu guards the fields below it, down to fenced, and counted. What
// stands above it is set before the reader begins, but for fence, which assign sets under mu. wants, hotLooked, withheld and the replay are
// the reader's own; release reads replayEnd once it has ended.
//
// Invariants:
//
//   - Offsets begin in ascending order, each once, and settle in any order, each once.
//   - track.low() is the offset below which everything is settled. saved <= track.low(), as far as Postgres knows; what is committed to
//     the group (known) follows saved. So no offset is committed above an event whose outcome is not durable.
//   - A key belongs to one job at a time, and later events of it wait for that. A worker may take the next one with it (follower).
//   - working counts the jobs that workers have, or that wait for one. Each is ended once, by conclude, drop, putBack, split or setAside.
//   - The memory of an event is given back when it settles, or by run at the end.
//   - failed is the first error that stopped the partition, unless a fatal one came later.
type partition struct {
	*env
	positions    *position.Table
	declarations *declarations
	receiver     *receiver
	serial       *turns.Turns // consumer.suspects
	workers      *workerPool
	memory       *readahead.Memory
	gen          source.Generation
	tp           source.TopicPartition
	start        source.Start
	until        *readahead.Bound // where reading stops
	fence        *position.Fence  // nil until assign has claimed the partition

	mu         sync.Mutex
	track      *readahead.Tracker
	scheduler  scheduler
	atCapacity atCapacity
	saved      int64 // Invariant: saved <= track.low(), as far as Postgres knows.
	known      int64 // the group's committed offset
	failed     error // why no more events begin
	fenced     bool  // another node has the partition

	reading context.Context    // when it ends, events that have not begun are left to the next reader
	halt    context.CancelFunc // ends reading
	wants   int64              // with how many bytes the source would like to fetch
	working sync.WaitGroup     // jobs that the workers have
	freed   chan struct{}      // something was settled

	hotLooked time.Time // the reader looked for a hot key then (hotkey.go)
	withheld  withheld  // by an open transaction; of the reader

	// After an unclean end starts are counted before handlers run (serial.go). That goes on for replayLeft new events, or up to the
	// end that the log had then. replayEnd is where it ends; 0 if the last end was clean.
	replaying  bool
	replayLeft int
	replayEnd  int64
	counted    map[int64]*delivery // by offset: counted, and not settled
}

// settle notes that the outcomes of events are durable.
func (p *partition) settle(ds ...*delivery) {
	p.mu.Lock()
	for _, d := range ds {
		p.track.Settle(d.from.offset)
		delete(p.counted, d.from.offset)
	}
	p.mu.Unlock()
	p.free()
}

// fail stops the partition: no more events begin.
func (p *partition) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = err
		p.halt()
	} else if fatal(err) && !fatal(p.failed) {
		p.failed = err
	}
}

// fencedOff gives the partition up: another node has it.
func (p *partition) fencedOff() {
	if first, _ := p.lose(failure.ErrFenced); !first {
		return
	}
	p.c.Logger.Warn("another node has the partition", "consumer", p.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition, "epoch", p.fence.Epoch)
	if p.c.Observer.OnFenced != nil {
		p.c.Observer.OnFenced(Assignment(p.fence.Claim))
	}
}

// lose gives the partition up. Nothing more of it is saved or committed to Kafka. first reports that it was not given up before;
// settled is how far it had been settled.
func (p *partition) lose(reason error) (first bool, settled int64) {
	p.mu.Lock()
	first, settled = !p.fenced, p.track.Low()
	p.fenced = true
	p.mu.Unlock()
	p.fail(reason)
	return first, settled
}

// unsaved is the position, if it has moved since it was saved, with the last event below it.
func (p *partition) unsaved() (int64, readahead.Checkpoint, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.track == nil || p.fenced {
		return 0, readahead.Checkpoint{}, false
	}
	low := p.track.Low()
	return low, p.track.Last, low > p.saved
}

func (p *partition) savedAt(position int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saved = max(p.saved, position)
}

// uncommitted is the saved position, if it differs from the group's offset.
func (p *partition) uncommitted() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.track == nil || p.fenced {
		return 0, false
	}
	return p.saved, p.saved != p.known
}

func (p *partition) committedAt(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = offset
}

// end is the final position with the last event below it. clean is false while a handler hangs.
func (p *partition) end() (int64, readahead.Checkpoint, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.track.Low(), p.track.Last, p.receiver.runner.hung.Load() == 0
}

// repositioned reports that a person has changed the position, which must stay as it is.
func (p *partition) repositioned() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Is(p.failed, errPositionChanged)
}

// errStaleGeneration ends a generation, as fencing does: the node joins the group again.
var errStaleGeneration = fmt.Errorf("the database came back from a crash or a failover and may have lost its last transactions: %w", failure.ErrFenced)

// staleGeneration gives the partition up, so that the group assigns it again with the position that Postgres has now.
func (p *partition) staleGeneration() {
	first, settled := p.lose(errStaleGeneration)
	if !first {
		return
	}
	p.c.Logger.Warn("the database came back from a crash or a failover: the partition is read again from the position it has now",
		"consumer", p.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition, "epoch", p.fence.Epoch, "settled", settled)
	if p.c.Observer.OnError != nil {
		p.c.Observer.OnError(fmt.Errorf("%s/%d: %w", p.tp.Topic, p.tp.Partition, errStaleGeneration))
	}
}

// handOut gives jobs to the workers. The caller holds the mutex, and is the reader or has a job in progress.
func (p *partition) handOut(js ...*job) {
	p.working.Add(len(js))
	for _, j := range js {
		p.workers.add(j)
	}
}

// free tells the reader that something was settled.
func (p *partition) free() {
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// stopped reports that no more events may begin.
func (p *partition) stopped() bool { return p.reading.Err() != nil }

func (p *partition) failWith(err error) {
	if errors.Is(err, failure.ErrFenced) {
		p.fencedOff()
	} else {
		p.fail(err)
	}
}

// atCapacity holds the jobs of a partition that wait for room. The partition's mutex guards it.
type atCapacity struct {
	refused int         // jobs that have not got through: those that wait, and the one being tried
	waiting []*job      // in the order in which they are tried
	timer   *time.Timer // until the next try; nil while one is being tried, or none waits
	tries   int         // in a row that found no room
	left    bool        // the partition is being released: none is tried any more
}

// untilAnswered asks the database until it answers. It returns false when ctx ends first.
func (p *partition) untilAnswered(ctx context.Context, ask func(ctx context.Context) error) bool {
	for wait := 1; ; wait++ {
		actx, cancel := context.WithTimeout(ctx, loop.Patience)
		err := ask(actx)
		cancel()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			p.transient(err)
		}
		if loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait, p.random())) != nil {
			return false
		}
	}
}
