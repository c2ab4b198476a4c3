package inbox

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/lane"
)

// This file puts many events of one key behind it in one transaction. Whoever stores and whoever handles what is stored take the
// lock of the key in turns: one by one, a busy key that has fallen behind would be stored as fast as it is handled, and never
// catch up.

const (
	// maxFollowers is how many are stored in one transaction.
	maxFollowers = 64

	// maxFollowerBytes is how many bytes of payload they may have: what comes beyond is left to the next transaction.
	maxFollowerBytes = 1 << 20
)

// followers is how many events of a key may come behind a job that had this outcome, in one transaction: where it was stored they
// will be too. Where it is not sure that there is room for them, each has to ask for it.
func (qs *queues) followers(out Outcome) int {
	if out == Stored && qs.quota.stock.roomy(maxFollowers, qs.c.MaxStored, time.Now()) {
		return maxFollowers
	}
	return 1
}

// queueFollowers is Receive's way of an event that comes behind others: record, lock, store, in that order, for many.
func (qs *queues) queueFollowers(b *pgx.Batch, ds []*delivery) {
	n, first := len(ds), ds[0]
	sources, ids, types, headers := make([]string, n), make([]string, n), make([]string, n), make([]*string, n)
	times, payloads, hashes, offsets := make([]*time.Time, n), make([][]byte, n), make([][]byte, n), make([]int64, n)
	for i, d := range ds {
		sources[i], ids[i], types[i], headers[i] = d.e.Source, d.e.ID, d.e.Type, headersJSON(d.e.Headers)
		times[i], payloads[i], hashes[i], offsets[i] = timeOrNil(d.e.Time), d.e.Payload, d.hash, d.from.offset
	}
	b.Queue(qs.sql.recordMany, qs.c.Consumer, first.e.Topic, first.partition(), first.epoch(), sources, ids, offsets, hashes)
	b.Queue(qs.sql.lock, int32(lane.KeyClass), qs.keyNumber(first.e.Topic, first.e.Key))
	b.Queue(qs.sql.storeMany, qs.c.Consumer, first.e.Topic, first.e.Key, sources, ids, types, times, headers, payloads, hashes,
		first.partition(), offsets, qs.quota.measures(first.e.Topic, first.e.Key, n))
}

// readFollowers says whether all of them are stored.
func (qs *queues) readFollowers(br pgx.BatchResults, ds []*delivery) error {
	var fresh int
	var behind bool
	var length *int
	err := br.QueryRow().Scan(&fresh)
	if err == nil {
		_, err = br.Exec() // the lock
	}
	if err == nil {
		err = br.QueryRow().Scan(&behind, &length)
	}
	if err != nil {
		return fmt.Errorf("put events behind their key: %w", err)
	}
	if length != nil {
		e := &ds[0].e
		if qs.quota.roomOf(e.Topic, e.Key, *length+len(ds)-1) != nil {
			return errOneByOne
		}
	}
	if fresh != len(ds) || !behind {
		return errOneByOne
	}
	return nil
}
