package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/kafkago"
)

// kafkaTimeout bounds each question to Kafka.
const kafkaTimeout = 10 * time.Second

// topicPartition is a partition of a topic.
type topicPartition struct {
	topic     string
	partition int
}

// offsets returns where partitions end. One that Kafka does not know is left out.
type offsets func(ctx context.Context, of []topicPartition) (map[topicPartition]int64, error)

// kafkaClient asks brokers questions. Close it.
type kafkaClient struct {
	*kafka.Client
	transport *kafka.Transport
}

func newKafkaClient(c kafkago.Connection) *kafkaClient {
	transport := &kafka.Transport{TLS: c.TLS, SASL: c.SASL, ClientID: c.ClientID, DialTimeout: kafkaTimeout / 2}
	return &kafkaClient{&kafka.Client{Addr: kafka.TCP(c.Brokers...), Timeout: kafkaTimeout, Transport: transport}, transport}
}

func (k *kafkaClient) close() { k.transport.CloseIdleConnections() }

// ends implements offsets.
func (k *kafkaClient) ends(ctx context.Context, of []topicPartition) (map[topicPartition]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	there, err := k.partitions(ctx, of)
	if err != nil {
		return nil, err
	}
	request := &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{}}
	for _, tp := range of {
		if slices.Contains(there, tp) {
			request.Topics[tp.topic] = append(request.Topics[tp.topic], kafka.LastOffsetOf(tp.partition))
		}
	}
	if len(request.Topics) == 0 {
		return nil, nil
	}
	answer, err := k.ListOffsets(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("list offsets: %w", err)
	}
	ends := map[topicPartition]int64{}
	var problems []error
	for topic, partitions := range answer.Topics {
		for _, p := range partitions {
			if p.Error != nil {
				problems = append(problems, fmt.Errorf("list offsets of %s/%d: %w", topic, p.Partition, p.Error))
				continue
			}
			ends[topicPartition{topic, p.Partition}] = p.LastOffset
		}
	}
	return ends, errors.Join(problems...)
}

// partitions returns all partitions of the topics that Kafka knows: it refuses a whole request for one that it does not.
func (k *kafkaClient) partitions(ctx context.Context, of []topicPartition) (there []topicPartition, err error) {
	var topics []string
	for _, tp := range of {
		if !slices.Contains(topics, tp.topic) {
			topics = append(topics, tp.topic)
		}
	}
	meta, err := k.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, fmt.Errorf("ask for topics: %w", err)
	}
	for _, t := range meta.Topics {
		for _, p := range t.Partitions {
			there = append(there, topicPartition{t.Name, p.ID})
		}
	}
	return there, nil
}

// partitionsOf reads the rows of statusPartitions.
func partitionsOf(rows pgx.Rows) ([]topicPartition, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (tp topicPartition, err error) {
		err = row.Scan(&tp.topic, &tp.partition)
		return tp, err
	})
}
