package kafkago

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/segmentio/kafka-go/protocol"
	fetchapi "github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file reads a broker's answer to a fetch from the connection.

// fetchRequest is a fetch whose answer is read here, and not by kafka-go, which unpacks everything that it holds.
type fetchRequest struct {
	fetchapi.Request
	clientID string
	tp       source.TopicPartition
	offset   int64
	maxBytes int64 // more packed bytes than this are not kept: they are read from the connection

	version int16
}

// Required tells kafka-go that the request is sent by RawExchange.
func (r *fetchRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[protocol.Fetch]
	return true
}

// fetched is a broker's answer about one partition.
type fetched struct {
	code         int16
	answered     bool // it says something of the partition
	withheld     int64
	packed       []byte
	transactions *transactions

	page    *source.Page // of batches that were too large to be kept
	refused error
}

func (*fetched) ApiKey() protocol.ApiKey { return protocol.Fetch }

// exchanges numbers the requests.
var exchanges atomic.Int32

// RawExchange sends the request and reads its answer. An error ends the connection.
func (r *fetchRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	id := exchanges.Add(1)
	if err := protocol.WriteRequest(rw, r.version, id, r.clientID, &r.Request); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, err
	}
	d := &answer{r: &io.LimitedReader{R: rw, N: int64(binary.BigEndian.Uint32(size[:]))}}
	if got := d.int32(); d.err == nil && got != id {
		return nil, fmt.Errorf("the broker answered request %d with %d", id, got)
	}
	f := &fetched{}
	r.read(d, f)
	if d.err == nil {
		_, d.err = io.Copy(io.Discard, d.r)
	}
	if d.err == nil && d.r.N > 0 {
		d.err = io.ErrUnexpectedEOF
	}
	if d.err != nil {
		return nil, d.err
	}
	return f, nil
}

// read reads what an answer says, in the order of the protocol.
func (r *fetchRequest) read(d *answer, f *fetched) {
	if r.version >= 1 {
		d.int32() // throttled for
	}
	if r.version >= 7 {
		f.code = d.int16()
		d.int32() // session
	}
	topics := d.int32()
	if topics == 0 || d.err != nil || f.code != 0 {
		return
	}
	d.skip(int64(d.int16())) // topic
	partitions := d.int32()
	if topics != 1 || partitions > 1 {
		d.fail(errors.New("the broker answered a fetch of one partition with several"))
	}
	if partitions == 0 || d.err != nil {
		return
	}
	d.int32() // partition
	f.code, f.answered = d.int16(), true
	end := d.int64()
	if r.version >= 4 {
		// What comes from the last stable offset on is given out when the transaction there ends.
		if stable := d.int64(); r.IsolationLevel == 1 && stable >= 0 && stable <= r.offset {
			f.withheld = max(0, end-r.offset)
		}
	}
	if r.version >= 5 {
		d.int64() // first offset
	}
	f.transactions = &transactions{committed: r.IsolationLevel == 1}
	if r.version >= 4 {
		for n := d.int32(); n > 0 && d.err == nil; n-- {
			producer, first := d.int64(), d.int64()
			f.transactions.add(producer, first)
		}
		f.transactions.sort()
	}
	if r.version >= 11 {
		d.int32() // preferred replica
	}
	switch n := int64(d.int32()); {
	case d.err != nil || n <= 0 || f.code != 0:
	case n > d.r.N:
		d.fail(errors.New("the broker's answer to a fetch ends within its records"))
	case n <= r.maxBytes:
		f.packed = make([]byte, n)
		d.full(f.packed)
	default:
		pg := newPage(r.tp, r.offset, r.maxBytes)
		set := &io.LimitedReader{R: d.r, N: n}
		err := pg.readFirst(set, f.transactions)
		var large *source.TooLargeError
		if errors.As(err, &large) { // The connection is fine.
			f.refused, err = err, nil
		}
		f.page = &pg.Page
		d.fail(err)
	}
}

// answer reads numbers from an answer, until the first error.
type answer struct {
	r   *io.LimitedReader
	err error
	buf [8]byte
}

func (a *answer) fail(err error) {
	if a.err == nil && err != nil {
		a.err = err
	}
}

func (a *answer) full(b []byte) {
	if a.err == nil {
		_, a.err = io.ReadFull(a.r, b)
	}
}

func (a *answer) number(n int) []byte {
	b := a.buf[:n]
	if a.full(b); a.err != nil {
		return bytes.Repeat([]byte{0}, n)
	}
	return b
}

func (a *answer) int16() int16 { return int16(binary.BigEndian.Uint16(a.number(2))) }
func (a *answer) int32() int32 { return int32(binary.BigEndian.Uint32(a.number(4))) }
func (a *answer) int64() int64 { return int64(binary.BigEndian.Uint64(a.number(8))) }

func (a *answer) skip(n int64) {
	if a.err == nil && n > 0 {
		_, a.err = io.CopyN(io.Discard, a.r, n)
	}
}
