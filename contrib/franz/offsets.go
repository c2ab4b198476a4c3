package franz

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What a ListOffsets request asks for in place of a time.
const (
	earliest = -2
	latest   = -1
)

// Which records a ListOffsets request is about.
const (
	allRecords       int8 = 0
	committedRecords int8 = 1 // the end is where the first open transaction begins, if there is one
)

// offsetsOf asks a leader for an offset of each of some partitions: earliest, latest, or the first one of a time in milliseconds, -1 if no
// record is as late. An error means that not all are known.
func offsetsOf(ctx context.Context, client *kgo.Client, leader int32, of []place, when int64, isolation int8) (map[place]int64, error) {
	resp, err := askOffsets(ctx, client, leader, of, when, isolation)
	if err != nil {
		return nil, err
	}
	return offsetsIn(resp, of)
}

// offsetsIn are the offsets of some partitions in an answer.
func offsetsIn(resp *kmsg.ListOffsetsResponse, of []place) (map[place]int64, error) {
	offsets := make(map[place]int64, len(of))
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
			}
			offsets[place{t.Topic, int(p.Partition)}] = p.Offset
		}
	}
	for _, at := range of {
		if _, ok := offsets[at]; !ok {
			return nil, fmt.Errorf("%s/%d: %w", at.topic, at.partition, errUnnamed)
		}
	}
	return offsets, nil
}

// askOffsets is offsetsOf with what the leader says as it says it.
func askOffsets(ctx context.Context, client *kgo.Client, leader int32, of []place, when int64, isolation int8) (*kmsg.ListOffsetsResponse, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolation
	topics := map[string]int{}
	for _, at := range of {
		n, ok := topics[at.topic]
		if !ok {
			n = len(req.Topics)
			topics[at.topic] = n
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = at.topic
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = int32(at.partition), when
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, p)
	}
	resp, err := client.Broker(int(leader)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.ListOffsetsResponse), nil
}

// boundsOf asks a leader for a partition's first offset, and for that after its last one, whether that is committed or not.
func boundsOf(ctx context.Context, client *kgo.Client, leader int32, at place) (first, end int64, err error) {
	firsts, err := offsetsOf(ctx, client, leader, []place{at}, earliest, allRecords)
	if err != nil {
		return 0, 0, err
	}
	ends, err := offsetsOf(ctx, client, leader, []place{at}, latest, allRecords)
	return firsts[at], ends[at], err
}
