package inbox

import "github.com/holdfast-go/holdfast/inbox/source"

// Source is a consumer group, from which Consume takes events. Packages kafkago and contrib/franz have one for Kafka,
// contrib/nats for NATS JetStream. Package source is for who writes another one.
type Source = source.Source
