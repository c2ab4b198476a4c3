package franz

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/murmur2"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Murmur2 is the default of PublisherConfig.PartitionFunc, and what one of your own may call for some of its topics. It answers as the Java
// client, franz-go's own partitioner and kafkago.Murmur2 do for a key, so that programs that use them put a key on the same partition.
// Events without a key are spread by their ID. It is pure: many goroutines may call it.
func Murmur2(e holdfast.Event, partitions int) int {
	if e.Key == "" {
		return murmur2.Partition(e.ID, partitions)
	}
	return murmur2.Partition(wire.RecordKey(e.Key), partitions)
}
