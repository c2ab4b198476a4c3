package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// pipeline takes events in on one connection, each in its own transaction. All that comes before the handler is one round trip,
// and COMMIT travels with the beginning of the next transaction:
//
//	BEGIN, time-outs and fence, insert ─► handler ─► COMMIT + BEGIN, time-outs and fence, insert ─► handler ─► … ─► COMMIT
//
// While there is work, an event costs one round trip beside what its handler does. Each transaction is opened and run. The last
// one stays open until commit.
type pipeline struct {
	*admission
	conn         *pgxpool.Conn // nil while no transaction is open
	tx           pgx.Tx        // only its COMMIT is left to do; nil if there is none
	since        time.Time     // the first transaction on conn began then
	transactions int           // on conn
}

const (
	// beginOnly opens a transaction without settings; openSQL makes them in the same round trip.
	beginOnly = "begin isolation level read committed"

	// A pipeline gives its connection back now and then. So a pool that is too small serves everyone in turns.
	maxTransactions = 64
	maxPipeline     = 20 * time.Millisecond
)

// errNotOpened means that a transaction did not begin, because the one before it could not be committed.
var errNotOpened = errors.New("the transaction before it failed")

// attempt is what one transaction takes in: one event, a batch of one type and partition, a group of events with a handler each,
// or several events of one key that follow a stored one.
type attempt struct {
	ds        []*delivery
	number    int               // counts the attempts of a single event, from 1
	followers bool              // the events are stored, and no handler runs
	group     []context.Context // of the handlers of a group, which run one after the other; nil if it is none
}

// opened is a transaction whose handler has not run. Its rows are written, but for those of a group.
type opened struct {
	attempt
	tx      pgx.Tx
	written written
	fresh   []bool // of a group: which events may be handled now; nil if all may
	err     error  // if it is not nil, nothing may run
}

// open begins the transaction of an attempt, in the round trip that commits the one before. committed is the answer to that
// COMMIT: nil or a *failure. The locks of that transaction are free then. err is errNotOpened or a *failure.
func (p *pipeline) open(ctx context.Context, a attempt) (o opened, committed, err error) {
	if p.conn == nil {
		conn, err := p.acquire(ctx)
		if err != nil {
			return o, nil, err
		}
		p.conn, p.since, p.transactions = conn, time.Now(), 0
	}
	p.transactions++
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{BeginQuery: beginOnly})
	switch {
	case a.group != nil:
		fences := fencesOf(a.ds)
		p.ledger.queueOpeningGroup(b, a.ds, fences)
		p.ledger.queueFresh(b, a.ds, fences)
	case a.followers:
		p.ledger.queueOpening(b, a.ds[0])
		p.queues.queueFollowers(b, a.ds)
	default:
		p.ledger.queueOpening(b, a.ds[0])
		p.ledger.queueRecord(b, a.ds, a.number, "", a.ds[0].fence())
	}
	var sending context.Context
	var cancel context.CancelFunc
	committing := p.tx != nil
	if committing { // It is carried out whatever becomes of the next transaction.
		failpoint.Hit(failpoint.InboxCommitting)
		b.QueuedQueries = slices.Insert(b.QueuedQueries, 0, &pgx.QueuedQuery{SQL: "commit"})
		sending, cancel = context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	} else {
		sending, cancel = p.bounded(ctx)
	}
	defer cancel()
	failpoint.Hit(failpoint.InboxInserting)
	br := p.conn.SendBatch(sending, b)
	if committing {
		p.tx = nil
		tag, err := br.Exec()
		if err == nil && tag.String() == "ROLLBACK" {
			err = fmt.Errorf("a statement failed, but the handler returned nil: %w", pgx.ErrTxCommitRollback)
		}
		if err != nil {
			_ = br.Close()
			cancel()
			rollback(ctx, br.Tx())
			release(p.conn)
			p.conn = nil
			return o, blame(ctx, fmt.Errorf("commit: %w", err), failure.Facts{Committing: true}), errNotOpened
		}
	}
	o.attempt = a
	_, o.err = br.Exec() // BEGIN
	if o.err == nil {
		_, o.err = br.Exec() // time-outs and fence
	}
	switch {
	case o.err != nil:
	case a.followers:
		o.err = p.queues.readFollowers(br, a.ds)
	case a.group != nil:
		o.fresh, o.err = readFresh(br, a.ds)
	default:
		o.written, o.err = readRecord(br)
	}
	if closing := br.Close(); o.err == nil && closing != nil {
		o.err = closing
	}
	o.tx = br.Tx()
	return o, nil, nil
}

// run does an opened transaction, except for its COMMIT. The error is a *failure.Error or errOneByOne.
func (p *pipeline) run(ctx context.Context, o opened) (out Outcome, err error) {
	if err = o.err; err == nil {
		err = ctx.Err()
	}
	switch {
	case len(o.ds) == 1 && o.group == nil:
		out, err = p.inserted(ctx, o.tx, o.ds[0], o.number, o.written, err)
	case err != nil:
	case o.group != nil:
		out, err = Handled, p.runEach(ctx, o)
	case o.followers:
		failpoint.Hit(failpoint.InboxParking)
		out, err = Stored, p.ledger.starts.forget(ctx, o.tx, o.ds...)
	case o.written.handled < len(o.ds):
		err = errOneByOne
	default:
		failpoint.Hit(failpoint.InboxBatched)
		about := handlingOf(o.ds[0], 1)
		out, err = Handled, p.runner.handle(ctx, o.tx, o.ds[0].h, events(o.ds), &about, func(ctx context.Context) error { return p.ledger.starts.forget(ctx, o.tx, o.ds...) })
		for _, d := range o.ds {
			d.attempt, d.ctx = 1, about.ctx
		}
	}
	if err != nil {
		conn := p.conn
		p.conn = nil
		if errors.Is(err, errOneByOne) {
			rollback(ctx, o.tx)
			release(conn)
			return "", err
		}
		f := failureOf(ctx, o.tx, err)
		p.runner.abort(ctx, conn, o.tx, f)
		return "", f
	}
	failpoint.Hit(failpoint.InboxHandled)
	p.tx = o.tx
	return out, nil
}

// runEach runs the handlers of a group, one after the other. It notes in each delivery how long its handler took. The one that
// failed is the last with such a note. A group that has taken too long begins no more of them: what has run can be committed.
//
// An event's row is inserted before its handler's first statement, with those of the events before it. So each handler finds in the
// table inbox what it would find alone: the events before it, its own, and none after it. Handlers that send nothing cost no insert each.
func (p *pipeline) runEach(ctx context.Context, o opened) error {
	first, ran, recorded := time.Now(), 0, 0
	record := func(ctx context.Context, ds []*delivery) error {
		recorded += len(ds)
		return p.ledger.insertGroup(ctx, o.tx, ds)
	}
	for i, d := range o.ds {
		begun := time.Now()
		if i > 0 && begun.Sub(first) > p.runner.groups.Longest {
			break
		}
		about := handlingOf(d, 1)
		about.shares = func(ctx context.Context) error { return record(ctx, o.ds[recorded:i+1]) }
		err := p.runner.handle(o.group[i], o.tx, d.h, []holdfast.Event{d.e}, &about, nil)
		d.took, d.attempt, d.ctx = max(time.Since(begun), 1), 1, about.ctx
		if err != nil {
			return err
		}
		ran = i + 1
	}
	if err := record(ctx, o.ds[recorded:ran]); err != nil {
		return err
	}
	return p.ledger.starts.forget(ctx, o.tx, o.ds[:ran]...)
}

// handlingOf is a run of a handler for a new event, with the number of its attempt.
func handlingOf(d *delivery, attempt int) handling {
	about := handling{
		attempt: attempt,
		from:    stateNone,
		hash:    d.hash,
		called:  d.from == nil,
		place:   -1,
	}
	if d.from != nil {
		about.place = d.from.fence.Partition
	}
	return about
}

// openAndRun is for an attempt that follows no other.
func (p *pipeline) openAndRun(ctx context.Context, a attempt) (Outcome, error) {
	o, _, err := p.open(ctx, a)
	if err != nil {
		return "", err
	}
	return p.run(ctx, o)
}

// commit ends the pipeline. Its error is the last transaction's *failure.
func (p *pipeline) commit(ctx context.Context) error {
	conn, tx := p.conn, p.tx
	p.conn, p.tx = nil, nil
	return p.runner.commitTx(ctx, conn, tx)
}

// long reports that the pipeline should end.
func (p *pipeline) long() bool {
	return p.transactions >= maxTransactions || time.Since(p.since) > maxPipeline
}

func events(ds []*delivery) []holdfast.Event {
	es := make([]holdfast.Event, len(ds))
	for i, d := range ds {
		es[i] = d.e
	}
	return es
}

// admission records an event in an open transaction, and runs its handler.
type admission struct {
	*env
	runner *runner
	ledger *ledger
	queues *queues
}

// admit records an event and runs its handler, in the caller's transaction.
func (a *admission) admit(ctx context.Context, tx pgx.Tx, d *delivery, attempt int) (Outcome, error) {
	bounded, cancel := a.bounded(ctx)
	w, err := a.ledger.insert(bounded, tx, []*delivery{d}, attempt, "", nil)
	cancel()
	return a.inserted(ctx, tx, d, attempt, w, err)
}

// inserted continues after an event was recorded.
func (a *admission) inserted(ctx context.Context, tx pgx.Tx, d *delivery, attempt int, w written, err error) (Outcome, error) {
	if err != nil {
		return "", err
	}
	if w.handled == 1 {
		failpoint.Hit(failpoint.InboxInserted)
		var settle func(ctx context.Context) error
		if d.start > 0 {
			settle = func(ctx context.Context) error { return a.ledger.starts.forget(ctx, tx, d) }
		}
		about := handlingOf(d, attempt)
		err := a.runner.handle(ctx, tx, d.h, []holdfast.Event{d.e}, &about, settle)
		d.attempt, d.ctx = attempt, about.ctx
		return Handled, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	if w.stored == 1 { // It follows earlier events of its key.
		return a.queues.queue(ctx, tx, d, past{}, nil, Stored, true)
	}
	if err := a.ledger.check(ctx, tx, d); err != nil {
		return "", err
	}
	return a.ledger.known(ctx, tx, d)
}

func (led *ledger) queueOpening(b *pgx.Batch, d *delivery) {
	c := led.of(d.e.Type)
	idle, lock := strconv.FormatInt(millis(idleTimeout(*c)), 10), strconv.FormatInt(millis(c.Timeout), 10)
	if d.from == nil {
		b.Queue(led.sql.open, idle, lock)
	} else {
		b.Queue(led.sql.openFenced, idle, lock, position.FenceClass, d.from.fence.Number)
	}
}

// fencesOf are the fences of the partitions that events come from, each once, in the order of their numbers.
func fencesOf(ds []*delivery) (all []*position.Fence) {
	for _, d := range ds {
		if f := d.from.fence; !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b *position.Fence) int { return cmp.Compare(a.Number, b.Number) })
	return all
}

// queueOpeningGroup is queueOpening for a group of events. Handlers in a group wait for locks less long than alone.
func (led *ledger) queueOpeningGroup(b *pgx.Batch, ds []*delivery, fences []*position.Fence) {
	idle, wait := time.Duration(0), led.groups.LockWait
	for _, d := range ds {
		c := led.of(d.e.Type)
		idle, wait = max(idle, idleTimeout(*c)), min(wait, c.Timeout)
	}
	numbers := make([]int32, len(fences))
	for i, f := range fences {
		numbers[i] = f.Number
	}
	b.Queue(led.sql.openGroup, strconv.FormatInt(millis(idle), 10), strconv.FormatInt(millis(wait), 10), position.FenceClass, numbers)
}

// insertGroup records events of a group whose transaction is open. queueFresh has asked for what is before them.
func (led *ledger) insertGroup(ctx context.Context, tx pgx.Tx, ds []*delivery) error {
	if len(ds) == 0 {
		return nil
	}
	ctx, cancel := led.bounded(ctx)
	defer cancel()
	w, err := led.insert(ctx, tx, ds, 1, "handled", nil)
	switch {
	case err != nil:
		return err
	case w.handled < len(ds):
		return errOneByOne
	}
	failpoint.Hit(failpoint.InboxInserted)
	return nil
}

// queueFresh asks which events of a group may be handled now. fences are those of their partitions.
func (led *ledger) queueFresh(b *pgx.Batch, ds []*delivery, fences []*position.Fence) {
	topics, partitions, epochs := make([]string, len(fences)), make([]int32, len(fences)), make([]int64, len(fences))
	for i, f := range fences {
		topics[i], partitions[i], epochs[i] = f.Topic, int32(f.Partition), f.Epoch
	}
	n := len(ds)
	from, sources, ids, keys := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, d := range ds {
		from[i], sources[i], ids[i], keys[i] = d.e.Topic, d.e.Source, d.e.ID, d.e.Key
	}
	b.Queue(led.sql.fresh, led.c.Consumer, topics, partitions, epochs, from, sources, ids, keys, !led.pauses.noKey())
}

// readFresh returns which of the events may be handled now; nil if all may. One that comes twice may be handled once.
func readFresh(br pgx.BatchResults, ds []*delivery) ([]bool, error) {
	var ns []int32
	if err := br.QueryRow().Scan(&ns); err != nil {
		return nil, fmt.Errorf("look for inbox rows: %w", err)
	}
	fresh, seen, n := make([]bool, len(ds)), make(map[[2]string]bool, len(ds)), 0
	for _, at := range ns {
		fresh[at-1] = true
	}
	for i, d := range ds {
		id := [2]string{d.e.Source, d.e.ID}
		if fresh[i] = fresh[i] && !seen[id]; fresh[i] {
			seen[id] = true
			n++
		}
	}
	if n == len(ds) {
		return nil, nil
	}
	return fresh, nil
}
