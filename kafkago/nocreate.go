package kafkago

import (
	"encoding/binary"
	"net"
)

// This file keeps a group from creating topics. kafka-go asks which partitions there are in a way that lets a broker with
// auto.create.topics.enable, Kafka's default, create a topic that is missing, and has no setting for it (Conn.ReadPartitions).

// neverCreates is a connection of kafka-go to a group's coordinator whose questions create no topic: in each request for metadata it says
// so. Requests are written one after the other, in as many pieces as kafka-go likes.
type neverCreates struct {
	net.Conn
	head   []byte // of the request that is being written: its size, what it asks for and in which version
	left   int    // bytes of it that come after head
	clears bool   // its last byte says that topics may be created
}

const (
	headSize      = 8 // size (4), API key (2), version (2)
	metadataKey   = 3
	firstThatSays = 4 // In these versions AllowAutoTopicCreation is the last field. kafka-go asks in version 6, and in 1 on brokers
	lastThatSays  = 7 // before Kafka 1.0: there nobody can say it.
)

func (c *neverCreates) Write(p []byte) (int, error) {
	out, own := p, false
	for at := 0; at < len(p); {
		if len(c.head) < headSize {
			n := min(headSize-len(c.head), len(p)-at)
			c.head = append(c.head, p[at:at+n]...)
			at += n
			if len(c.head) < headSize {
				break
			}
			api, version := binary.BigEndian.Uint16(c.head[4:]), binary.BigEndian.Uint16(c.head[6:])
			c.left = int(binary.BigEndian.Uint32(c.head)) + 4 - headSize
			c.clears = api == metadataKey && version >= firstThatSays && version <= lastThatSays
		}
		n := max(0, min(c.left, len(p)-at))
		at += n
		if c.left -= n; c.left > 0 {
			break
		}
		if c.clears && n > 0 {
			if !own { // The caller's bytes are not ours to change.
				out, own = append([]byte(nil), p...), true
			}
			out[at-1] = 0
		}
		c.head = c.head[:0]
	}
	return c.Conn.Write(out)
}
