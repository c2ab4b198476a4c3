// Package kafkago connects relays and inboxes to Kafka with the client github.com/segmentio/kafka-go.
//
// A Publisher is a relay.Publisher, a Group is an inbox.Source, and both take the same Connection:
//
//	connection := kafkago.Connection{Brokers: []string{"kafka:9092"}, TLS: …, SASL: …}
//	publisher, err := kafkago.NewPublisher(connection, kafkago.PublisherConfig{})
//	r, err := relay.New(pool, publisher, relay.Config{})
//	…
//	group, err := kafkago.NewGroup(connection, kafkago.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
//	err = in.Consume(ctx, group)
//
// Package kafkago/oauthbearer authenticates by a token. docs/guides/kafka-connections.md has TLS, SASL and what each error
// means.
//
// No other package of holdfast links a Kafka client. To use another, implement relay.Publisher and inbox.Source, and run
// the checks of relay/publishertest and inbox/sourcetest on them.
//
// # Reading order
//
// connection.go serves publisher and group; secure.go puts TLS and SASL on a connection, and renew.go keeps its session
// alive. publisher.go carries out a call of Publish; topics.go says how many
// partitions a topic has, partitioner.go which of them an event goes to; queue.go decides what of a partition is sent
// next, produce.go sends it; faults.go says what an error means, leaders.go whether one broker is away or all. group.go
// joins a consumer group, generation.go is one distribution of its partitions, balancer.go makes it, fetch.go reads
// records. offsets.go asks where partitions end.
package kafkago
