package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/segmentio/kafka-go"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/holdfast-go/holdfast/testkit/docker"
	"github.com/holdfast-go/holdfast/testkit/internal/freeport"
)

// Image is the Kafka that Container runs.
const Image = "apache/kafka:4.1.0"

// ContainerOptions says how the broker is run. The zero value works.
type ContainerOptions struct {
	// Settings are broker settings by Kafka's names, "message.max.bytes". They win over those
	// here, which are for one broker, without topics that make themselves. A name that begins
	// with KAFKA_ is a variable of the image and passed as it is: KAFKA_HEAP_OPTS, KAFKA_OPTS.
	Settings map[string]string

	// Data is a folder of this machine that the broker keeps its records in, and that any user may write to. Defaults to
	// one inside the container.
	Data string

	// StartTimeout bounds each start of the broker. Defaults to 4 min: it takes about 10 s, but
	// pulling the image comes on top, and a machine may be busy with other tests.
	StartTimeout time.Duration
}

const (
	defaultStartTimeout = 4 * time.Minute
	// stopTimeout is how long StopBroker lets the broker shut down in good order.
	stopTimeout = 20 * time.Second
)

// Container starts one Kafka broker in a container and returns when it answers. The error wraps
// docker.ErrNoDocker when no container can be had here.
//
// The broker's port on this machine is chosen before the container is made, and bound fixed: a
// port that Docker chooses is another one after a stop and a start, and the address that the
// broker advertises would be wrong from then on. For the same reason the address needs no
// script that waits for the port: it is part of the container's environment.
func Container(ctx context.Context, opts ContainerOptions) (*Server, error) {
	if err := docker.Ready(); err != nil {
		return nil, err
	}
	if opts.StartTimeout <= 0 {
		opts.StartTimeout = defaultStartTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, opts.StartTimeout)
	defer cancel()
	for tries := 1; ; tries++ {
		s, err := startContainer(ctx, opts)
		if err == nil || tries == 5 || !portTaken(err) {
			return s, err
		}
	}
}

// portTaken says that somebody took the port between its choice and the container's start.
func portTaken(err error) bool {
	text := err.Error()
	return strings.Contains(text, "port is already allocated") || strings.Contains(text, "address already in use")
}

func startContainer(ctx context.Context, opts ContainerOptions) (*Server, error) {
	port, err := freeport.Find()
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	settings := maps.Clone(opts.Settings)
	if opts.Data != "" {
		if settings == nil {
			settings = map[string]string{}
		}
		settings["log.dirs"] = dataInside + "/log" // a folder of the broker's own: what else is there is not its
	}
	tie := new(docker.Tie)
	ctr, err := testcontainers.Run(ctx, Image, tie.Option(),
		testcontainers.WithEnv(brokerEnv(address, settings)),
		testcontainers.WithExposedPorts(clientPort.String()),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) {
			host.PortBindings = network.PortMap{clientPort: {{
				HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: strconv.Itoa(port),
			}}}
			if opts.Data != "" {
				host.Binds = append(host.Binds, opts.Data+":"+dataInside)
			}
		}),
		testcontainers.WithWaitStrategyAndDeadline(opts.StartTimeout,
			wait.ForLog("Kafka Server started").WithStartupTimeout(opts.StartTimeout)),
	)
	s := newServer(KindContainer, []string{address}, &broker{ctr: ctr, tie: tie, startTimeout: opts.StartTimeout})
	if err == nil {
		err = s.awaitBroker(ctx)
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("start %s in a container: %w", Image, err)
	}
	return s, nil
}

// dataInside is where ContainerOptions.Data is in the container.
const dataInside = "/var/lib/holdfast-kafka"

// clientPort is where the broker listens for clients inside the container.
var clientPort = network.MustParsePort("9092/tcp")

// brokerEnv is the environment that the image makes its settings from. Once a single one is
// given the image forgets its own defaults, so all that a broker needs are here.
func brokerEnv(address string, settings map[string]string) map[string]string {
	all := map[string]string{
		"node.id":                        "1",
		"process.roles":                  "broker,controller",
		"controller.quorum.voters":       "1@localhost:9093",
		"controller.listener.names":      "CONTROLLER",
		"inter.broker.listener.name":     "BROKER",
		"listeners":                      "PLAINTEXT://:9092,BROKER://:9094,CONTROLLER://:9093",
		"advertised.listeners":           "PLAINTEXT://" + address + ",BROKER://localhost:9094",
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",

		// One broker: what is internal cannot have the usual three replicas.
		"offsets.topic.replication.factor":                 "1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",

		// Quick for tests: few internal partitions, and no wait for further group members.
		"offsets.topic.num.partitions":         "3",
		"transaction.state.log.num.partitions": "3",
		"group.initial.rebalance.delay.ms":     "0",
		minSession:                             minSessionMillis(),

		// A topic that makes itself hides a wrong name.
		"auto.create.topics.enable": "false",
	}
	maps.Copy(all, settings)
	env := make(map[string]string, len(all))
	for name, value := range all {
		env[envName(name)] = value
	}
	return env
}

// envName is the image's rule: "message.max.bytes" is KAFKA_MESSAGE_MAX_BYTES. An underscore is
// doubled and a hyphen is three, so that the way back is unambiguous.
func envName(setting string) string {
	if strings.HasPrefix(setting, "KAFKA_") {
		return setting
	}
	name := []byte("KAFKA_")
	for _, c := range []byte(setting) {
		switch {
		case c == '.':
			name = append(name, '_')
		case c == '_':
			name = append(name, "__"...)
		case c == '-':
			name = append(name, "___"...)
		case 'a' <= c && c <= 'z':
			name = append(name, c-'a'+'A')
		default:
			name = append(name, c)
		}
	}
	return string(name)
}

// awaitBroker polls until the broker answers: its log speaks before its listener is forwarded,
// and the log of an earlier start speaks still. It asks over connections of its own, because
// s.Client would answer from what it remembers, and drops the client's, which may be dead.
func (s *Server) awaitBroker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.backend.(*broker).startTimeout)
	defer cancel()
	for {
		err := askBroker(ctx, s.Brokers[0])
		if err == nil {
			s.CloseIdle()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the broker: %w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func askBroker(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := kafka.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	brokers, err := conn.Brokers()
	if err == nil && len(brokers) == 0 {
		err = errors.New("it knows of no broker")
	}
	return err
}

// broker is the container of one broker.
type broker struct {
	ctr          *testcontainers.DockerContainer
	tie          *docker.Tie
	startTimeout time.Duration
}

func (b *broker) stop() { b.tie.Stop() }

// engine calls the Docker engine about the container.
func (b *broker) engine(ctx context.Context, call func(context.Context, client.APIClient, string) error) error {
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return err
	}
	defer provider.Close()
	return call(ctx, provider.Client(), b.ctr.GetContainerID())
}
