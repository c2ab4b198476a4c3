package readahead

import (
	"testing"
)

func TestMemory_PartitionsShareTheMemoryEqually(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ budget, partitions, page, share int64 }{
		{128 << 20, 0, 4 << 20, 16 << 20},
		{128 << 20, 1, 4 << 20, 16 << 20},
		{128 << 20, 8, 2 << 20, 8 << 20},
		{128 << 20, 64, 256 << 10, 1 << 20},
		{128 << 20, 10_000, 64 << 10, 64 << 10},
		{16 << 20, 1, 2 << 20, 8 << 20},
	} {
		m := NewMemory(row.budget)
		m.Partitions.Store(row.partitions)
		if m.Page() != row.page || m.Share() != row.share {
			t.Errorf("of %d bytes, %d partitions have pages of %d and a share of %d", row.budget, row.partitions, m.Page(), m.Share())
		}
	}
}
