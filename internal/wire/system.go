package wire

// Kafka is what OpenTelemetry calls the messaging system of events whose publisher or source names none.
const Kafka = "kafka"

// System is the messaging system of a publisher or a source: what its method System says (publish.Named, source.Named), or Kafka if it has
// none, or says "".
func System(of any) string {
	if named, ok := of.(interface{ System() string }); ok {
		if system := named.System(); system != "" {
			return system
		}
	}
	return Kafka
}
