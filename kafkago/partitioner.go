package kafkago

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/murmur2"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Partitioner says which of partitions an event goes to: 0 to partitions-1. It must look at nothing but the event's
// topic and key, or, for an event without a key, at its ID: then events of one key share a partition, which is what
// their order rests on, and an event that is sent again goes where it went before. It is called from many goroutines
// at once. Changing it on a live topic moves keys to other partitions, past their own earlier events.
type Partitioner func(e holdfast.Event, partitions int) int

// Murmur2 is the default: the Java client's own choice for records with a key, so that services in other languages
// that write to the same topic put a key on the same partition. Events without a key are spread by their ID.
func Murmur2(e holdfast.Event, partitions int) int {
	by := wire.RecordKey(e.Key)
	if by == "" {
		by = e.ID
	}
	return murmur2.Partition(by, partitions)
}
