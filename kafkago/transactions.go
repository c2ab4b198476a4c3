package kafkago

import (
	"cmp"
	"slices"
)

// transactions says which batches of a fetch belong to transactions that were aborted.
type transactions struct {
	committed bool // only records of committed transactions are read
	begun     []abortedTransaction
	dropping  map[int64]bool // producers whose transaction, as far as we have read, was aborted
}

// abortedTransaction is a transaction of a producer that was aborted, from its first offset on.
type abortedTransaction struct{ producer, first int64 }

func (tx *transactions) add(producer, first int64) {
	tx.begun = append(tx.begun, abortedTransaction{producer, first})
}

func (tx *transactions) sort() {
	slices.SortFunc(tx.begun, func(a, b abortedTransaction) int { return cmp.Compare(a.first, b.first) })
}

// drops reports that the records of a batch are left out. Batches come in the order of their offsets.
func (tx *transactions) drops(h batch) bool {
	for len(tx.begun) > 0 && tx.begun[0].first <= h.last {
		if tx.dropping == nil {
			tx.dropping = map[int64]bool{}
		}
		tx.dropping[tx.begun[0].producer] = true
		tx.begun = tx.begun[1:]
	}
	return tx.committed && h.attributes.Transactional() && tx.dropping[h.producer]
}

// aborted notes the end of a producer's aborted transaction.
func (tx *transactions) aborted(h batch) { delete(tx.dropping, h.producer) }
