package natsjs_test

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	natsjs "github.com/holdfast-go/holdfast/contrib/nats"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// snippet: connect
// connect reaches NATS. A relay or a consumer outlives any outage of the servers, so the connection is tried for ever.
func connect(url string, options ...nats.Option) (jetstream.JetStream, error) {
	conn, err := nats.Connect(url, append(options, nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))...)
	if err != nil {
		return nil, err
	}
	return jetstream.New(conn)
}

// end snippet

// snippet: create
// create makes the stream of a topic with 8 partitions, on three servers.
func create(ctx context.Context, js jetstream.JetStream, topic string) error {
	config, err := natsjs.StreamConfig(topic, 8)
	if err != nil {
		return err
	}
	config.Replicas = 3
	_, err = js.CreateStream(ctx, config)
	return err
}

// end snippet

// snippet: publish
// publish runs a relay until ctx ends.
func publish(ctx context.Context, pool *pgxpool.Pool, js jetstream.JetStream) error {
	publisher, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		return err
	}
	r, err := relay.New(pool, publisher, relay.Config{})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// end snippet

// snippet: consume
// consume handles events until ctx ends. It may run on any number of nodes.
func consume(ctx context.Context, in *inbox.Inbox, js jetstream.JetStream) error {
	group, err := natsjs.NewGroup(js, natsjs.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
	if err != nil {
		return err
	}
	return in.Consume(ctx, group)
}

// end snippet

func Example() {
	_ = func(ctx context.Context, pool *pgxpool.Pool, in *inbox.Inbox) error {
		js, err := connect("nats://nats:4222")
		if err != nil {
			return err
		}
		defer js.Conn().Close()
		return errors.Join(create(ctx, js, "orders"), publish(ctx, pool, js), consume(ctx, in, js))
	}
}
