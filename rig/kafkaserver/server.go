// Package kafkaserver runs a throwaway Kafka for the examples, the benchmark and the tests:
// either in this process, which is up in a millisecond, or the real broker in a container.
//
// Nothing of it is linked into the library packages.
package kafkaserver

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/kafkaclient"
)

// Kinds of server, as Server.Kind says.
const (
	// KindInProcess is an imitation of Kafka inside this process.
	KindInProcess = kafkaclient.KindInProcess
	// KindContainer is Apache Kafka in a container.
	KindContainer = kafkaclient.KindContainer
	// KindExternal is a cluster that somebody else runs.
	KindExternal = kafkaclient.KindExternal
)

// Record is one record as the broker keeps it.
type Record = kafkaclient.Record

// Server is a Kafka cluster that tests may write to. Its methods may be called from many
// goroutines at once.
type Server struct {
	*kafkaclient.Cluster
	// Kind is one of the constants Kind….
	Kind string
	// Listeners are the addresses of ContainerOptions.Listeners, by name.
	Listeners map[string]string

	backend  backend
	stopOnce sync.Once
}

// backend is what runs the brokers.
type backend interface {
	stop()
}

// MinSessionTimeout is the shortest session of a consumer group that both kinds of server allow. A killed member holds
// its partitions for a session, and Kafka's own minimum, 6 s, is long for a test.
const MinSessionTimeout = 500 * time.Millisecond

// minSession is the broker's setting that MinSessionTimeout is the value of.
const minSession = "group.min.session.timeout.ms"

func minSessionMillis() string { return strconv.FormatInt(MinSessionTimeout.Milliseconds(), 10) }

func newServer(kind string, brokers []string, b backend) *Server {
	return &Server{Cluster: kafkaclient.New(brokers...), Kind: kind, backend: b}
}

// External is a cluster that somebody else runs; Stop leaves it alone. It fails when no broker
// answers within 10 s.
func External(ctx context.Context, brokers ...string) (*Server, error) {
	cluster, err := kafkaclient.Dial(ctx, brokers...)
	if err != nil {
		return nil, err
	}
	return &Server{Cluster: cluster, Kind: KindExternal, backend: external{}}, nil
}

type external struct{}

func (external) stop() {}

// Stop ends what this package started and removes it. It may be called many times.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		s.CloseIdle()
		s.backend.stop()
	})
}
