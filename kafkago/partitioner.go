package kafkago

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/murmur2"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Murmur2 is the default of PublisherConfig.PartitionFunc, and what one of your own may call for some of its topics. It is the Java
// client's own choice for records with a key, so that services in other languages that write to the same topic put a key on the
// same partition. Events without a key are spread by their ID. It is pure: many goroutines may call it.
func Murmur2(e holdfast.Event, partitions int) int {
	by := wire.RecordKey(e.Key)
	if by == "" {
		by = e.ID
	}
	return murmur2.Partition(by, partitions)
}
