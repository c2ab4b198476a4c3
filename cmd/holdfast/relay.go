package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

// relayCmd is a relay as a process of its own.
type relayCmd struct {
	Brokers   []string      `help:"Kafka brokers as host:port, separated by commas." placeholder:"HOST:PORT" env:"KAFKA_BROKERS" sep:"," required:""`
	Name      string        `help:"Name of this relay; two relays may not share one. Defaults to host, process id and a random part." placeholder:"NAME"`
	Lease     time.Duration `help:"Time before another relay takes over from one that died." default:"5s"`
	BatchSize int           `help:"Number of events to read and publish together." default:"2000"`
	HoldKey   bool          `help:"Keep later events of a key waiting after a dead letter. The same for all relays of a database."`
	LetterTo  string        `help:"Topic to publish dead letters to. An asterisk stands for the event's topic, as in *.dlq. Defaults to none." name:"dead-letter-topic" aliases:"letter-topic" placeholder:"TOPIC"`

	TLS           bool   `help:"Encrypt the connections to Kafka." name:"tls"`
	TLSCA         string `help:"PEM file with the certificates to trust. Defaults to those of the system. Needs --tls." name:"tls-ca" type:"existingfile" placeholder:"FILE"`
	SASLMechanism string `help:"plain, scram-sha-256 or scram-sha-512. User and password come from KAFKA_USER and KAFKA_PASSWORD." placeholder:"NAME" name:"sasl-mechanism" enum:",plain,scram-sha-256,scram-sha-512" default:""`
}

func (r *relayCmd) Run(p *program) error {
	logger := slog.New(slog.NewTextHandler(p.errOut, nil))
	connection, err := r.connection(os.Getenv)
	if err != nil {
		return err
	}
	pool, err := p.pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	publisher, err := kafkago.NewPublisher(connection, kafkago.PublisherConfig{})
	if err != nil {
		return err
	}
	defer publisher.Close()
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

// connection configures the connection to Kafka, encrypted and authenticated as the flags say.
func (r *relayCmd) connection(env func(string) string) (kafkago.Connection, error) {
	c := kafkago.Connection{Brokers: r.Brokers, ClientID: "holdfast-relay"}
	if r.TLSCA != "" && !r.TLS {
		return c, errors.New("--tls-ca needs --tls: add --tls")
	}
	if r.TLS {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		if r.TLSCA != "" {
			pem, err := os.ReadFile(r.TLSCA)
			if err != nil {
				return c, fmt.Errorf("read --tls-ca: %w", err)
			}
			c.TLS.RootCAs = x509.NewCertPool()
			if !c.TLS.RootCAs.AppendCertsFromPEM(pem) {
				return c, fmt.Errorf("--tls-ca is %s: it must have a PEM certificate", r.TLSCA)
			}
		}
	}
	if r.SASLMechanism == "" {
		return c, nil
	}
	user, password := env("KAFKA_USER"), env("KAFKA_PASSWORD")
	if user == "" || password == "" {
		return c, errors.New("--sasl-mechanism needs KAFKA_USER and KAFKA_PASSWORD in the environment")
	}
	var err error
	c.SASL, err = mechanism(r.SASLMechanism, user, password)
	return c, err
}

func mechanism(name, user, password string) (sasl.Mechanism, error) {
	switch name {
	case "scram-sha-256":
		return scram.Mechanism(scram.SHA256, user, password)
	case "scram-sha-512":
		return scram.Mechanism(scram.SHA512, user, password)
	default:
		return plain.Mechanism{Username: user, Password: password}, nil
	}
}
