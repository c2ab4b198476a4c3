package kafkatest

import (
	"context"

	"github.com/holdfast-go/holdfast/internal/test/kafkaclient"
	"github.com/holdfast-go/holdfast/internal/test/servers"
)

// Kinds of server, as Cluster.Kind says.
const (
	KindInProcess = kafkaclient.KindInProcess
	KindContainer = kafkaclient.KindContainer
	KindExternal  = kafkaclient.KindExternal
)

// Record is one record as the broker keeps it.
type Record = kafkaclient.Record

// Server is a Kafka that tests may write to. Its methods may be called from many goroutines at once. Only a broker in a
// container can be paused, stopped and killed.
type Server struct {
	*kafkaclient.Cluster
	// Kind is one of the constants Kind….
	Kind string

	id int // 0 where somebody else runs it
}

func dial(brokers []string) (*Server, error) {
	cluster, err := kafkaclient.Dial(context.Background(), brokers...)
	if err != nil {
		return nil, err
	}
	return &Server{Cluster: cluster, Kind: KindExternal}, nil
}

// start asks for a server.
func start(method, kind string, args servers.KafkaArgs) (*Server, error) {
	var reply servers.KafkaReply
	if err := servers.Call(context.Background(), method, args, &reply); err != nil {
		return nil, err
	}
	if reply.Missing != "" {
		return nil, servers.Missing(reply.Missing)
	}
	cluster := kafkaclient.New(reply.Brokers...)
	cluster.Replicas = args.Brokers
	return &Server{Cluster: cluster, Kind: kind, id: reply.ID}, nil
}

// Stop ends the server for good. It may be called many times.
func (s *Server) Stop() {
	s.CloseIdle()
	if s.id != 0 {
		_ = s.do(context.Background(), servers.End, 0)
	}
}

// Pause freezes the broker: connections stay open and nothing answers.
func (s *Server) Pause(ctx context.Context) error { return s.do(ctx, servers.Pause, 0) }

// Unpause lets a frozen broker go on and returns when it answers.
func (s *Server) Unpause(ctx context.Context) error { return s.back(ctx, servers.Unpause, 0) }

// StopBroker ends the broker in good order and returns when it is gone. Topics and records stay; StartBroker brings it
// back under the same address.
func (s *Server) StopBroker(ctx context.Context) error { return s.do(ctx, servers.StopBroker, 0) }

// KillBroker ends the broker at once, as a crash does. The StartBroker after it takes up to 9 s longer: for so long the
// controller holds the name of the dead one.
func (s *Server) KillBroker(ctx context.Context) error { return s.do(ctx, servers.Kill, 0) }

// StartBroker starts a stopped broker again and returns when it answers.
func (s *Server) StartBroker(ctx context.Context) error { return s.back(ctx, servers.StartBroker, 0) }

// Node is one broker of a cluster that OwnThree made, from 1 on.
func (s *Server) Node(n int) Node { return Node{s, n} }

// Node is one broker of a cluster.
type Node struct {
	server *Server
	n      int
}

// Pause is Server.Pause of one broker.
func (n Node) Pause(ctx context.Context) error { return n.server.do(ctx, servers.Pause, n.n) }

// Unpause is Server.Unpause of one broker.
func (n Node) Unpause(ctx context.Context) error { return n.server.back(ctx, servers.Unpause, n.n) }

// Stop is Server.StopBroker of one broker.
func (n Node) Stop(ctx context.Context) error { return n.server.do(ctx, servers.StopBroker, n.n) }

// Kill is Server.KillBroker of one broker.
func (n Node) Kill(ctx context.Context) error { return n.server.do(ctx, servers.Kill, n.n) }

// Start is Server.StartBroker of one broker.
func (n Node) Start(ctx context.Context) error { return n.server.back(ctx, servers.StartBroker, n.n) }

// back is do for what brings the broker back: connections from before are dead.
func (s *Server) back(ctx context.Context, verb string, node int) error {
	err := s.do(ctx, verb, node)
	s.CloseIdle()
	return err
}

func (s *Server) do(ctx context.Context, verb string, node int) error {
	return servers.Call(ctx, "Kafka", servers.DoArgs{
		ID:   s.id,
		Verb: verb,
		Node: node,
	}, &servers.DoReply{})
}
