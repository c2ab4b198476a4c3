package relay

import "github.com/holdfast-go/holdfast/relay/publish"

// Publisher sends events to a broker. Packages kafkago and contrib/franz have one for Kafka, contrib/nats one for NATS JetStream, and
// package direct one for consumers of the same database. Package publish is for who writes another one, or middleware around one.
type Publisher = publish.Publisher
