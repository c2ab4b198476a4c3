package kafkago

import "github.com/holdfast-go/holdfast"

// Partitioner says which of partitions an event goes to: 0 to partitions-1. It must look at nothing but the event's
// topic and key, or, for an event without a key, at its ID: then events of one key share a partition, which is what
// their order rests on, and an event that is sent again goes where it went before. It is called from many goroutines
// at once. Changing it on a live topic moves keys to other partitions, past their own earlier events.
type Partitioner func(e holdfast.Event, partitions int) int

// Murmur2 is the default: the Java client's own choice for records with a key, so that services in other languages
// that write to the same topic put a key on the same partition. Events without a key are spread by their ID.
func Murmur2(e holdfast.Event, partitions int) int {
	by := e.Key
	if by == "" {
		by = e.ID
	}
	return murmur2Partition(by, partitions)
}

// murmur2Partition is Java's BuiltInPartitioner.partitionForKey: the sign bit is masked away, not negated.
func murmur2Partition(key string, partitions int) int {
	return int(murmur2(key)&0x7fffffff) % partitions
}

// murmur2 is org.apache.kafka.common.utils.Utils.murmur2, over unsigned numbers. It takes a string to save the hot
// path a copy.
func murmur2(data string) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	for len(data) >= 4 {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
		data = data[4:]
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(data[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
