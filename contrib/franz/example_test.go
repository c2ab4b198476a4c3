package franz_test

import (
	"context"
	"crypto/tls"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/holdfast-go/holdfast/contrib/franz"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// snippet: options
// options reach Kafka with TLS and a password. They are those of any other program on franz-go.
func options(user, password string, brokers ...string) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}),
		kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()),
	}
}

// end snippet

// snippet: publish
// publish runs a relay until ctx ends.
func publish(ctx context.Context, pool *pgxpool.Pool, opts []kgo.Opt) error {
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	publisher, err := franz.NewPublisher(client, franz.PublisherConfig{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	r, err := relay.New(pool, publisher, relay.Config{})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// end snippet

// snippet: transactions
// publishOnce runs a relay whose events readers of committed records get once. The marks topic has one partition for each lane.
func publishOnce(ctx context.Context, pool *pgxpool.Pool, opts []kgo.Opt) error {
	publisher, err := franz.NewTransactionalPublisher(opts, franz.TransactionalConfig{
		TransactionalID: "shop", MarksTopic: "shop-outbox-marks"})
	if err != nil {
		return err
	}
	defer publisher.Close()
	r, err := relay.New(pool, publisher, relay.Config{})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// end snippet

// snippet: consume
// consume handles events until ctx ends. It may run on any number of nodes.
func consume(ctx context.Context, in *inbox.Inbox, opts []kgo.Opt) error {
	group, err := franz.NewGroup(opts, franz.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
	if err != nil {
		return err
	}
	return in.Consume(ctx, group)
}

// end snippet

func Example() {
	_ = func(ctx context.Context, pool *pgxpool.Pool, in *inbox.Inbox) error {
		opts := options("shop", "secret", "kafka:9093")
		return errors.Join(publish(ctx, pool, opts), publishOnce(ctx, pool, opts), consume(ctx, in, opts))
	}
}
