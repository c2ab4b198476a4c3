package franz

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// TransactionalPublisher is a publish.LanePublisher on franz-go: a relay publishes each lane in Kafka's transactions. It may be used by many
// goroutines at once.
//
// A reader with isolation.level=read_committed gets each event once, whatever ends a relay, and in the order of its key. A lane has a
// transactional id. The relay that takes the lane fences the last owner by it, reads from the lane's mark which events that one committed
// and did not save, and does not publish them again. docs/guides/franz-go.md says what is outside of that promise.
//
// A transaction has what a lane has to publish at the time, of all partitions. So a partition that is slow or away delays its lane, by
// ProduceTimeout at most each time that it is tried.
type TransactionalPublisher struct {
	config TransactionalConfig
	opts   []kgo.Opt
	client *kgo.Client // for everything but records
	topics topics
	marks  marks

	reached func(step string) // for tests: where a process may end; nil for nowhere
}

// NewTransactionalPublisher returns a TransactionalPublisher, or one error that names every problem of the options and of the configuration.
// It does not touch the network. It makes a client of the options, and one more for each lane. Close it after the relay has stopped.
func NewTransactionalPublisher(opts []kgo.Opt, c TransactionalConfig) (*TransactionalPublisher, error) {
	c = c.withDefaults()
	problems := c.problems()
	client, err := kgo.NewClient(opts...)
	if err != nil {
		problems = append(problems, fmt.Errorf("options: %w", err))
	} else {
		problems = append(problems, clientProblems("options", client)...)
		if group, _ := client.OptValue(kgo.ConsumerGroup).(string); group != "" {
			problems = append(problems, fmt.Errorf("options: the consumer group is %q: it must be empty, because every lane has a client of its own", group))
		} else if len(problems) == 0 {
			if err := serveSeveral(append(slices.Clone(opts), c.options("any")...)); err != nil {
				problems = append(problems, err)
			}
		}
	}
	if err := errors.Join(problems...); err != nil {
		if client != nil {
			client.Close()
		}
		return nil, fmt.Errorf("kafka transactional publisher: %w", err)
	}
	k := &TransactionalPublisher{config: c, opts: slices.Clone(opts), client: client}
	k.topics = topicsOf(client, c.MetadataTTL, c.ProduceTimeout)
	k.marks = marks{
		topic:   c.MarksTopic,
		topics:  &k.topics,
		fetcher: &fetcher{client: client, committed: true},
	}
	return k, nil
}

// serveSeveral says whether options may be used for several clients.
func serveSeveral(opts []kgo.Opt) (err error) {
	defer func() {
		if p := recover(); p != nil { // of a hook
			err = fmt.Errorf("options serve one client only, and every lane has its own: leave out hooks that cannot be used twice: %v", p)
		}
	}()
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("options: %w", err)
	}
	client.Close()
	return nil
}

// Close closes the publisher's client. Call it when the relay has stopped, which closes those of the lanes. It may be called many times, by
// many goroutines at once.
func (t *TransactionalPublisher) Close() { t.client.Close() }

var (
	_ publish.LanePublisher = (*TransactionalPublisher)(nil)
	_ publish.Pinger        = (*TransactionalPublisher)(nil)
)

// Ping returns nil once any broker has answered, and else why none does: publish.Pinger.
func (t *TransactionalPublisher) Ping(ctx context.Context) error { return t.client.Ping(ctx) }

// Partition says which partition e would go to, and how many its topic has, by what is known: publish.Partitioner.
func (t *TransactionalPublisher) Partition(e holdfast.Event) (partition, partitions int) {
	return t.router().partition(e)
}

func (t *TransactionalPublisher) router() router {
	return router{&t.topics, t.config.PartitionFunc, t.config.MaxRequestBytes}
}

// Publish refuses every event, because an event without a lane has no transactional id: only a relay can publish with this publisher.
func (t *TransactionalPublisher) Publish(_ context.Context, events []holdfast.Event) []error {
	answers := make([]error, len(events))
	for i := range events {
		answers[i] = notSent(place{events[i].Topic, nowhere}, errors.New("a transactional publisher publishes by the lanes of a relay only: use NewPublisher for anything else"))
	}
	return answers
}

// OpenLane returns the producer of a lane: publish.LanePublisher. Its first call of Publish fences every earlier producer of the lane.
func (t *TransactionalPublisher) OpenLane(schema string, lane int, epoch int64) publish.LaneProducer {
	ctx, end := context.WithCancel(context.Background())
	id := fmt.Sprintf("%s.%s.%d", t.config.TransactionalID, schema, lane)
	return &laneProducer{
		k:         t,
		id:        id,
		partition: lane,
		ctx:       ctx,
		end:       end,
		ledger:    newLedger(epoch),
	}
}

func (t *TransactionalPublisher) step(name string) {
	if t.reached != nil {
		t.reached(name)
	}
}
