// Package lane maps keys to lanes and locks. It is the Go twin of the SQL functions lane_of and lock_number in
// schema.sql: golden vectors in the tests hold the two together, because a key that moved to another lane would lose
// its order.
package lane

import (
	"crypto/sha256"
	"encoding/binary"
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

// LockNumber returns the second number of the advisory lock that orders a key's transactions. It uses other bits than
// Of, so that the keys of one lane do not share locks.
func LockNumber(key string) int32 {
	sum := sha256.Sum256([]byte(key))
	return int32(binary.BigEndian.Uint32(sum[4:8]))
}
