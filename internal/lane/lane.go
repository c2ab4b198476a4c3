// Package lane maps keys to lanes and locks, as the SQL functions lane_of and lock_number in schema.sql do. Golden vectors in
// the tests hold the two together: a key that moved to another lane would lose its order.
package lane

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
)

// LockClass is the first number of our two-number advisory locks: "hfdf" in ASCII.
const LockClass = 0x68666466

// Of returns the lane of an event among lanes: by its key, or spread by its id when it has no key.
func Of(key, id string, lanes int) int {
	if key == "" {
		key = id
	}
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint32(sum[:4])) % lanes
}

// PartitionOf returns the partition of an event where there is no broker's client that says it: by its key, or by its id when it has none.
// It is another hash than Of, so that the events of one lane have all partitions.
func PartitionOf(key, id string, partitions int) int {
	if key == "" {
		key = id
	}
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % uint32(partitions))
}

// LockNumber returns the second number of the advisory lock that orders a key's transactions. It uses other bits than
// Of, so that the keys of one lane do not share locks.
func LockNumber(key string) int32 {
	sum := sha256.Sum256([]byte(key))
	return int32(binary.BigEndian.Uint32(sum[4:8]))
}

// KeyClass is the first number of the advisory locks under which the inbox and the dlq change the queue of a key:
// "hfky" in ASCII.
const KeyClass = 0x68666b79

// Number returns the second number of an advisory lock on what the parts name together. No part may contain NUL. Only Go
// code computes it.
func Number(parts ...string) int32 {
	h := sha256.New()
	for _, part := range parts {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return int32(binary.BigEndian.Uint32(h.Sum(nil)[:4]))
}
