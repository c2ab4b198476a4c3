package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/holdfast-go/holdfast/internal/test/servers"
	"github.com/holdfast-go/holdfast/testkit/kafkaserver"
)

// InProcessKafka starts the imitation, in this process.
func (s *Servers) InProcessKafka(args servers.KafkaArgs, reply *servers.KafkaReply) error {
	var opts []kfake.Opt
	if args.Nodes > 0 {
		opts = append(opts, kfake.NumBrokers(args.Nodes))
	}
	server, err := kafkaserver.InProcess(opts...)
	if err != nil {
		return err
	}
	reply.Brokers, reply.ID = server.Brokers, s.add(server, server.Stop)
	return nil
}

// ContainerKafka starts Apache Kafka.
func (s *Servers) ContainerKafka(args servers.KafkaArgs, reply *servers.KafkaReply) error {
	server, err := kafkaserver.Container(context.Background(), kafkaserver.ContainerOptions{Settings: args.Settings})
	if err != nil {
		reply.Missing = err.Error()
		return nil
	}
	reply.Brokers, reply.ID = server.Brokers, s.add(server, server.Stop)
	return nil
}

// Kafka does something to a server.
func (s *Servers) Kafka(args servers.DoArgs, _ *servers.DoReply) error {
	server, err := get[*kafkaserver.Server](s, args.ID)
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch args.Verb {
	case servers.End:
		server.Stop()
		return nil
	case servers.Pause:
		return server.Pause(ctx)
	case servers.Unpause:
		return server.Unpause(ctx)
	case servers.StopBroker:
		return server.StopBroker(ctx)
	case servers.Kill:
		return server.KillBroker(ctx)
	case servers.StartBroker:
		return server.StartBroker(ctx)
	}
	return fmt.Errorf("Verb is %q: it must be one for Kafka", args.Verb)
}
