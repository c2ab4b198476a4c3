package main

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

// relayCmd is a relay as a process of its own.
type relayCmd struct {
	Name      string        `help:"Name of this relay; two relays may not share one. Defaults to host, process id and a random part." placeholder:"NAME"`
	Lease     time.Duration `help:"Time before another relay takes over from one that died." default:"5s"`
	BatchSize int           `help:"Number of events to read and publish together." default:"2000"`
	HoldKey   bool          `help:"Keep later events of a key waiting after a dead letter. The same for all relays of a database."`
	LetterTo  string        `help:"Topic to publish dead letters to. An asterisk stands for the event's topic, as in *.dlq. Defaults to none." name:"dead-letter-topic" aliases:"letter-topic" placeholder:"TOPIC"`

	Brokers []string `help:"Kafka brokers as host:port, separated by commas." placeholder:"HOST:PORT" env:"KAFKA_BROKERS" sep:"," required:""`

	Kafka kafkaFlags `embed:""`
}

func (r *relayCmd) Run(p *program) error {
	logger := slog.New(slog.NewTextHandler(p.errOut, nil))
	connection, wrong := r.Kafka.connection(r.Brokers, os.Getenv)
	connection.ClientID = "holdfast-relay"
	publisher, err := kafkago.NewPublisher(connection, kafkago.PublisherConfig{})
	if err := errors.Join(wrong, err); err != nil {
		_, database := p.databaseURL()
		return usageError{errors.Join(err, database)}
	}
	defer publisher.Close()
	pool, err := p.pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	rel, err := relay.New(pool, publisher, relay.Config{Schema: p.cli.Schema, Name: r.Name, Lease: r.Lease, BatchSize: r.BatchSize, HoldKey: r.HoldKey, DeadLetterTopic: r.LetterTo, Logger: logger,
		Observer: relay.Observer{
			OnClaimed:  func(c relay.Claimed) { logger.Info("lane claimed", "lane", c.Lane, "epoch", c.Epoch) },
			OnReleased: func(l relay.Released) { logger.Info("lane released", "lane", l.Lane) },
		}})
	if err != nil {
		return err
	}
	logger.Info("relay started", "brokers", len(r.Brokers), "schema", p.cli.Schema)
	if err := rel.Run(p.ctx); err != nil {
		return err
	}
	logger.Info("relay stopped")
	return nil
}
