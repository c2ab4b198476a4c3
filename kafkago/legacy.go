package kafkago

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file reads what producers from before Kafka 0.11 wrote. kafka-go unpacks it, once it is known to be small enough.

// readLegacy reads a message of version 0 or 1, which may hold others, packed.
func (pg *page) readLegacy(message []byte) error {
	if err := pg.measure(message); err != nil {
		return err
	}
	set := append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...)
	var rs protocol.RecordSet
	if _, err := rs.ReadFrom(bytes.NewReader(set)); err != nil {
		return err
	}
	if rs.Records == nil {
		return nil
	}
	for full := false; ; {
		r, err := rs.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			if full {
				return errFull
			}
			return nil
		}
		if err != nil {
			return err
		}
		rec, cost, err := copied(r) // Also of those for which there is no room: that gives their memory back.
		if err != nil {
			return err
		}
		if rec.Offset < pg.Next || full {
			continue
		}
		if full = len(pg.Records) > 0 && pg.bytes+cost > pg.most; full {
			continue
		}
		pg.bytes += cost
		pg.Records, pg.Next = append(pg.Records, rec), rec.Offset+1
	}
}

// measure refuses a message that holds more, unpacked, than the page may have.
func (pg *page) measure(message []byte) error {
	unpacked, next := int64(len(message)), int64(binary.BigEndian.Uint64(message))+1
	if codec := protocol.Attributes(message[17]).Compression(); codec != 0 {
		at := 18
		if message[16] == 1 {
			at += 8 // its time
		}
		for range 2 { // the key, which is null, and the value
			if len(message) < at+4 {
				return errRecordEnds
			}
			n := int(int32(binary.BigEndian.Uint32(message[at:])))
			message = message[at+4:]
			at = max(0, n)
		}
		r, done, err := unpack(batch{attributes: protocol.Attributes(codec)}, bytes.NewReader(message), pg.most)
		if err != nil {
			return err
		}
		defer done()
		unpacked, err = io.Copy(io.Discard, io.LimitReader(r, pg.most+1))
		if err != nil {
			return err
		}
	}
	if 2*unpacked > pg.most {
		return &source.TooLargeError{
			Needs: max(4*pg.most, 4*unpacked),
			Next:  next,
			Err: fmt.Errorf("a message of an old version has %d bytes or more, and is unpacked as a whole: "+
				"there is room for %d", unpacked, pg.most),
		}
	}
	return nil
}

// copied takes a record out of kafka-go's shared pages, and gives those back.
func copied(r *protocol.Record) (rec source.Record, cost int64, err error) {
	rec = source.Record{Offset: r.Offset, Time: r.Time}
	if r.Key != nil {
		defer r.Key.Close()
		if rec.Key, err = protocol.ReadAll(r.Key); err != nil {
			return rec, 0, err
		}
	}
	if r.Value != nil {
		defer r.Value.Close()
		if rec.Value, err = protocol.ReadAll(r.Value); err != nil {
			return rec, 0, err
		}
	}
	for _, h := range r.Headers {
		rec.Headers = append(rec.Headers, source.Header(h))
	}
	return rec, recordCost + int64(len(rec.Key)+len(rec.Value)), nil
}
