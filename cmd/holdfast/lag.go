package main

import (
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/metrics"
)

// kafkaTimeout bounds each question to Kafka.
const kafkaTimeout = 10 * time.Second

// endsOf asks brokers where partitions end, until done is called. It is nil without brokers.
func endsOf(brokers []string, flags *kafkaFlags, env func(string) string) (ends metrics.Ends, done func(), err error) {
	if len(brokers) == 0 {
		return nil, func() {}, nil
	}
	connection, err := flags.connection(brokers, env)
	if err != nil {
		return nil, nil, usageError{err}
	}
	offsets, err := kafkago.NewOffsets(connection)
	if err != nil {
		return nil, nil, usageError{err}
	}
	return offsets.Ends, offsets.Close, nil
}

// kafkaClient asks brokers other questions. Close it.
type kafkaClient struct {
	*kafka.Client
	transport *kafka.Transport
}

func newKafkaClient(c kafkago.Connection) *kafkaClient {
	transport := &kafka.Transport{TLS: c.TLS, SASL: c.SASL, ClientID: c.ClientID, DialTimeout: kafkaTimeout / 2}
	return &kafkaClient{&kafka.Client{Addr: kafka.TCP(c.Brokers...), Timeout: kafkaTimeout, Transport: transport}, transport}
}

func (k *kafkaClient) close() { k.transport.CloseIdleConnections() }
