package kafkago_test

import (
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/kafkago"
)

// One Connection serves a relay's Publisher and an inbox's Group. Neither touches the network before it runs.
func ExampleConnection() {
	connection := kafkago.Connection{Brokers: []string{"kafka-1:9092", "kafka-2:9092"}, ClientID: "shop"}

	p, err := kafkago.NewPublisher(connection, kafkago.PublisherConfig{ProduceTimeout: 5 * time.Second})
	fmt.Println(p != nil, err) // for relay.New
	g, err := kafkago.NewGroup(connection, kafkago.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
	fmt.Println(g != nil, err) // for inbox.Inbox.Consume
	// Output:
	// true <nil>
	// true <nil>
}

// Services in other languages put a key on the same partition as the Java client does.
func ExampleMurmur2() {
	for _, key := range []string{"alice", "bob", "alice"} {
		fmt.Println(key, kafkago.Murmur2(holdfast.Event{Topic: "orders", Key: key}, 12))
	}
	// Output:
	// alice 9
	// bob 6
	// alice 9
}

// A publisher of your own on kafka-go asks what an error means for the relay.
func ExampleFaultOf() {
	fmt.Println(kafkago.FaultOf(kafka.MessageSizeTooLarge))     // the event's attempts count
	fmt.Println(kafkago.FaultOf(kafka.UnknownTopicOrPartition)) // the topic is waited for
	// Output:
	// record
	// topic
}
