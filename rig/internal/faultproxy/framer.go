package faultproxy

import "encoding/binary"

// message is one of Postgres's protocol. Its body is what was kept of it, and is valid until the framer's next one.
type message struct {
	kind byte // 0 for those of the start, which have none
	body []byte
}

// framer finds the messages in one direction of a connection, whatever the pieces that the bytes come in. It keeps the
// beginning of bodies only, and of most kinds nothing.
type framer struct {
	typed bool // the messages of the start, from the client, are over: each has a kind
	keep  func(kind byte) int

	head  [5]byte
	have  int // bytes of head
	left  int // bytes of the body that are to come; -1 while the head is not complete
	wants int // how much of the body is kept
	body  []byte
}

// between says whether the next byte begins a message.
func (f *framer) between() bool { return f.have == 0 }

// next takes bytes of b up to the end of a message. ok is false when b ends first; broken is true where this is no
// protocol of Postgres.
func (f *framer) next(b []byte) (used int, m message, ok, broken bool) {
	size := 4
	if f.typed {
		size = 5
	}
	for f.have < size && used < len(b) {
		f.head[f.have] = b[used]
		f.have++
		used++
		if f.have < size {
			continue
		}
		// The length counts itself, and not the kind.
		length := int(int32(binary.BigEndian.Uint32(f.head[size-4:])))
		f.left, f.body = length-4, f.body[:0]
		if f.left < 0 || !f.typed && (f.left < 4 || f.left > maxStart) {
			return used, message{}, false, true
		}
		f.wants = min(f.keep(f.kind()), f.left)
	}
	if f.have < size {
		return used, message{}, false, false
	}
	n := min(f.left, len(b)-used)
	f.body = append(f.body, b[used:used+min(n, f.wants-len(f.body))]...)
	f.left -= n
	used += n
	if f.left > 0 {
		return used, message{}, false, false
	}
	f.have = 0
	return used, message{kind: f.kind(), body: f.body}, true, false
}

func (f *framer) kind() byte {
	if f.typed {
		return f.head[0]
	}
	return 0
}

// maxStart is what Postgres takes for the first message, MAX_STARTUP_PACKET_LENGTH.
const maxStart = 10_000

// keepOfClient is how much is needed of what a client sends: names, which are short, and texts.
func keepOfClient(kind byte) int {
	switch kind {
	case 0:
		return 4 // the version
	case 'Q':
		return 1 << 20
	case 'P', 'B', 'E', 'C':
		return 512
	default:
		return 0
	}
}

// keepOfServer is enough for the tag COMMIT.
func keepOfServer(kind byte) int {
	if kind == 'C' {
		return len(commitTag) + 1
	}
	return 0
}

const commitTag = "COMMIT\x00"
