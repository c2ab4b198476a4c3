package kafkago

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"

	"github.com/segmentio/kafka-go/protocol"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file reads record batches of version 2, one record at a time, so that no batch is in memory as a whole. What its producer
// wrote is not trusted: nothing is allocated by a number before the bytes that it counts are known to be few enough.

const (
	batchPrefix = 12 // base offset and length, which is that of the rest
	batchHeader = 61 // with the prefix

	// What a record and a header take in memory beside their bytes.
	recordCost = 256
	headerCost = 64

	// leftOutKey is the longest key, and leftOutHeaders the most bytes of headers, that are read of a record whose value is left out.
	leftOutKey     = 4 << 10
	leftOutHeaders = 64 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch is the header of a record batch.
type batch struct {
	size       int64 // with the prefix
	base       int64 // offset
	crc        uint32
	attributes protocol.Attributes
	last       int64 // offset
	time       int64 // of the first record, in milliseconds
	producer   int64
	records    int32
}

// sizeOfFirst is the size of the first batch of a set, with its prefix, and of at least the prefix.
func sizeOfFirst(set []byte) int64 {
	if len(set) < batchPrefix {
		return batchPrefix
	}
	return batchPrefix + max(0, int64(int32(binary.BigEndian.Uint32(set[8:]))))
}

// batchOf reads the first bytes of a batch: batchHeader of them, if it is one. Before Kafka 0.11 there were messages of other formats, which it
// refuses with errOld. Such a message tells the last offset in it.
func batchOf(b []byte) (h batch, err error) {
	h.size = sizeOfFirst(b)
	if len(b) < batchPrefix+5 {
		return h, fmt.Errorf("a batch has %d bytes", len(b))
	}
	h.base = int64(binary.BigEndian.Uint64(b))
	switch format := b[16]; {
	case format < 2:
		return h, errOld
	case format > 2:
		return h, fmt.Errorf("the batch at offset %d has the format %d: only 2 is read", h.base, format)
	}
	if len(b) < batchHeader || h.size < batchHeader {
		return h, fmt.Errorf("a batch at offset %d has %d bytes", h.base, h.size)
	}
	h.crc, h.attributes = binary.BigEndian.Uint32(b[17:]), protocol.Attributes(binary.BigEndian.Uint16(b[21:]))
	h.last, h.time = h.base+int64(int32(binary.BigEndian.Uint32(b[23:]))), int64(binary.BigEndian.Uint64(b[27:]))
	h.producer, h.records = int64(binary.BigEndian.Uint64(b[43:])), int32(binary.BigEndian.Uint32(b[57:]))
	return h, nil
}

// page is what one Fetch returns, and how much room is left in it.
type page struct {
	source.Page
	tp      source.TopicPartition
	most    int64
	bytes   int64
	skipped int64 // bytes that were unpacked to get at the first record, and thrown away
}

func newPage(tp source.TopicPartition, offset, maxBytes int64) *page {
	return &page{Page: source.Page{Next: offset}, tp: tp, most: maxBytes}
}

// errFull ends the reading of a page.
var errFull = errors.New("the page is full")

// errOld is batchOf's of a message from before Kafka 0.11.
var errOld = errors.New("a message of Kafka's format 0 or 1: only 2 is read, which producers write since Kafka 0.11")

// refuse is the error of a set that begins with such messages. The offset to go on at comes after as many as there are one after the other.
func (pg *page) refuse(set []byte) error {
	old := &source.TooLargeError{}
	first := int64(binary.BigEndian.Uint64(set))
	for int64(len(set)) >= batchPrefix {
		h, err := batchOf(set)
		if !errors.Is(err, errOld) {
			break
		}
		old.Next, set = h.base+1, set[min(h.size, int64(len(set))):]
	}
	old.Err = fmt.Errorf("offsets up to %d, at %d the first: %w; more such messages may follow", old.Next-1, first, errOld)
	return pg.wrap(old)
}

// readAll reads the batches of a set, and returns those that the page has no room for. A batch that is cut off is left out.
func (pg *page) readAll(set []byte, tx *transactions) (rest []byte, err error) {
	for int64(len(set)) >= sizeOfFirst(set) {
		h, err := batchOf(set)
		if errors.Is(err, errOld) {
			return nil, pg.refuse(set)
		}
		if err != nil {
			return nil, pg.wrap(err)
		}
		packed := set[:h.size]
		if crc32.Checksum(packed[21:], castagnoli) != h.crc {
			return nil, pg.wrap(fmt.Errorf("the batch at offset %d is damaged: its checksum differs", h.base))
		}
		err = pg.read(h, bytes.NewReader(packed[batchHeader:]), tx)
		if errors.Is(err, errFull) {
			pg.Wants = pg.skipped
			return set, nil
		}
		if err != nil {
			return nil, pg.wrap(err)
		}
		set = set[h.size:]
	}
	return nil, nil
}

// readFirst reads the first batch of a set as it comes from the connection, because it is too large to be kept. The rest is
// thrown away, and fetched again.
func (pg *page) readFirst(set *io.LimitedReader, tx *transactions) error {
	header := make([]byte, batchHeader)
	if _, err := io.ReadFull(set, header); err != nil {
		return err
	}
	h, err := batchOf(header)
	switch {
	case errors.Is(err, errOld):
		return pg.refuse(header)
	case err != nil:
		return pg.wrap(err)
	case h.size-batchHeader > set.N:
		return pg.wrap(fmt.Errorf("the broker cut off the batch at offset %d, which has %d bytes", h.base, h.size))
	}
	checksum := crc32.New(castagnoli)
	_, _ = checksum.Write(header[21:])
	packed := &io.LimitedReader{R: set, N: h.size - batchHeader}
	read := pg.read(h, io.TeeReader(packed, checksum), tx)
	if _, err := io.Copy(checksum, packed); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, set); err != nil {
		return err
	}
	if checksum.Sum32() != h.crc {
		pg.Page = source.Page{}
		return pg.wrap(fmt.Errorf("the batch at offset %d is damaged: its checksum differs", h.base))
	}
	if errors.Is(read, errFull) {
		pg.Wants = h.size
		return nil
	}
	if len(pg.Records) > 0 { // An error comes again with the next page.
		return nil
	}
	return pg.wrap(read)
}

// wrap adds to an error where the page begins.
func (pg *page) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("read %s/%d from offset %d on: %w", pg.tp.Topic, pg.tp.Partition, pg.Next, err)
}

// read reads the records of a batch. errFull says that the page has no room for the next one.
func (pg *page) read(h batch, packed io.Reader, tx *transactions) error {
	if h.last < pg.Next { // It was asked for by an offset that compaction removed, or it came once more.
		return nil
	}
	drop := tx.drops(h)
	unpacked, done, err := unpack(h, packed, pg.most)
	if err != nil {
		return err
	}
	defer done()
	rs := records{r: bufio.NewReaderSize(unpacked, 32<<10)}
	for range h.records {
		r, err := rs.begin(h)
		switch {
		case err != nil:
			return unpackingError(h, err)
		case r.Offset < pg.Next: // A batch may begin before the offset that was asked for.
			pg.skipped += rs.left
		case h.attributes.Control():
			if err = rs.control(h, tx); err != nil {
				return unpackingError(h, err)
			}
			pg.Next = r.Offset + 1
		case drop:
			pg.Next = r.Offset + 1
		default:
			cost := recordCost + rs.left
			if len(pg.Records) > 0 && pg.bytes+cost > pg.most {
				return errFull
			}
			if cost, err = rs.read(&r, pg.most); err != nil {
				return unpackingError(h, err)
			}
			if r.LeftOut > 0 && len(pg.Records) > 0 { // Its headers make it that large.
				return errFull
			}
			pg.bytes += cost
			pg.Records, pg.Next = append(pg.Records, r), r.Offset+1
			if r.LeftOut > 0 {
				return errFull
			}
		}
		if err := rs.skip(); err != nil {
			return unpackingError(h, err)
		}
	}
	pg.Next = max(pg.Next, h.last+1)
	return nil
}

// records reads the records of a batch, unpacked. It is a reader of the rest of one record.
type records struct {
	r     *bufio.Reader
	left  int64             // bytes of the record
	body  []byte            // they, if load has read them; else nil
	names map[string]string // of headers: most records of a batch have the same
}

// load reads the rest of the record into memory of its own, which key, value and headers are parts of then.
func (rs *records) load() error {
	body := make([]byte, rs.left)
	if _, err := io.ReadFull(rs.r, body); err != nil {
		return noEOF(err)
	}
	rs.body = body
	return nil
}

// take takes the next n bytes of what load has read. left does not count them any more.
func (rs *records) take(n int64) []byte {
	b := rs.body[:n:n]
	rs.body = rs.body[n:]
	return b
}

func (rs *records) ReadByte() (byte, error) {
	if rs.left <= 0 {
		return 0, errRecordEnds
	}
	rs.left--
	if rs.body != nil {
		return rs.take(1)[0], nil
	}
	return rs.r.ReadByte()
}

var errRecordEnds = errors.New("a record ends early")

func (rs *records) number() (int64, error) { return binary.ReadVarint(rs) }

// begin reads the beginning of a record, up to its key.
func (rs *records) begin(h batch) (r source.Record, err error) {
	if rs.left, err = binary.ReadVarint(rs.r); err != nil {
		return r, noEOF(err)
	}
	if rs.left > math.MaxInt32 { // https://kafka.apache.org/documentation/#recordbatch
		return r, fmt.Errorf("a record has a length of %d: it must be at most %d", rs.left, math.MaxInt32)
	}
	if _, err = rs.ReadByte(); err != nil { // attributes
		return r, noEOF(err)
	}
	late, err := rs.number()
	if err != nil {
		return r, noEOF(err)
	}
	offset, err := rs.number()
	if err != nil {
		return r, noEOF(err)
	}
	at := h.time + late
	r.Offset, r.Time = h.base+offset, time.Unix(at/1000, at%1000*int64(time.Millisecond))
	return r, nil
}

// read reads the rest of a record, and returns what it takes in memory. If that is more than most, the value is left out.
func (rs *records) read(r *source.Record, most int64) (cost int64, err error) {
	cost = recordCost + rs.left
	key, value, headers := most, most, most
	if cost > most {
		r.LeftOut, key, value, headers = cost, leftOutKey, -1, leftOutHeaders
	} else if err = rs.load(); err != nil {
		return 0, err
	}
	if r.Key, err = rs.bytes(key); err != nil {
		return 0, err
	}
	if r.Value, err = rs.bytes(value); err != nil {
		return 0, err
	}
	n, err := rs.number()
	if err != nil {
		return 0, noEOF(err)
	}
	if n < 0 || n > rs.left/2 {
		return 0, fmt.Errorf("a record with %d bytes left says that it has %d headers", rs.left, n)
	}
	if cost += headerCost * n; cost > most {
		r.LeftOut, r.Key, r.Value, headers = cost, bytes.Clone(r.Key), nil, leftOutHeaders
	}
	if r.LeftOut == 0 && n > 0 {
		r.Headers = make([]source.Header, 0, n)
	}
	for ; n > 0; n-- {
		name, err := rs.bytes(headers)
		if err != nil {
			return 0, err
		}
		content, err := rs.bytes(headers)
		if err != nil {
			return 0, err
		}
		if headers -= headerCost + int64(len(name)+len(content)); r.LeftOut > 0 && headers < 0 {
			break
		}
		if r.LeftOut > 0 { // What was loaded with them is given up.
			content = bytes.Clone(content)
		}
		r.Headers = append(r.Headers, source.Header{Key: rs.name(name), Value: content})
	}
	if r.LeftOut > 0 {
		return leftOutKey + leftOutHeaders, nil
	}
	return cost, nil
}

// bytes reads a length and as many bytes; nil for a length of -1, and if there are more than most.
func (rs *records) bytes(most int64) ([]byte, error) {
	n, err := rs.number()
	switch {
	case err != nil:
		return nil, noEOF(err)
	case n < 0:
		return nil, nil
	case n > rs.left:
		return nil, errRecordEnds
	}
	rs.left -= n
	if n > most {
		return nil, rs.discard(n)
	}
	if rs.body != nil {
		return rs.take(n), nil
	}
	b := make([]byte, n)
	_, err = io.ReadFull(rs.r, b)
	return b, noEOF(err)
}

// name is the name of a header. Those that come again and again are in memory once.
func (rs *records) name(b []byte) string {
	const most, longest = 32, 64
	if name, ok := rs.names[string(b)]; ok {
		return name
	}
	name := string(b)
	if len(rs.names) < most && len(b) <= longest {
		if rs.names == nil {
			rs.names = map[string]string{}
		}
		rs.names[name] = name
	}
	return name
}

// control reads a control record, which ends a transaction.
func (rs *records) control(h batch, tx *transactions) error {
	key, err := rs.bytes(leftOutKey)
	if err == nil && len(key) >= 4 && binary.BigEndian.Uint16(key[2:]) == 0 {
		tx.aborted(h)
	}
	return err
}

// skip skips the rest of a record.
func (rs *records) skip() error {
	n := rs.left
	rs.left = 0
	err := rs.discard(n)
	rs.body = nil
	return err
}

func (rs *records) discard(n int64) error {
	switch {
	case n == 0:
		return nil
	case rs.body != nil:
		rs.take(n)
		return nil
	}
	_, err := io.CopyN(io.Discard, rs.r, n)
	return noEOF(err)
}

// noEOF is the error of reading what must be there.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
