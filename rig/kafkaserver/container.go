package kafkaserver

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"

	"github.com/holdfast-go/holdfast/internal/test/freeport"
	"github.com/holdfast-go/holdfast/rig/docker"
)

// Image is the Kafka that Container runs.
const Image = "apache/kafka:4.1.0"

// ContainerOptions says how the broker is run. The zero value works.
type ContainerOptions struct {
	// Brokers is how many there are: 1, or 3 that are one cluster, each also a controller. Defaults to 1. Three use the
	// host's network, so they need Linux, and the topics of Server.CreateTopic have three replicas then, two of which must
	// be in sync for a write with acks=all.
	Brokers int

	// Settings are broker settings by Kafka's names, "message.max.bytes". They win over those
	// here, without topics that make themselves. A name that begins
	// with KAFKA_ is a variable of the image and passed as it is: KAFKA_HEAP_OPTS, KAFKA_OPTS.
	Settings map[string]string

	// Listeners are further ways in for clients, of a single broker. Settings has what belongs to them:
	// "listener.name.secure.ssl.keystore.type". Server.Listeners says where they are.
	Listeners []Listener

	// Files are put into each container, by their paths there: certificates in PEM, say. Anybody in it may read them.
	Files map[string][]byte

	// Data is a folder of this machine that the brokers keep their records in, each in a folder of its own, and that any
	// user may write to. Defaults to one inside each container.
	Data string

	// StartTimeout bounds each start of a broker. Defaults to 4 min: it takes about 10 s, but
	// pulling the image comes on top, and a machine may be busy with other tests.
	StartTimeout time.Duration
}

// Listener is a way in for clients, on a port of its own.
type Listener struct {
	Name     string // in upper case; PLAINTEXT, BROKER and CONTROLLER are taken
	Protocol string // PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL
}

const (
	defaultStartTimeout = 4 * time.Minute
	// stopTimeout is how long StopBroker lets the broker shut down in good order.
	stopTimeout = 20 * time.Second
)

// Container starts Kafka, each broker in a container, and returns when all of them answer. The error wraps
// docker.ErrNoDocker when no container can be had here.
//
// The broker's port on this machine is chosen before the container is made, and bound fixed: a
// port that Docker chooses is another one after a stop and a start, and the address that the
// broker advertises would be wrong from then on. For the same reason the address needs no
// script that waits for the port: it is part of the container's environment.
func Container(ctx context.Context, opts ContainerOptions) (*Server, error) {
	if opts.Brokers == 0 {
		opts.Brokers = 1
	}
	if opts.Brokers != 1 && opts.Brokers != clusterSize {
		return nil, fmt.Errorf("start %s in containers: brokers is %d: it must be 1 or %d", Image, opts.Brokers, clusterSize)
	}
	if opts.Brokers > 1 && len(opts.Listeners) > 0 {
		return nil, fmt.Errorf("start %s in containers: listeners has %d: it must have none with %d brokers", Image, len(opts.Listeners), opts.Brokers)
	}
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
	if opts.Brokers > 1 {
		return startCluster(ctx, opts)
	}
	ports := network.PortMap{} // by the port inside
	var exposed []string
	open := func(inside int) (address string, err error) {
		port, err := freeport.Find()
		if err != nil {
			return "", fmt.Errorf("find a free port: %w", err)
		}
		p := network.MustParsePort(strconv.Itoa(inside) + "/tcp")
		ports[p] = []network.PortBinding{{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: strconv.Itoa(port)}}
		exposed = append(exposed, p.String())
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), nil
	}
	address, err := open(clientPort)
	if err != nil {
		return nil, err
	}
	settings, further := brokerSettings(address), map[string]string{}
	for i, l := range opts.Listeners {
		inside := firstFurtherPort + i
		if further[l.Name], err = open(inside); err != nil {
			return nil, err
		}
		settings["listeners"] += fmt.Sprintf(",%s://:%d", l.Name, inside)
		settings["advertised.listeners"] += "," + l.Name + "://" + further[l.Name]
		settings["listener.security.protocol.map"] += "," + l.Name + ":" + l.Protocol
	}
	n := &Node{ID: 1, Address: address, startTimeout: opts.StartTimeout}
	err = n.run(ctx, opts, settings,
		testcontainers.WithExposedPorts(exposed...),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) { host.PortBindings = ports }))
	s := newServer(KindContainer, []string{address}, containers{n})
	s.Listeners = further
	n.server = s
	if err == nil {
		err = n.await(ctx)
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("start %s in a container: %w", Image, err)
	}
	return s, nil
}

// containers are the brokers of a server.
type containers []*Node

func (c containers) stop() {
	var wg sync.WaitGroup
	for _, n := range c {
		wg.Go(n.tie.Stop)
	}
	wg.Wait()
}

// dataInside is where ContainerOptions.Data is in the container.
const dataInside = "/var/lib/holdfast-kafka"

// Where the broker listens for clients inside the container.
const (
	clientPort       = 9092
	firstFurtherPort = 9095
)

// brokerSettings are those of one broker that is alone. Once a single one is given the image
// forgets its own defaults, so all that a broker needs are here.
func brokerSettings(address string) map[string]string {
	all := replicated(1)
	maps.Copy(all, map[string]string{
		"node.id":                        "1",
		"controller.quorum.voters":       "1@localhost:9093",
		"inter.broker.listener.name":     "BROKER",
		"listeners":                      "PLAINTEXT://:9092,BROKER://:9094,CONTROLLER://:9093",
		"advertised.listeners":           "PLAINTEXT://" + address + ",BROKER://localhost:9094",
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
	})
	return all
}

// replicated are the settings that any number of brokers has, with so many replicas of what is internal.
func replicated(replicas int) map[string]string {
	n, inSync := strconv.Itoa(replicas), strconv.Itoa(max(1, replicas-1))
	return map[string]string{
		"process.roles":             "broker,controller",
		"controller.listener.names": "CONTROLLER",

		"offsets.topic.replication.factor":                 n,
		"transaction.state.log.replication.factor":         n,
		"transaction.state.log.min.isr":                    inSync,
		"share.coordinator.state.topic.replication.factor": n,
		"share.coordinator.state.topic.min.isr":            inSync,

		// Quick for tests: few internal partitions, and no wait for further group members.
		"offsets.topic.num.partitions":         "3",
		"transaction.state.log.num.partitions": "3",
		"group.initial.rebalance.delay.ms":     "0",
		minSession:                             minSessionMillis(),

		// A topic that makes itself hides a wrong name.
		"auto.create.topics.enable": "false",
	}
}

// brokerEnv is the environment that the image makes its settings from. Those of the caller win.
func brokerEnv(own, settings map[string]string) map[string]string {
	env := make(map[string]string, len(own)+len(settings))
	for _, some := range []map[string]string{own, settings} {
		for name, value := range some {
			env[envName(name)] = value
		}
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
