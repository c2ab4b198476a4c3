package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/holdfast-go/holdfast/internal/test/servers"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// imitation is an imitation of Kafka in this process, and how many connections it has open.
type imitation struct {
	*kafkaserver.Server
	open *atomic.Int64
}

// InProcessKafka starts the imitation, in this process.
func (s *Servers) InProcessKafka(args servers.KafkaArgs, reply *servers.KafkaReply) error {
	open := new(atomic.Int64)
	opts := []kfake.Opt{kfake.ListenFn(func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		return countingListener{l, open}, err
	})}
	if args.Nodes > 0 {
		opts = append(opts, kfake.NumBrokers(args.Nodes))
	}
	if args.Create {
		opts = append(opts, kfake.AllowAutoTopicCreation())
	}
	if args.Settings != nil {
		opts = append(opts, kfake.BrokerConfigs(args.Settings))
	}
	for topic, partitions := range args.Topics {
		opts = append(opts, kfake.SeedTopics(int32(partitions), topic))
	}
	if args.Certificate != nil {
		pair, err := tls.X509KeyPair(args.Certificate, args.Key)
		if err != nil {
			return fmt.Errorf("read the certificate: %w", err)
		}
		opts = append(opts, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	if args.Mechanism != "" {
		opts = append(opts, kfake.EnableSASL(), kfake.Superuser(args.Mechanism, args.User, args.Password))
	}
	server, err := kafkaserver.InProcess(opts...)
	if err != nil {
		return err
	}
	reply.Brokers, reply.ID = server.Brokers, s.add(imitation{server, open}, server.Stop)
	return takeTurns(server.Fake(), args.Imitation)
}

// takeTurns makes the brokers leaders of partitions one after another: by itself the imitation draws them, which can make
// one the leader of all.
func takeTurns(cluster *kfake.Cluster, args servers.Imitation) error {
	for topic, partitions := range args.Topics {
		for p := range int32(partitions) {
			if args.Nodes < 2 {
				continue
			}
			if err := cluster.MoveTopicPartition(topic, p, p%int32(args.Nodes)); err != nil {
				return fmt.Errorf("move %s/%d: %w", topic, p, err)
			}
		}
	}
	return nil
}

// Connections counts the connections of clients to an imitation.
func (s *Servers) Connections(args servers.DoArgs, reply *servers.ConnectionsReply) error {
	server, err := get[imitation](&s.started, args.ID)
	if err != nil {
		return err
	}
	reply.Open = server.open.Load()
	return nil
}

// ContainerKafka starts Apache Kafka.
func (s *Servers) ContainerKafka(args servers.KafkaArgs, reply *servers.KafkaReply) error {
	reply.Docker = true
	server, err := startKafka(args)
	if err != nil {
		reply.Missing = err.Error()
		return nil
	}
	reply.Brokers, reply.ID = server.Brokers, s.add(server, server.Stop)
	return nil
}

// SharedKafka starts Apache Kafka, or finds it started for another test binary. Nobody may do anything to it: it has no ID.
func (s *Servers) SharedKafka(_ servers.KafkaArgs, reply *servers.KafkaReply) error {
	all := s.shared
	all.starting.Lock()
	defer all.starting.Unlock()
	if all.kafka == nil {
		server, err := startKafka(servers.KafkaArgs{})
		if err != nil {
			all.kafka = &servers.KafkaReply{Docker: true, Missing: err.Error()}
		} else {
			all.kafka = &servers.KafkaReply{Docker: true, Brokers: server.Brokers}
			all.add(server, server.Stop)
		}
	}
	*reply = *all.kafka
	return nil
}

// startKafka starts it with less of the virtual machine's compiler: a broker of tests lives too short to gain by the rest.
func startKafka(args servers.KafkaArgs) (*kafkaserver.Server, error) {
	all := map[string]string{"KAFKA_OPTS": "-XX:TieredStopAtLevel=1"}
	maps.Copy(all, args.Settings)
	return kafkaserver.Container(context.Background(), kafkaserver.ContainerOptions{Settings: all, Brokers: args.Brokers})
}

// Kafka does something to a server. Only one in a container can be paused, stopped and killed.
func (s *Servers) Kafka(args servers.DoArgs, _ *servers.DoReply) error {
	if args.Verb == servers.End {
		server, err := get[interface{ Stop() }](&s.started, args.ID)
		if err == nil {
			server.Stop()
		}
		return err
	}
	server, err := get[*kafkaserver.Server](&s.started, args.ID)
	if err != nil {
		return err
	}
	does := map[string]func(context.Context) error{servers.Pause: server.Pause, servers.Unpause: server.Unpause,
		servers.StopBroker: server.StopBroker, servers.Kill: server.KillBroker, servers.StartBroker: server.StartBroker}
	if args.Node != 0 {
		nodes := server.Nodes()
		if args.Node < 0 || args.Node > len(nodes) {
			return fmt.Errorf("node is %d: it must be from 1 to %d", args.Node, len(nodes))
		}
		n := nodes[args.Node-1]
		does = map[string]func(context.Context) error{servers.Pause: n.Pause, servers.Unpause: n.Unpause,
			servers.StopBroker: n.Stop, servers.Kill: n.Kill, servers.StartBroker: n.Start}
	}
	do := does[args.Verb]
	if do == nil {
		return fmt.Errorf("verb is %q: it must be one for Kafka", args.Verb)
	}
	return do(context.Background())
}

// DeleteRecords does what retention does, on any cluster.
func (s *Servers) DeleteRecords(args servers.DeleteArgs, _ *servers.DoReply) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return kafkaserver.DeleteRecords(ctx, args.Brokers, args.Topic, args.Partition, args.Offset)
}

// countingListener counts the connections that are open.
type countingListener struct {
	net.Listener
	open *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &countedConn{Conn: c, open: l.open}, nil
}

// countedConn counts itself out when a read finds the other end gone.
type countedConn struct {
	net.Conn
	open *atomic.Int64
	gone atomic.Bool
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && c.gone.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return n, err
}
