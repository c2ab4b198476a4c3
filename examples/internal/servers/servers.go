// Package servers gives an example the Postgres and the Kafka that it runs on: those that the
// user names, else throwaway ones that end with the example.
//
// None of it is needed in a service, which has a pool and the addresses of its brokers already.
package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/rig/kafkaserver"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// Config says where to run. Name is required.
type Config struct {
	// DatabaseURL names a Postgres: postgres://user:password@host:5432/database. Defaults to one
	// that is started for this run.
	DatabaseURL string

	// Brokers names a Kafka: addresses, host:port, with commas between. Defaults to one inside
	// this process.
	Brokers string

	// Name is the schema of the example's own tables and begins the names of all else it makes:
	// letters, digits and underscores.
	Name string

	// NoKafka is for an example that needs none: no broker is started or looked for. Defaults to false.
	NoKafka bool

	// Keep leaves schemas, topic and consumer group in servers that the user named, for the next
	// run. Defaults to false: Stop removes them.
	Keep bool
}

// Servers is what an example runs on.
type Servers struct {
	Pool    *pgxpool.Pool // finds the example's own tables without a schema before their names
	Brokers []string
	Schema  string // for holdfast's tables
	Topic   string // exists, with 4 partitions
	Group   string // for a consumer

	// AboutPostgres and AboutKafka say in words what was found or started.
	AboutPostgres, AboutKafka string

	config     Config
	url        string
	postgres   *pgserver.Server // nil when it is the user's
	kafka      *kafkaserver.Server
	madeSchema bool // there is something to remove
	madeTopic  bool
}

// NewName is a Name that no other run has.
func NewName(example string) string { return example + "_" + strings.ToLower(rand.Text()[:8]) }

// partitions is more than one, so that order is kept by key and not by accident.
const partitions = 4

// callTimeout bounds what is asked of servers that should answer at once.
const callTimeout = 10 * time.Second

// Start finds or starts both servers and makes the schema and the topic of c.Name. Its errors say
// in a sentence what to do. After an error nothing is left running; else call Stop.
func Start(ctx context.Context, c Config) (*Servers, error) {
	s := &Servers{config: c, Schema: c.Name + "_holdfast", Topic: c.Name + ".orders", Group: c.Name + ".billing"}
	err := s.startPostgres(ctx)
	if err == nil && !c.NoKafka {
		err = s.startKafka(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Servers) startKafka(ctx context.Context) (err error) {
	if s.config.Brokers == "" {
		if s.kafka, err = kafkaserver.InProcess(); err != nil {
			return err
		}
		s.AboutKafka = "Kafka: an in-process fake (KAFKA_BROKERS names a real one)"
	} else {
		brokers := strings.FieldsFunc(s.config.Brokers, func(r rune) bool { return r == ',' || r == ' ' })
		if s.kafka, err = kafkaserver.External(ctx, brokers...); err != nil {
			return fmt.Errorf("KAFKA_BROKERS is %q, but none of them answers: start Kafka, correct the addresses (host:port,host:port), or unset KAFKA_BROKERS to do without (%w)", s.config.Brokers, err)
		}
		s.AboutKafka = "Kafka: " + s.config.Brokers
	}
	s.Brokers = s.kafka.Brokers
	return s.createTopic(ctx)
}

func (s *Servers) createTopic(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := s.kafka.Client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		// -1 is what the cluster's owner chose: one replica would not do where two must be in sync.
		Topics: []kafka.TopicConfig{{Topic: s.Topic, NumPartitions: partitions, ReplicationFactor: -1}},
	})
	if err == nil {
		err = resp.Errors[s.Topic]
	}
	if s.config.Keep && errors.Is(err, kafka.TopicAlreadyExists) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", s.Topic, err)
	}
	s.madeTopic = true
	return nil
}

// Stop closes the pool, removes what the example made in servers that are the user's unless it is
// to be kept, and ends those that were started. It may be called twice.
func (s *Servers) Stop() error {
	var problems []error
	if s.Pool != nil {
		problems = append(problems, s.closePool())
	}
	// On contexts of their own: they run after an interrupt as well.
	if s.kafka != nil {
		if s.kafka.Kind == kafkaserver.KindExternal && s.madeTopic && !s.config.Keep {
			problems = append(problems, s.removeFromKafka())
		}
		s.kafka.Stop()
		s.kafka = nil
	}
	switch {
	case s.postgres != nil:
		s.postgres.Stop()
		s.postgres = nil
	case s.madeSchema && !s.config.Keep:
		problems = append(problems, s.removeFromPostgres())
	}
	s.madeSchema, s.madeTopic = false, false
	return errors.Join(problems...)
}

// closePool does not wait for ever for a connection that is never given back.
func (s *Servers) closePool() error {
	closed := make(chan struct{})
	go func() {
		s.Pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-time.After(callTimeout):
		return fmt.Errorf("%d connections were never given back to the pool", s.Pool.Stat().AcquiredConns())
	}
}

func (s *Servers) removeFromKafka() error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	// The group may never have been made, and the broker forgets an empty one by itself.
	_, _ = s.kafka.Client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{s.Group}})
	if err := s.kafka.DeleteTopic(ctx, s.Topic); err != nil && !errors.Is(err, kafka.UnknownTopicOrPartition) {
		return fmt.Errorf("topic %s is left behind: %w", s.Topic, err)
	}
	return nil
}
