package franz

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// identity is what a broker knows a producer by.
type identity struct {
	id    int64
	epoch int16
}

// batchWriter writes record batches of version 2, in memory that it uses again. One goroutine at a time may use it.
type batchWriter struct {
	record  []byte
	records []byte
	count   int32 // of records
	scratch []byte
	headers []kgo.RecordHeader
	packed  bytes.Buffer
}

// begin begins a batch without records.
func (w *batchWriter) begin() { w.records, w.count = w.records[:0], 0 }

// write returns the batch of the records that were appended, under a producer's identity and the sequence number of the first. Records
// carry the time at: the event's own is in ce_time, and as the record's it would let a topic's retention delete an old event as soon
// as it is written.
func (w *batchWriter) write(by identity, first int32, at time.Time, codec kgo.Compressor) []byte {
	records, attributes := w.records, int16(0)
	if codec != nil {
		w.packed.Reset()
		packed, used := codec.Compress(&w.packed, w.records)
		if used != kgo.CodecNone && len(packed) < len(records) {
			records, attributes = packed, int16(used)
		}
	}
	now := at.UnixMilli()
	const header = 61
	batch := kmsg.RecordBatch{
		Length:               int32(header - 12 + len(records)),
		PartitionLeaderEpoch: -1,
		Magic:                2,
		Attributes:           attributes,
		LastOffsetDelta:      w.count - 1,
		FirstTimestamp:       now,
		MaxTimestamp:         now,
		ProducerID:           by.id,
		ProducerEpoch:        by.epoch,
		FirstSequence:        first,
		NumRecords:           w.count,
		Records:              records,
	}
	out := batch.AppendTo(make([]byte, 0, header+len(records)))
	binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], castagnoli))
	return out
}

// append adds the record of an event.
func (w *batchWriter) append(e *holdfast.Event) {
	w.headers, w.scratch = wire.Append(w.headers[:0], w.scratch[:0], *e)
	r := append(w.record[:0], 0) // attributes
	r = kbin.AppendVarlong(r, 0) // after the batch's time
	r = kbin.AppendVarint(r, w.count)
	if e.Key == "" {
		r = kbin.AppendVarint(r, -1)
	} else {
		r = kbin.AppendVarintString(r, wire.RecordKey(e.Key))
	}
	r = kbin.AppendVarintBytes(r, e.Payload)
	r = kbin.AppendVarint(r, int32(len(w.headers)))
	for _, h := range w.headers {
		r = kbin.AppendVarintString(r, h.Key)
		r = kbin.AppendVarintBytes(r, h.Value)
	}
	w.record = r
	w.count++
	w.records = kbin.AppendVarint(w.records, int32(len(r)))
	w.records = append(w.records, r...)
}

// after is the sequence number after n records from first on. Numbers go from 0 to the largest int32, and on from 0.
func after(first int32, n int) int32 {
	return int32((int64(first) + int64(n)) & 0x7fffffff)
}
