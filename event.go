package holdfast

import "time"

// Event is one fact that a service announces: something that happened to Key, told once.
//
// A producer hands events to outbox.Write; a consumer's handler is given the same event back, whatever carried it.
// An Event is a plain value; nothing in holdfast changes one after it was written.
type Event struct {
	// ID names the event and is unique within Source. The inbox recognises a redelivery by (Source, ID).
	// At most 255 bytes of UTF-8. Defaults to a new UUIDv7, made by outbox.Write.
	ID string

	// Source is the service that says it, for instance "shop/orders". At most 255 bytes. Defaults to outbox.Config.Source.
	Source string

	// Type says what happened, for instance "order.placed". Handlers are registered by it. At most 255 bytes. Required.
	Type string

	// Topic is the Kafka topic the event is published to: 1 to 249 letters, digits, ".", "_" and "-". Required.
	Topic string

	// Key orders: events of one topic and key share a Kafka partition, and keep their order where a lock makes their
	// transactions wait for each other: a row lock, or outbox.Lock. At most 1,024 bytes of UTF-8. Empty means no order. The text
	// "data:;base64,…" stands for a key of other bytes, as other programs write them to Kafka (inbox.KeyBytes).
	Key string

	// Payload is what is said, in the producer's own encoding. Nil is a tombstone: a Kafka record without a value.
	Payload []byte

	// Headers travel with the event as Kafka record headers. Names are HTTP tokens; "ce_" and "hf_" are reserved.
	Headers map[string]string

	// Time is when it happened, kept to the microsecond. Defaults to the database's clock at Write.
	Time time.Time

	// NotBefore delays publication to that moment at the earliest; the database's clock decides. The event takes its
	// place in its key's order when it falls due, not when it is written. Zero means now.
	NotBefore time.Time
}
