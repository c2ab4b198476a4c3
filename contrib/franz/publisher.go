package franz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/singleflight"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/partitionqueue"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Publisher is a relay.Publisher on franz-go. It may be used by many goroutines at once.
//
// Order: a partition's batches leave one after the other, each after the last one is settled. Calls that run at the same time share them,
// and have no order between them. What follows a refused event of a key does not leave.
//
// Writes are idempotent. A batch that got no answer is sent again as it was, in the same call or in the next one for its partition,
// and a broker that has it does not write it again. So a time-out, a lost connection or a new leader repeats nothing, if this Publisher
// lives and what failed is published again within five minutes. An event is taken for one that is written if all of its record is the
// same, in the topic of the same id; with a Kafka before 2.8, which has no ids, it is written again. When the process ends, the next
// one cannot know what became of the last batches: their events are published again, and the inbox drops them by their ids.
//
// It sends Produce requests of its own, through the client's connections: franz-go's producer pipelines the batches of a partition, and
// what follows a refused record would be written before anybody knows.
type Publisher struct {
	client *kgo.Client
	slow   *kgo.Client
	own    bool // slow is ours to close
	config PublisherConfig
	codec  kgo.Compressor
	topics topics

	ask, askSlow asker

	writers sync.Pool // of *batchWriter

	mu        sync.Mutex
	sequences map[place]*sequence
	sweptAt   time.Time // when sequences that are idle were removed
	removed   bool      // some were: their numbers under the shared identity are taken
	lines     map[lineOf]*line

	shared atomic.Pointer[identity] // of all partitions, unless a broker has forgotten it

	// ackedAt is when a broker last acknowledged anything, in nanoseconds since start, and asking are the questions under way whether
	// another leader answers: they tell a broker that is away from a cluster that is. And that for the shared identity.
	start   time.Time
	ackedAt atomic.Int64
	asking  singleflight.Group
}

type lineOf struct {
	broker int32
	slow   bool
}

// NewPublisher returns a Publisher on a client, or one error that names every problem of the client's options and of the configuration.
// It does not touch the network. The client stays its owner's: others may use it at the same time, and its owner closes it after the
// relay has stopped. Of its options those about connections, security, hooks and compression count; those about batches, retries and
// buffers of its own producer do not.
func NewPublisher(client *kgo.Client, c PublisherConfig) (*Publisher, error) {
	c = c.withDefaults()
	problems := slices.Concat(clientProblems("client", client), c.problems())
	k := &Publisher{
		client:    client,
		slow:      c.Slow,
		config:    c,
		sequences: map[place]*sequence{},
		lines:     map[lineOf]*line{},
		start:     time.Now(),
	}
	if c.Slow != nil {
		problems = append(problems, clientProblems("slow", c.Slow)...)
	} else if client != nil && len(problems) == 0 {
		var err error
		if k.slow, err = slowClient(client); err != nil {
			problems = append(problems, err)
		}
		k.own = true
	}
	if client != nil {
		var err error
		if k.codec, err = codecOf(client); err != nil {
			problems = append(problems, err)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("kafka publisher: %w", err)
	}
	k.topics = topicsOf(client, c.MetadataTTL, c.ProduceTimeout)
	k.ask, k.askSlow = by(client), by(k.slow)
	k.writers.New = func() any { return new(batchWriter) }
	return k, nil
}

// codecOf is how a client packs batches.
func codecOf(client *kgo.Client) (kgo.Compressor, error) {
	if codec, ok := client.OptValue(kgo.WithCompressor).(kgo.Compressor); ok && codec != nil {
		return codec, nil
	}
	codecs, _ := client.OptValue(kgo.ProducerBatchCompression).([]kgo.CompressionCodec)
	return kgo.DefaultCompressor(codecs...)
}

// Close closes what the Publisher opened: its second client, unless that was given. Call it when the relay has stopped. It may be called
// many times, by many goroutines at once.
func (pu *Publisher) Close() {
	if pu.own {
		pu.slow.Close()
	}
}

var _ publish.Pinger = (*Publisher)(nil)

// Ping returns nil once any broker has answered, and else why none does: publish.Pinger.
func (pu *Publisher) Ping(ctx context.Context) error { return pu.client.Ping(ctx) }

var _ publish.Gatherer = (*Publisher)(nil)

// Partition says which partition e would go to, and how many its topic has, by what is known: publish.Partitioner. Both are 0 for a topic
// that no call of Publish has met yet, and for one that does not exist. It never asks the network.
func (pu *Publisher) Partition(e holdfast.Event) (partition, partitions int) {
	return pu.router().partition(e)
}

func (pu *Publisher) router() router {
	return router{&pu.topics, pu.config.PartitionFunc, pu.config.MaxRequestBytes}
}

// Publish sends events to Kafka, the partitions at the same time, and answers once for each: nil when all in-sync replicas have it, else
// an error that wraps a *publish.Error. A batch that is refused because of one record is divided until that record stands alone; it
// is refused, the later events of its topic and key are not sent and answer with its error, wrapped, and everything else is sent. Any
// other failure ends its partition for this call: what has not left does not leave.
//
// When ctx is cancelled nothing more is sent, and Publish waits for the answers to what was, at most ProduceTimeout.
func (pu *Publisher) Publish(ctx context.Context, events []holdfast.Event) []error {
	answers := make([]error, len(events))
	queues := pu.router().route(ctx, events, answers)
	pu.each(queues, func(i int) { pu.drain(ctx, queues[i]) })
	return answers
}

// PublishTogether is Publish for several batches: publish.Gatherer. Partitions share requests whenever several of a leader have something to
// send, by whatever calls; so this only saves calls.
func (pu *Publisher) PublishTogether(ctx context.Context, batches [][]holdfast.Event, answered func(batch int, answers []error)) {
	g := partitionqueue.Join(batches, answered)
	queues := pu.router().route(ctx, g.Events, g.Answers)
	g.Divided(len(queues), func(i int) [][]int32 { return queues[i].Runs })
	pu.each(queues, func(i int) {
		pu.drain(ctx, queues[i])
		g.Done(i)
	})
}

// each calls do for every queue, at the same time.
func (pu *Publisher) each(queues []*queue, do func(i int)) {
	var others sync.WaitGroup
	for i := 1; i < len(queues); i++ {
		others.Go(func() { do(i) })
	}
	if len(queues) > 0 {
		do(0)
	}
	others.Wait()
}

// sequence returns that of a partition. Those that are idle are removed once in a while.
func (pu *Publisher) sequence(at place) *sequence {
	pu.mu.Lock()
	defer pu.mu.Unlock()
	now := time.Now()
	if now.Sub(pu.sweptAt) >= rememberedFor {
		pu.sweptAt = now
		for at, s := range pu.sequences {
			if s.idle(now) {
				delete(pu.sequences, at)
				pu.removed = true
			}
		}
	}
	s := pu.sequences[at]
	if s == nil {
		s = &sequence{place: at, renew: pu.removed}
		pu.sequences[at] = s
	}
	s.used(now)
	return s
}

// line returns the one to a broker.
func (pu *Publisher) line(broker int32, slow bool) *line {
	pu.mu.Lock()
	defer pu.mu.Unlock()
	l := pu.lines[lineOf{broker, slow}]
	if l == nil {
		l = &line{ask: pu.ask, broker: broker, timeout: replicate}
		if slow {
			l.ask, l.timeout = pu.askSlow, replicateSlow
		}
		pu.lines[lineOf{broker, slow}] = l
	}
	return l
}
