// Package schemaregistry has codecs for payloads whose schemas are in a Confluent Schema Registry, or in one with the same API
// (Redpanda, Karapace, Apicurio): Avro, Protobuf and JSON.
//
// A Registry asks the registry and remembers what it said. Avro, Protobuf and JSON are made of it, and are given to outbox.Typed and
// inbox.WithCodec. Payloads have Confluent's wire format: a zero byte, the schema's id in four bytes, for Protobuf the indexes of the
// message, and the data.
//
// On the consumer's side, a registry that cannot be reached, or that answers 5xx, 429, 401 or 403, is a failure that will pass: the event
// is tried again. An id that it does not know, and a payload that does not fit, make the event a dead letter at once.
//
// The package uses the client of franz-go (github.com/twmb/franz-go/pkg/sr), github.com/twmb/avro and google.golang.org/protobuf.
package schemaregistry
