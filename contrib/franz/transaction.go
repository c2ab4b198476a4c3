package franz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

var errClosed = errors.New("the lane has left this relay")

// The steps of a transaction, as tests name them.
const (
	stepFencing  = "fencing"  // another producer of the lane may be alive
	stepFenced   = "fenced"   // it is fenced, and the lane's mark not read
	stepOwned    = "owned"    // the mark is read
	stepBegun    = "begun"    // a transaction has begun in memory
	stepProduced = "produced" // the events and the mark are in Kafka, and not committed
	stepCommit   = "commit"   // the commit was asked for, and is answered
	stepAborted  = "aborted"  // the transaction is aborted
)

// owner is a client that has fenced all other producers of its lane.
type owner struct{ client *kgo.Client }

// own makes us the only producer of the lane, if we are not, and finds out what is committed.
func (l *laneProducer) own() error {
	if l.owner != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.k.config.ProduceTimeout)
	defer cancel()
	l.k.step(stepFencing)
	client, err := kgo.NewClient(append(slices.Clone(l.k.opts), l.k.config.options(l.id)...)...)
	if err != nil {
		return fmt.Errorf("make a producer: %w", err)
	}
	if _, _, err := client.ProducerID(ctx); err != nil {
		client.Close()
		return fmt.Errorf("fence the lane's last producer: %w", err)
	}
	fencedAt := time.Now()
	l.k.step(stepFenced)
	last, err := l.k.marks.last(ctx, l.partition, l.id)
	if err == nil {
		l.mu.Lock()
		_, err = l.ledger.resolve(last, fencedAt)
		l.mu.Unlock()
	}
	if err != nil {
		client.Close()
		return err
	}
	l.owner, l.marked = &owner{client}, 0
	if last != nil {
		l.marked = len(last.events)
	}
	l.k.step(stepOwned)
	return nil
}

// disown gives the producer up. A transaction of it that is open is aborted by the next one.
func (l *laneProducer) disown() {
	if l.owner != nil {
		l.owner.client.Close()
		l.owner = nil
	}
}

// transact publishes parts in one transaction, and settles them, or puts them back.
func (l *laneProducer) transact(parts []*lanePart) {
	var hashes []eventHash
	for _, p := range parts {
		hashes = append(hashes, p.hashes...)
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.k.config.ProduceTimeout)
	defer cancel()
	errs, general := l.produce(ctx, parts, hashes)
	if general == nil && !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		l.commit(ctx, parts, hashes)
		return
	}
	l.abort(ctx)
	sharing := map[place]int{}
	for _, p := range parts {
		sharing[p.place()]++
	}
	blamed := false
	for i, p := range parts {
		switch e := blame(p, errs[i]); {
		case e == nil:
			p.again()
		case e.Fault == publish.FaultRecord && sharing[p.place()] > 1: // It is not known which of them is to blame.
			blamed, p.alone = true, true
			p.again()
		case e.Fault == publish.FaultRecord:
			blamed = true
			p.Settle(p.batch, e, nil)
		default:
			blamed = true
			p.Settle(p.batch, e, nil)
			l.k.topics.expire(p.place())
			l.disown() // What the client knows of the topic may be old.
		}
	}
	if !blamed {
		l.failed(parts, errors.Join(general, errors.Join(errs...)))
	}
}

// blame is the answer for a part that made its transaction fail; nil if it did not.
func blame(p *lanePart, err error) *publish.Error {
	var code *kerr.Error
	switch {
	case err == nil || forgotten(err) || !errors.As(err, &code):
		return nil
	}
	if e := publishError(p.place(), err); e.Fault != publish.FaultBroker {
		return e
	}
	return nil
}

// failed is for a transaction that failed for the fault of none of its parts, which are put back already.
func (l *laneProducer) failed(parts []*lanePart, err error) {
	l.disown()
	calls := map[*laneCall]bool{}
	for _, p := range parts {
		calls[p.call] = true
	}
	for c := range calls {
		if c.failures++; c.failures >= callRounds || !forgotten(err) {
			c.abandon(err)
		}
	}
}

// produce sends the events of some parts and their mark, and waits for all answers. It returns an error for each part, and one that is of
// none. A part that was not answered in time has a time-out, if others were.
func (l *laneProducer) produce(ctx context.Context, parts []*lanePart, hashes []eventHash) (errs []error, general error) {
	client := l.owner.client
	errs = make([]error, len(parts))
	if err := client.BeginTransaction(); err != nil {
		return errs, fmt.Errorf("begin a transaction: %w", err)
	}
	by, err := identityOf(ctx, client)
	if err != nil {
		return errs, err
	}
	l.k.step(stepBegun)
	l.mu.Lock()
	m := l.ledger.next(hashes)
	l.mu.Unlock()
	l.marked = len(m.events)

	values := m.records()
	r := &results{
		errs:  errs,
		left:  make([]int, len(parts)),
		marks: len(values),
		all:   len(values),
		done:  make(chan struct{}),
	}
	for i, p := range parts {
		r.left[i] = len(p.batch)
		r.all += len(p.batch)
	}
	now := time.Now()
	for _, v := range values {
		client.Produce(ctx, &kgo.Record{
			Topic:     l.k.marks.topic,
			Partition: int32(l.partition),
			Key:       []byte(l.id),
			Value:     v,
			Timestamp: now,
		},
			func(_ *kgo.Record, err error) { r.mark(err) })
	}
	for i, p := range parts {
		for _, at := range p.batch {
			e := &p.Events[at]
			rec := &kgo.Record{
				Topic:     p.Topic,
				Partition: int32(p.Partition),
				Value:     e.Payload,
				Timestamp: now,
			}
			if e.Key != "" {
				rec.Key = []byte(wire.RecordKey(e.Key))
			}
			rec.Headers, _ = wire.Append[kgo.RecordHeader](nil, nil, *e)
			client.Produce(ctx, rec, func(_ *kgo.Record, err error) { r.part(i, err) })
		}
	}
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	errs, general = r.end(ctx.Err())
	if now, err := identityOf(ctx, client); general == nil && (err != nil || now != by) {
		// The client has begun anew in the middle, and what it had published before that is aborted.
		general = errors.Join(err, kerr.InvalidProducerEpoch)
	}
	if general == nil && !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		l.k.step(stepProduced)
	}
	return errs, general
}

// identityOf is what the broker knows a client by.
func identityOf(ctx context.Context, client *kgo.Client) (identity, error) {
	id, epoch, err := client.ProducerID(ctx)
	if err != nil {
		return identity{}, fmt.Errorf("ask for a producer id: %w", err)
	}
	return identity{id, epoch}, nil
}

// commit ends a transaction all of which is in Kafka.
func (l *laneProducer) commit(ctx context.Context, parts []*lanePart, hashes []eventHash) {
	err := l.owner.client.EndTransaction(ctx, kgo.TryCommit)
	l.k.step(stepCommit)
	l.mu.Lock()
	if err == nil {
		l.ledger.committed(hashes)
	} else {
		l.ledger.doubted(hashes)
	}
	l.mu.Unlock()
	if err == nil {
		for _, p := range parts {
			p.Settle(p.batch, nil, nil)
		}
		return
	}
	// Whether it is committed the mark says, once nobody can commit it any more. If it is, the next round reports its events.
	l.disown()
	for _, p := range parts {
		p.again()
		p.call.failures++
	}
	if l.ctx.Err() != nil {
		return
	}
	if err := l.own(); err != nil {
		for _, p := range parts {
			p.call.abandon(err)
		}
	}
}

// abort ends a transaction that must not be committed. If that is not answered the next producer aborts it.
func (l *laneProducer) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	client := l.owner.client
	if err := client.AbortBufferedRecords(ctx); err != nil {
		l.disown()
		return
	}
	if err := client.EndTransaction(ctx, kgo.TryAbort); err != nil {
		l.disown()
	}
	l.k.step(stepAborted)
}

// lastMark writes a mark without events, if the last one names many that are settled.
func (l *laneProducer) lastMark() {
	l.mu.Lock()
	m := l.ledger.next(nil)
	doubt := l.ledger.doubt != nil
	l.mu.Unlock()
	if l.owner == nil || doubt || l.marked <= len(m.events) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if errs, general := l.produce(ctx, nil, nil); general != nil || len(errs) > 0 {
		return // The next owner remembers more.
	}
	_ = l.owner.client.EndTransaction(ctx, kgo.TryCommit)
}

// results are the answers for the records of a transaction.
type results struct {
	mu    sync.Mutex
	errs  []error // the first of each part
	left  []int   // records of each part without an answer
	marks int     // records of the mark without an answer
	all   int     // records without an answer
	own   error   // of the mark
	ended bool
	done  chan struct{} // closed when all are answered
}

func (r *results) mark(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks--
	if err != nil && r.own == nil {
		r.own = fmt.Errorf("write the mark: %w", err)
	}
	r.check()
}

func (r *results) part(i int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left[i]--
	if err != nil && r.errs[i] == nil && !r.ended {
		r.errs[i] = err
	}
	r.check()
}

func (r *results) check() {
	if r.all--; r.all == 0 && !r.ended {
		r.ended = true
		close(r.done)
	}
}

// end returns the answers; late is why not all were waited for.
func (r *results) end(late error) (errs []error, general error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return r.errs, r.own
	}
	r.ended = true
	if errors.Is(late, context.Canceled) {
		return make([]error, len(r.errs)), errClosed
	}
	answered := r.marks == 0 && r.own == nil
	for i, n := range r.left {
		answered = answered || n == 0 && r.errs[i] == nil
	}
	if !answered {
		return slices.Clone(r.errs), fmt.Errorf("publish in a transaction: %w", late)
	}
	errs = slices.Clone(r.errs)
	for i, n := range r.left {
		if n > 0 && (errs[i] == nil || !errors.As(errs[i], new(*kerr.Error))) {
			errs[i] = kerr.RequestTimedOut
		}
	}
	return errs, r.own
}
