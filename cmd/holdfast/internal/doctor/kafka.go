package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/terminal"
	"github.com/holdfast-go/holdfast/kafkago"
)

// kafkaTimeout bounds each question to Kafka.
const kafkaTimeout = 10 * time.Second

// Kafka asks brokers about topics. Close it.
type Kafka struct {
	*kafka.Client
	transport *kafka.Transport
}

func NewKafka(c kafkago.Connection) *Kafka {
	transport := &kafka.Transport{
		TLS:         c.TLS,
		SASL:        c.SASL,
		ClientID:    c.ClientID,
		DialTimeout: kafkaTimeout / 2,
	}
	return &Kafka{&kafka.Client{
		Addr:      kafka.TCP(c.Brokers...),
		Timeout:   kafkaTimeout,
		Transport: transport,
	}, transport}
}

// Close closes its connections.
func (k *Kafka) Close() { k.transport.CloseIdleConnections() }

// kafka asks for the topics that consumers read, that events wait for, and that were named.
func (d *Doctor) kafka(ctx context.Context, client *Kafka, topics []string) ([]Finding, error) {
	if client == nil {
		return []Finding{notMade("kafka", "holdfast doctor --brokers HOST:PORT,...", "not asked: pass --brokers")}, nil
	}
	known, err := d.topics(ctx)
	if err != nil {
		return nil, err
	}
	topics = append(slices.Clone(topics), known...)
	slices.Sort(topics)
	var largest int
	if err := d.Pool.QueryRow(ctx, d.in(doctorLargest)).Scan(&largest); err != nil {
		return nil, err
	}
	seen, err := client.examine(ctx, slices.Compact(topics))
	if err != nil {
		return []Finding{fail("kafka", "holdfast doctor --brokers HOST:PORT,... --tls", "no broker answers: check the address, the network, and --tls and --sasl-mechanism: %s", terminal.Clean(err.Error()))}, nil
	}
	found := []Finding{ok("kafka", "the brokers answer; %s checked", terminal.Count(len(seen), "topic"))}
	for _, t := range seen {
		t.largest = largest
		found = append(found, judgeTopic(t)...)
	}
	return found, nil
}

func (d *Doctor) topics(ctx context.Context) (topics []string, err error) {
	err = pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, d.in(doctorTopics))
		if err != nil {
			return err
		}
		if topics, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return err
		}
		if err := state.Settings(ctx, tx); err != nil {
			return err
		}
		held, err := state.Reader{DB: tx, Schema: d.Schema.Schema}.Held(ctx)
		for _, h := range held {
			topics = append(topics, h.Topic)
		}
		return err
	})
	return topics, err
}

// examine asks for the partitions and the configuration of topics.
func (k *Kafka) examine(ctx context.Context, topics []string) (seen []topicSeen, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*kafkaTimeout)
	defer cancel()
	if len(topics) == 0 {
		_, err := k.ApiVersions(ctx, &kafka.ApiVersionsRequest{})
		return nil, err
	}
	meta, err := k.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, fmt.Errorf("ask for topics: %w", err)
	}
	request := &kafka.DescribeConfigsRequest{}
	for _, t := range meta.Topics {
		s := topicSeen{name: t.Name, err: t.Error}
		for _, p := range t.Partitions {
			if s.replicas == 0 || len(p.Replicas) < s.replicas {
				s.replicas = len(p.Replicas)
			}
		}
		if s.err == nil {
			request.Resources = append(request.Resources, kafka.DescribeConfigRequestResource{
				ResourceType: kafka.ResourceTypeTopic,
				ResourceName: t.Name,
				ConfigNames:  []string{"max.message.bytes", "min.insync.replicas"},
			})
		}
		seen = append(seen, s)
	}
	if err := k.unseen(ctx, seen); err != nil {
		return nil, err
	}
	if len(request.Resources) == 0 {
		return seen, nil
	}
	configs, err := k.DescribeConfigs(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("ask for the configuration of topics: %w", err)
	}
	for _, r := range configs.Resources {
		i := slices.IndexFunc(seen, func(s topicSeen) bool { return s.name == r.ResourceName })
		if i < 0 {
			continue
		}
		seen[i].configsForbidden = r.Error != nil
		for _, c := range r.ConfigEntries {
			n, err := strconv.Atoi(c.ConfigValue)
			switch {
			case err != nil:
			case c.ConfigName == "max.message.bytes":
				seen[i].maxMessage = n
			case c.ConfigName == "min.insync.replicas":
				seen[i].minInsync = n
			}
		}
	}
	return seen, nil
}

// unseen finds out which missing topics are there after all. To a user who may not see a topic it does not exist, and only a wish to
// create it tells. Nothing is created: the brokers are asked whether they would.
func (k *Kafka) unseen(ctx context.Context, seen []topicSeen) error {
	request := &kafka.CreateTopicsRequest{ValidateOnly: true}
	for _, s := range seen {
		if errors.Is(s.err, kafka.UnknownTopicOrPartition) {
			request.Topics = append(request.Topics, kafka.TopicConfig{
				Topic:             s.name,
				NumPartitions:     1,
				ReplicationFactor: 1,
			})
		}
	}
	if len(request.Topics) == 0 {
		return nil
	}
	answer, err := k.CreateTopics(ctx, request)
	if err != nil {
		return fmt.Errorf("ask whether topics are hidden: %w", err)
	}
	for i, s := range seen {
		if errors.Is(answer.Errors[s.name], kafka.TopicAlreadyExists) {
			seen[i].err = kafka.TopicAuthorizationFailed
		}
	}
	return nil
}
