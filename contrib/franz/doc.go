// Package franz connects relays and inboxes to Kafka with the client github.com/twmb/franz-go.
//
// A Publisher is a relay.Publisher, a Group is an inbox.Source:
//
//	client, err := kgo.NewClient(kgo.SeedBrokers("kafka:9092"))
//	publisher, err := franz.NewPublisher(client, franz.PublisherConfig{})
//	r, err := relay.New(pool, publisher, relay.Config{})
//	…
//	group, err := franz.NewGroup([]kgo.Opt{kgo.SeedBrokers("kafka:9092")}, franz.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
//	err = in.Consume(ctx, group)
//
// TLS, SASL, hooks and logs are those of the client's options. docs/guides/franz-go.md says when to take this package, and what
// differs from package kafkago.
//
// # Reading order
//
// publisher.go carries out a call of Publish; topics.go knows the topics, partitioner.go and route.go say which partition an event goes to;
// queue.go decides what of a partition is sent next; sequence.go sends it under a producer's number, and again until it is known
// what became of it; written.go remembers what was found written; line.go puts what many partitions have into one request; batch.go writes a batch; faults.go says what an
// error means. transactional.go, lane.go and transaction.go publish a lane in transactions; ledger.go decides which of its events are in Kafka
// already, by the marks of marks.go, which marks_read.go reads. group.go joins a consumer group, generation.go is what of it a node has, fetch.go reads records.
package franz
