package faultproxy

import (
	"bytes"
	"encoding/binary"
)

// conversation follows what a client and Postgres say on one connection, so that a COMMIT and its answer are found. It is
// fed with every byte that goes on, in order. What is not Postgres's protocol 3, or is encrypted, it lets pass.
//
// A client's messages up to a Sync, or one Query, are a round: the server ends it with one ReadyForQuery. In a round
// COMMITs are answered in their order. A round in which something fails is answered without what comes after.
type conversation struct {
	foreign  bool // it is nothing that can be followed
	up, down framer
	asks     bool // the client asked for encryption, and the server has not answered: that is one bare byte

	statements, portals map[string]bool // those that are COMMIT

	sent  int // rounds that the client has begun and ended, the start of the connection among them
	ready int // rounds that the server has ended
	asked int // COMMITs of the round that the client is in
	done  int // COMMITs that are answered of the round that the server is in

	awaited *awaited // whose answer must not arrive; nil for none
	seen    int64    // COMMITs
}

// awaited is the COMMIT number n of a round, both counted from 0.
type awaited struct{ round, n int }

func newConversation() *conversation {
	return &conversation{
		up: framer{keep: keepOfClient}, down: framer{keep: keepOfServer, typed: true},
		statements: map[string]bool{}, portals: map[string]bool{},
	}
}

// fromClient follows b and says how much of it goes on. cut is asked at each COMMIT, unless the answer of one is awaited.
// For Before the COMMIT and all that follows it is held back, and the connection is to be closed.
func (c *conversation) fromClient(b []byte, cut func() (Moment, bool)) (n int, closing bool) {
	begin := 0
	for i := 0; i < len(b) && !c.foreign; {
		if c.up.between() {
			begin = i
		}
		used, m, ok, broken := c.up.next(b[i:])
		i += used
		c.foreign = broken
		if !ok {
			continue
		}
		if !c.up.typed {
			c.start(m)
			continue
		}
		if c.isCommit(m) {
			c.seen++
			if c.awaited == nil {
				switch moment, now := cut(); {
				case now && moment == Before:
					return begin, true
				case now:
					c.awaited = &awaited{round: c.sent, n: c.asked}
				}
			}
			c.asked++
		}
		if m.kind == 'S' || m.kind == 'Q' || m.kind == 'F' {
			c.sent++
			c.asked = 0
		}
	}
	return len(b), false
}

// start takes the messages before the typed ones.
func (c *conversation) start(m message) {
	switch version := binary.BigEndian.Uint32(m.body); {
	case version == sslRequest || version == gssRequest:
		c.asks = true
	case version >= version30 && version <= version32:
		c.up.typed = true
		c.sent = 1
	default:
		c.foreign = true // a request to cancel, or no Postgres at all: Kafka's are far from these numbers, nearly all
	}
}

const (
	version30  = 3 << 16
	version32  = 3<<16 + 2
	sslRequest = 80877103
	gssRequest = 80877104
)

// isCommit keeps the names of what is COMMIT, and says whether m runs one.
func (c *conversation) isCommit(m message) bool {
	name, rest, _ := bytes.Cut(m.body, []byte{0})
	switch m.kind {
	case 'Q':
		return commits(string(name))
	case 'P':
		text, _, whole := bytes.Cut(rest, []byte{0})
		mark(c.statements, string(name), whole && commits(string(text)))
	case 'B':
		statement, _, _ := bytes.Cut(rest, []byte{0})
		mark(c.portals, string(name), c.statements[string(statement)])
	case 'E':
		return c.portals[string(name)]
	case 'C':
		if len(name) > 0 && name[0] == 'S' {
			delete(c.statements, string(name[1:]))
		} else if len(name) > 0 {
			delete(c.portals, string(name[1:]))
		}
	}
	return false
}

func mark(names map[string]bool, name string, is bool) {
	if is {
		names[name] = true
	} else {
		delete(names, name)
	}
}

// fromServer follows b and says how much of it goes on. closing: the answer of the COMMIT that is awaited begins there.
// missed: its round has ended without one, so it was not carried out.
func (c *conversation) fromServer(b []byte) (n int, closing, missed bool) {
	begin := 0
	for i := 0; i < len(b) && !c.foreign; {
		if c.asks {
			c.asks = false
			c.foreign = b[i] != 'N'
			i++
			continue
		}
		if c.down.between() {
			begin = i
		}
		used, m, ok, broken := c.down.next(b[i:])
		i += used
		c.foreign = broken
		switch {
		case !ok:
		case m.kind == 'C' && string(m.body) == commitTag:
			if a := c.awaited; a != nil && a.round == c.ready && a.n == c.done {
				return begin, true, missed
			}
			c.done++
		case m.kind == 'Z':
			if a := c.awaited; a != nil && a.round == c.ready {
				c.awaited, missed = nil, true
			}
			c.ready++
			c.done = 0
		}
	}
	return len(b), false, missed
}
