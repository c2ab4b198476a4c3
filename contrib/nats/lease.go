package natsjs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file writes a partition's key. Every write names the revision that it replaces.

// lease is a partition that a generation has.
type lease struct {
	kv      jetstream.KeyValue
	key     string
	owner   string
	created time.Time // of the stream

	writing sync.Mutex // held during a write

	mu        sync.Mutex // never held during a write
	committed int64
	revision  uint64
}

// errTaken says that the partition has another owner.
var errTaken = errors.New("another member has taken the partition")

// taken says that a write named a revision that is no longer the last.
func taken(err error) bool {
	var coded interface{ APIError() *jetstream.APIError }
	if !errors.As(err, &coded) || coded.APIError() == nil {
		return false
	}
	code := coded.APIError().ErrorCode
	return code == jetstream.JSErrCodeStreamWrongLastSequence || code == wrongLastSequence
}

// wrongLastSequence is what newer servers say beside JSErrCodeStreamWrongLastSequence.
const wrongLastSequence = 10164

// claim takes a partition whose key is as it was seen; revision 0: it has none. The error wraps errTaken if somebody else was quicker.
func claim(ctx context.Context, kv jetstream.KeyValue, key string, r leaseRecord, revision uint64) (*lease, error) {
	value, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if revision == 0 {
		revision, err = kv.Create(ctx, key, value)
	} else {
		revision, err = kv.Update(ctx, key, value, revision)
	}
	if taken(err) {
		err = fmt.Errorf("%w: %w", errTaken, err)
	}
	if err != nil {
		return nil, err
	}
	return &lease{
		kv:        kv,
		key:       key,
		owner:     r.Owner,
		created:   r.Created,
		committed: r.Committed,
		revision:  revision,
	}, nil
}

// commit writes an offset. It fails if another member has the partition.
func (l *lease) commit(ctx context.Context, offset int64) error {
	return l.write(ctx, func(r *leaseRecord) { r.Committed = offset })
}

// release gives the partition back, and keeps its offset.
func (l *lease) release(ctx context.Context) error {
	return l.write(ctx, func(r *leaseRecord) { r.Owner = "" })
}

// write writes the key, with a change. The answer to an earlier write may have been lost: if the key still has this owner, nobody has
// had it since, and its revision is the one to replace.
func (l *lease) write(ctx context.Context, change func(r *leaseRecord)) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	committed, before := l.state()
	r := leaseRecord{Owner: l.owner, Committed: committed, Created: l.created}
	change(&r)
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	revision, err := l.kv.Update(ctx, l.key, value, before)
	if taken(err) {
		e, asked := l.kv.Get(ctx, l.key)
		if asked != nil && !errors.Is(asked, jetstream.ErrKeyNotFound) {
			return asked // Nobody knows.
		}
		var now leaseRecord
		if asked != nil || json.Unmarshal(e.Value(), &now) != nil || now.Owner != l.owner || e.Revision() == before {
			return fmt.Errorf("%w: %w", errTaken, err)
		}
		revision, err = l.kv.Update(ctx, l.key, value, e.Revision())
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.committed, l.revision = r.Committed, revision
	return nil
}

func (l *lease) state() (committed int64, revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.committed, l.revision
}

// lostTo says that what was seen of the key shows another owner.
func (l *lease) lostTo(seen seenLease) bool {
	_, revision := l.state()
	return seen.revision > revision && seen.Owner != l.owner
}

// start says where to read the partition from.
func (l *lease) start(c GroupConfig) source.Start {
	committed, _ := l.state()
	return source.Start{
		Committed:      committed,
		AdoptCommitted: c.AdoptCommitted,
		SkipDeleted:    c.SkipDeleted,
	}
}
