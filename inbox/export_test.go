package inbox

// GroupConfig is groupConfig for kafkago_test.go.
type GroupConfig = groupConfig

// SetKafkaGroup sets kafkaGroup.
func SetKafkaGroup(f func(GroupConfig) Source) { kafkaGroup = f }
