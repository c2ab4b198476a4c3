// Package natsjs connects relays and inboxes to NATS JetStream with the client github.com/nats-io/nats.go.
//
// A Publisher is a relay.Publisher, a Group is an inbox.Source:
//
//	js, err := jetstream.New(conn)
//	publisher, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
//	r, err := relay.New(pool, publisher, relay.Config{})
//	…
//	group, err := natsjs.NewGroup(js, natsjs.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
//	err = in.Consume(ctx, group)
//
// # Design
//
// A topic is a stream, and a partition is a subject of it: topic "orders" with 4 partitions is the stream "orders" with the subjects
// "orders.p0" to "orders.p3". The stream's metadata says how many partitions there are. An operator creates it, of StreamConfig. An
// event goes to the partition of its key, by the hash that Kafka's clients use.
//
// Order: JetStream accepts a message although the one before it was refused or lost. So an event leaves when the one before it of
// its key is acknowledged. Events of different keys are on their way at the same time. A repeat within the stream's duplicate window is
// dropped by the server, because it has the same Nats-Msg-Id.
//
// An offset is a stream sequence. The partitions of a topic share the stream's sequences, so offsets of one partition have gaps.
// A partition at its end moves on to the end of the stream, so that retention does not overtake it.
//
// Members of a group share partitions through a key-value bucket. A member has a key that it writes again and again, its heartbeat. A
// partition has a key with its owner and its committed offset. Each write names the revision that it replaces, so an owner that lost
// the partition changes nothing: its next commit fails. Events are not acknowledged one by one; a commit is one write for a partition.
//
// # Reading order
//
// topic.go names streams and subjects and checks streams, message.go writes and reads messages: both are pure. streams.go remembers
// what streams there are. publisher.go publishes, chain.go keeps a key's order, faults.go says what an error means. share.go decides who
// gets which partition; it is pure. group.go configures a group, session.go is a member of it, roster.go follows the bucket, lease.go
// writes to it. generation.go is what a member has, reader.go reads a partition.
package natsjs
