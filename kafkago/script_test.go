package kafkago

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast"
)

// partitionName is a topic and a partition of it.
type partitionName struct {
	topic     string
	partition int
}

// request is one batch as it arrived at the broker.
type request struct {
	partitionName
	ids []string
}

func (r request) String() string { return fmt.Sprintf("%s[%d]%v", r.topic, r.partition, r.ids) }

// script is a kafka.RoundTripper that stands for a whole cluster and answers as a test tells it to. Without a script
// it acknowledges and writes everything.
type script struct {
	topics map[string]int // partitions of each topic
	// metadata fails metadata requests.
	metadata func() error
	// leader says who leads a partition: 0 leads all where a test says nothing.
	leader func(partition int) int
	// question says what becomes of one for the end of a partition: nobody answers, where a test says nothing.
	question func(ctx context.Context, partition int) error
	// answer says what becomes of a batch: the response, a zero one for written, or a failure of the network.
	answer func(ctx context.Context, r request) (produce.ResponsePartition, error)

	// misplaced says why a request cannot be sent to one broker.
	misplaced func(all []request) error

	mu        sync.Mutex
	sizes     []int // partitions of each request
	requests  []request
	log       map[partitionName][]string
	asked     int // metadata requests
	questions int // for the end of a partition
	inFlight  map[partitionName]int
	overlaps  int // requests that found another of their partition under way
}

func (s *script) RoundTrip(ctx context.Context, _ net.Addr, r kafka.Request) (kafka.Response, error) {
	switch r := r.(type) {
	case *metadata.Request:
		return s.describe(r)
	case *produce.Request:
		return s.produce(ctx, r)
	case *listoffsets.Request:
		return s.end(ctx, r)
	}
	return nil, fmt.Errorf("a request of type %T was not expected", r)
}

func (s *script) describe(r *metadata.Request) (kafka.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if r.AllowAutoTopicCreation {
		return nil, fmt.Errorf("the request would create topics")
	}
	if s.metadata != nil {
		if err := s.metadata(); err != nil {
			return nil, err
		}
	}
	res := &metadata.Response{}
	for _, name := range r.TopicNames {
		t := metadata.ResponseTopic{Name: name}
		if _, ok := s.topics[name]; !ok {
			t.ErrorCode = int16(kafka.UnknownTopicOrPartition)
		}
		for p := range s.topics[name] {
			leader := 0
			if s.leader != nil {
				leader = s.leader(p)
			}
			t.Partitions = append(t.Partitions, metadata.ResponsePartition{PartitionIndex: int32(p), LeaderID: int32(leader)})
			res.Brokers = append(res.Brokers, metadata.ResponseBroker{NodeID: int32(leader), Host: "script", Port: int32(9092 + leader)})
		}
		res.Topics = append(res.Topics, t)
	}
	return res, nil
}

func (s *script) end(ctx context.Context, r *listoffsets.Request) (kafka.Response, error) {
	s.mu.Lock()
	s.questions++
	s.mu.Unlock()
	if s.question == nil {
		return nil, io.ErrUnexpectedEOF
	}
	if err := s.question(ctx, int(r.Topics[0].Partitions[0].Partition)); err != nil {
		return nil, err
	}
	return &listoffsets.Response{}, nil
}

func (s *script) produce(ctx context.Context, r *produce.Request) (kafka.Response, error) {
	if r.Acks != -1 {
		return nil, fmt.Errorf("acks are %d", r.Acks)
	}
	var all []request
	for _, topic := range r.Topics {
		for _, p := range topic.Partitions {
			batch := request{partitionName{topic.Topic, int(p.Partition)}, nil}
			for record, err := p.RecordSet.Records.ReadRecord(); err != io.EOF; record, err = p.RecordSet.Records.ReadRecord() {
				if err != nil {
					return nil, err
				}
				for _, h := range record.Headers {
					if h.Key == "ce_id" {
						batch.ids = append(batch.ids, string(h.Value))
					}
				}
			}
			all = append(all, batch)
		}
	}
	if s.misplaced != nil {
		if err := s.misplaced(all); err != nil {
			return nil, produce.NewError(err)
		}
	}

	s.mu.Lock()
	s.sizes = append(s.sizes, len(all))
	s.requests = append(s.requests, all...)
	if s.inFlight == nil {
		s.inFlight = map[partitionName]int{}
		s.log = map[partitionName][]string{}
	}
	for _, batch := range all {
		if s.inFlight[batch.partitionName]++; s.inFlight[batch.partitionName] > 1 {
			s.overlaps++
		}
	}
	s.mu.Unlock()

	res, failed := &produce.Response{}, error(nil)
	for _, batch := range all {
		var answer produce.ResponsePartition
		if s.answer != nil {
			var err error
			if answer, err = s.answer(ctx, batch); err != nil {
				failed = err
			}
		}
		answer.Partition = int32(batch.partition)
		res.Topics = append(res.Topics, produce.ResponseTopic{Topic: batch.topic, Partitions: []produce.ResponsePartition{answer}})
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for i, batch := range all {
		s.inFlight[batch.partitionName]--
		if failed == nil && res.Topics[i].Partitions[0].ErrorCode == 0 {
			s.log[batch.partitionName] = append(s.log[batch.partitionName], batch.ids...)
		}
	}
	if failed != nil {
		return nil, failed
	}
	return res, nil
}

// via makes a publisher send through t alone.
func via(t kafka.RoundTripper) func(kafka.RoundTripper) kafka.RoundTripper {
	return func(kafka.RoundTripper) kafka.RoundTripper { return t }
}

// publisher returns a Publisher on the script.
func (s *script) publisher(t testing.TB, c PublisherConfig) *Publisher {
	t.Helper()
	k, err := NewPublisher(Connection{Brokers: []string{"script:9092"}, Wrap: via(s)}, c)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// no is a broker's answer.
func no(code kafka.Error) produce.ResponsePartition {
	return produce.ResponsePartition{ErrorCode: int16(code)}
}

// refuseWith answers code for batches that hold one of ids.
func refuseWith(code kafka.Error, ids ...string) func(context.Context, request) (produce.ResponsePartition, error) {
	return func(_ context.Context, r request) (produce.ResponsePartition, error) {
		for _, id := range r.ids {
			for _, bad := range ids {
				if id == bad {
					return no(code), nil
				}
			}
		}
		return produce.ResponsePartition{}, nil
	}
}

// keyed makes events of topic t with the given keys and the ids 0, 1, 2 and so on.
func keyed(keys ...string) []holdfast.Event {
	var events []holdfast.Event
	for i, key := range keys {
		events = append(events, holdfast.Event{Topic: "t", ID: fmt.Sprint(i), Type: "x", Key: key, Payload: []byte("p")})
	}
	return events
}
