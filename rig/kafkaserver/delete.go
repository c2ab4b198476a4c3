package kafkaserver

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// DeleteRecords does what retention does: the log of a partition begins at offset afterwards. It works on any cluster.
// kafka-go has no such request.
func DeleteRecords(ctx context.Context, brokers []string, topic string, partition int, offset int64) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return fmt.Errorf("delete records: %w", err)
	}
	defer client.Close()
	request := kmsg.NewPtrDeleteRecordsRequest()
	request.TimeoutMillis = 10_000
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = int32(partition), offset
	of := kmsg.NewDeleteRecordsRequestTopic()
	of.Topic, of.Partitions = topic, append(of.Partitions, p)
	request.Topics = append(request.Topics, of)
	for _, answer := range client.RequestSharded(ctx, request) {
		if answer.Err != nil {
			return fmt.Errorf("delete records: %w", answer.Err)
		}
		for _, t := range answer.Resp.(*kmsg.DeleteRecordsResponse).Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode != 0 {
					return fmt.Errorf("delete records of %s/%d before %d: %w", topic, partition, offset, kafka.Error(p.ErrorCode))
				}
				if p.LowWatermark != offset {
					return fmt.Errorf("delete records of %s/%d before %d: the log begins at %d", topic, partition, offset, p.LowWatermark)
				}
			}
		}
	}
	return nil
}
