// Package murmur2 says which partition Kafka's Java client puts a key on. All publishers to Kafka use it.
package murmur2

// Partition is Java's BuiltInPartitioner.partitionForKey: the sign bit is masked away, not negated.
func Partition(key string, partitions int) int {
	return int(Sum(key)&0x7fffffff) % partitions
}

// Sum is org.apache.kafka.common.utils.Utils.murmur2, over unsigned numbers. It takes a string to save the hot
// path a copy.
func Sum(data string) uint32 {
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
