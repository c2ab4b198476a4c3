package kafkaproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
)

// conn is one client's connection with the one to the broker that belongs to it.
type conn struct {
	proxy          *Proxy
	client, server *net.TCPConn
	once           sync.Once
	gone           chan struct{} // closed when both sides are

	answers   sync.Mutex   // whoever writes to the client holds it
	notBefore atomic.Int64 // nanoseconds of the clock: answers wait until then
}

// end closes both sides, once.
func (c *conn) end(reset bool) {
	c.once.Do(func() {
		close(c.gone)
		for _, side := range []*net.TCPConn{c.client, c.server} {
			if reset {
				_ = side.SetLinger(0)
			}
			_ = side.Close()
		}
	})
}

// up carries requests, whole frames.
func (c *conn) up() {
	for {
		frame, err := readFrame(c.client)
		if err != nil {
			c.end(!errors.Is(err, io.EOF))
			return
		}
		at, isProduce := readProduce(frame)
		var f Fault
		if isProduce {
			f = c.proxy.meet(c, at.all)
		}
		switch f.kind {
		case late:
			c.notBefore.Store(time.Now().Add(f.delay).UnixNano())
		case leaderless:
			err = c.answer(at, kafka.LeaderNotAvailable)
		case refuse:
			err = c.answer(at, kafka.NotEnoughReplicas)
		case hang:
			_, err = io.Copy(io.Discard, c.client) // until the client or the next Set ends the connection
			c.end(true)
		}
		if f.kind == pass || f.kind == late {
			_, err = c.server.Write(frame)
		}
		if err != nil {
			c.end(true)
			return
		}
	}
}

// down carries answers.
func (c *conn) down() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.server.Read(buf)
		if n > 0 {
			c.awaitDue()
			c.answers.Lock()
			_, written := c.client.Write(buf[:n])
			c.answers.Unlock()
			if err == nil {
				err = written
			}
		}
		if err != nil {
			c.end(!errors.Is(err, io.EOF))
			return
		}
	}
}

// awaitDue waits while an answer is late.
func (c *conn) awaitDue() {
	wait := time.Until(time.Unix(0, c.notBefore.Load()))
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.gone:
	}
}

// answer answers in place of the broker, for all partitions of a request.
func (c *conn) answer(to request, code kafka.Error) error {
	var b bytes.Buffer
	answer := &produce.Response{}
	for _, at := range to.all {
		answer.Topics = append(answer.Topics, produce.ResponseTopic{Topic: at.topic,
			Partitions: []produce.ResponsePartition{{Partition: int32(at.partition), ErrorCode: int16(code), BaseOffset: -1, LogAppendTime: -1, LogStartOffset: -1}}})
	}
	err := protocol.WriteResponse(&b, to.version, to.correlation, answer)
	if err != nil {
		return fmt.Errorf("answer in place of the broker: %w", err)
	}
	c.answers.Lock()
	defer c.answers.Unlock()
	_, err = c.client.Write(b.Bytes())
	return err
}

// maxFrame bounds a request. A broker takes 100 MiB by default.
const maxFrame = 128 << 20

// readFrame reads one request with its length. The error is io.EOF where a connection ends between two.
func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return nil, fmt.Errorf("a request has %d bytes: it must be Kafka's protocol without TLS", size)
	}
	frame := make([]byte, 4+size)
	copy(frame, head[:])
	_, err := io.ReadFull(r, frame[4:])
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return frame, err
}

// request is the head of a Produce request, and where its batches go.
type request struct {
	version     int16
	correlation int32
	all         []place
}

// place is a partition.
type place struct {
	topic     string
	partition int
}

// readProduce reads the head of a frame. ok is false for other requests.
func readProduce(frame []byte) (r request, ok bool) {
	b := cursor{frame[4:]}
	if key := b.int16(); key != int16(protocol.Produce) {
		return r, false
	}
	r.version, r.correlation = b.int16(), b.int32()
	b.text() // the client's name
	if r.version >= 3 {
		b.text() // the transaction's name
	}
	b.int16() // acks
	b.int32() // time-out
	for topics := b.int32(); topics > 0 && len(b.left) > 0; topics-- {
		topic := b.text()
		for partitions := b.int32(); partitions > 0 && len(b.left) > 0; partitions-- {
			r.all = append(r.all, place{topic, int(b.int32())})
			b.take(int(max(0, b.int32()))) // its batch
		}
	}
	return r, r.version <= 8 && len(r.all) > 0
}

// cursor reads fields. Beyond the end everything is 0.
type cursor struct{ left []byte }

func (c *cursor) take(n int) []byte {
	if n > len(c.left) {
		c.left = nil
		return make([]byte, n)
	}
	taken := c.left[:n]
	c.left = c.left[n:]
	return taken
}

func (c *cursor) int16() int16 { return int16(binary.BigEndian.Uint16(c.take(2))) }
func (c *cursor) int32() int32 { return int32(binary.BigEndian.Uint32(c.take(4))) }

// text reads a string; null is "".
func (c *cursor) text() string {
	n := c.int16()
	if n < 0 {
		return ""
	}
	return string(c.take(int(n)))
}
