package kafkaserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/segmentio/kafka-go"
	"github.com/testcontainers/testcontainers-go"

	"github.com/holdfast-go/holdfast/internal/test/freeport"
)

// clusterSize is how many brokers a cluster has: with three, one may be away.
const clusterSize = 3

// FencedAfter is after how long without a sign of life a broker of a cluster loses its partitions. Kafka's default is 9 s.
const FencedAfter = 6 * time.Second

// startCluster starts brokers that are one cluster. They reach each other at the addresses that
// clients use, on the host's network: on a network of Docker's, a broker would need one address
// for the others and one for clients, and the network would have to be removed too.
func startCluster(ctx context.Context, opts ContainerOptions) (*Server, error) {
	addresses, err := freeAddresses(2 * opts.Brokers)
	if err != nil {
		return nil, fmt.Errorf("find free ports: %w", err)
	}
	clients, controllers := addresses[:opts.Brokers], addresses[opts.Brokers:]
	voters := make([]string, opts.Brokers)
	for i := range voters {
		voters[i] = fmt.Sprintf("%d@%s", i+1, controllers[i])
	}
	password := rand.Text()
	var nodes containers
	s := newServer(KindContainer, clients, nil)
	s.Replicas = opts.Brokers
	for i := range opts.Brokers {
		nodes = append(nodes, &Node{
			ID:           i + 1,
			Address:      clients[i],
			server:       s,
			startTimeout: opts.StartTimeout,
		})
	}
	s.backend = nodes
	errs := make([]error, opts.Brokers)
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			settings := memberSettings(n, controllers[i], strings.Join(voters, ","), password, opts.Brokers)
			errs[i] = n.run(ctx, opts, settings, testcontainers.WithName("holdfast-kafka-"+n.Address[strings.LastIndex(n.Address, ":")+1:]),
				testcontainers.WithHostConfigModifier(func(host *container.HostConfig) { host.NetworkMode = "host" }))
			if errs[i] == nil {
				errs[i] = n.await(ctx)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		s.Stop()
		return nil, fmt.Errorf("start %d of %s in containers: %w", opts.Brokers, Image, err)
	}
	return s, nil
}

// memberSettings are those of one broker of several.
func memberSettings(n *Node, controller, voters, password string, brokers int) map[string]string {
	all := replicated(brokers)
	maps.Copy(all, map[string]string{
		"node.id":                        strconv.Itoa(n.ID),
		"controller.quorum.voters":       voters,
		"inter.broker.listener.name":     "PLAINTEXT",
		"listeners":                      "PLAINTEXT://" + n.Address + ",CONTROLLER://" + controller,
		"advertised.listeners":           "PLAINTEXT://" + n.Address,
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",

		// An authorizer knows no rules before the first election, and refuses all votes but those of super users. Clients are
		// ANONYMOUS and must not be that, so controllers have a name of their own.
		"sasl.mechanism.controller.protocol": "PLAIN",
		"sasl.enabled.mechanisms":            "PLAIN",
		"listener.name.controller.plain.sasl.jaas.config": fmt.Sprintf(
			`org.apache.kafka.common.security.plain.PlainLoginModule required username="controller" password="%[1]s" user_controller="%[1]s";`, password),
		"super.users": "User:controller",

		"default.replication.factor":     strconv.Itoa(brokers),
		"min.insync.replicas":            strconv.Itoa(brokers - 1),
		"unclean.leader.election.enable": "false",
		"broker.session.timeout.ms":      strconv.FormatInt(FencedAfter.Milliseconds(), 10),
		"broker.heartbeat.interval.ms":   "1000",

		// On a busy machine a controller is late by seconds. With Kafka's own 2 s and 1 s a new one is elected again and again,
		// and no broker that starts gets in meanwhile.
		"controller.quorum.fetch.timeout.ms":     "5000",
		"controller.quorum.election.timeout.ms":  "3000",
		"controller.quorum.request.timeout.ms":   "5000",
		"initial.broker.registration.timeout.ms": strconv.FormatInt(defaultStartTimeout.Milliseconds(), 10),

		// Three brokers want little of each: threads, and compiled code.
		"num.io.threads":             "2",
		"num.network.threads":        "2",
		"KAFKA_JVM_PERFORMANCE_OPTS": "-server -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true",
	})
	return all
}

// freeAddresses are addresses of 127.0.0.1 on which nobody listens now, no two of them the same.
func freeAddresses(n int) (all []string, err error) {
	for range n {
		l, err := freeport.Listen()
		if err != nil {
			return nil, err
		}
		defer l.Close()
		all = append(all, l.Addr().(*net.TCPAddr).String())
	}
	return all, nil
}

// Partitions are those of all topics, internal ones too, as the first broker that answers knows them now. A leader or a
// replica whose broker is away has no Host. Only a server that Container made knows them.
func (s *Server) Partitions(ctx context.Context) (all []kafka.Partition, err error) {
	err = errNotContainer
	for _, n := range s.Nodes() {
		if all, err = n.partitions(ctx); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the partitions: %w", err)
	}
	return all, nil
}

func (n *Node) partitions(ctx context.Context) (all []kafka.Partition, err error) {
	err = n.ask(ctx, func(conn *kafka.Conn) (err error) {
		all, err = conn.ReadPartitions()
		return err
	})
	return all, err
}

// AwaitReplicas returns when each broker says that every partition has a leader, and all its replicas are in sync.
func (s *Server) AwaitReplicas(ctx context.Context) error {
	if len(s.Nodes()) == 0 {
		return fmt.Errorf("wait for replicas: %w", errNotContainer)
	}
	for _, n := range s.Nodes() {
		for {
			missing, err := n.outOfSync(ctx)
			if err == nil && missing == "" {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for replicas: broker %d says: %s: %w", n.ID, missing, errors.Join(ctx.Err(), err))
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return nil
}

// outOfSync names the first partition that lacks a leader or a replica in sync.
func (n *Node) outOfSync(ctx context.Context) (which string, err error) {
	all, err := n.partitions(ctx)
	if err != nil {
		return "", err
	}
	for _, p := range all {
		if p.Leader.Host == "" || len(p.Isr) < len(p.Replicas) {
			return fmt.Sprintf("%s/%d has %d of %d replicas in sync, and its leader is %d", p.Topic, p.ID, len(p.Isr), len(p.Replicas), p.Leader.ID), nil
		}
	}
	return "", nil
}
