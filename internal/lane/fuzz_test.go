package lane

import (
	"crypto/sha256"
	"encoding/hex"
	"math/big"
	"testing"
)

// The slow models read the digits that the SQL functions cut out of the same digest. They are Go, as what they are compared
// with: a database would take too long for so many inputs. TestOutbox_GoAndSQLAgreeOnLanesAndLocks, of package outbox, asks the
// SQL functions themselves, for a few keys.
func slowOf(key, id string, lanes int) int {
	if key == "" {
		key = id
	}
	n, _ := new(big.Int).SetString(digits(key)[:8], 16)
	return int(n.Mod(n, big.NewInt(int64(lanes))).Int64())
}

func slowLockNumber(key string) int64 {
	n, _ := new(big.Int).SetString(digits(key)[8:16], 16)
	if n.Bit(31) == 1 { // bit(32)::integer is two's complement
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), 32))
	}
	return n.Int64()
}

func digits(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func FuzzLanesAndLockNumbersAreThoseOfTheSlowTwins(f *testing.F) {
	f.Add("", "id", uint8(7))
	f.Add("k", "", uint8(0))
	f.Add("ключ", "x", uint8(255))
	f.Add("a\x00b", "x", uint8(63))
	f.Fuzz(func(t *testing.T, key, id string, more uint8) {
		lanes := int(more) + 1
		got := Of(key, id, lanes)
		if want := slowOf(key, id, lanes); got != want || got < 0 || got >= lanes {
			t.Fatalf("Of(%q, %q, %d) = %d, the slow model says %d", key, id, lanes, got, want)
		}
		if key != "" && Of(key, id+"x", lanes) != got {
			t.Fatalf("the lane of key %q depends on the id", key)
		}
		if got, want := int64(LockNumber(key)), slowLockNumber(key); got != want {
			t.Fatalf("LockNumber(%q) = %d, the slow model says %d", key, got, want)
		}
	})
}
