package franz

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/murmur2"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Partitioner says which of partitions an event goes to: 0 to partitions-1. It must look at nothing but the event's topic and key,
// or, for an event without a key, at its ID: then events of one key share a partition, which is what their order rests on, and an
// event that is sent again goes where it went before. It is called from many goroutines at once.
type Partitioner func(e holdfast.Event, partitions int) int

// Murmur2 is the default. It answers as the Java client, franz-go's own partitioner and kafkago.Murmur2 do for a key, so that
// programs that use them put a key on the same partition. Events without a key are spread by their ID.
func Murmur2(e holdfast.Event, partitions int) int {
	if e.Key == "" {
		return murmur2.Partition(e.ID, partitions)
	}
	return murmur2.Partition(wire.RecordKey(e.Key), partitions)
}
