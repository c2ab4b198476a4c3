package inbox

// This file is for groups that take and give single partitions, while the others are read on (cooperative rebalancing).

// Incremental is a Generation whose partitions come and go while it lasts. Assigned returns those of the beginning.
//
// If nobody has called Changes, a change ends the generation: Over is closed, and the next generation has all partitions.
type Incremental interface {
	Generation

	// Changes returns a channel of what changes after the beginning, in order. It is the same at every call, and nothing comes after
	// Over was closed.
	Changes() <-chan Change

	// Release says that this node has released some of the partitions that a change revoked, so that the group may give them to
	// others. Bounds, Fetch and Commit are not called for them any more. It does not wait, and many goroutines may call it at once.
	Release(of []TopicPartition)
}

// Change is a change of the partitions of a generation.
type Change struct {
	// Added are new partitions, and where to start reading each. Nobody else has them any more.
	Added map[TopicPartition]Start

	// Revoked are those that the group wants back. It waits for Incremental.Release, for as long as it keeps a member.
	Revoked []TopicPartition
}
