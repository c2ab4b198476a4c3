package kafkaserver

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
)

// InProcess starts an imitation of Kafka with one broker on a free port of 127.0.0.1. It is up
// within milliseconds and keeps its records in memory. opts win over what is set here.
//
// Where the imitation is true, and where it is not; the tests of this package hold it to this:
//
//   - An unknown topic is refused, not made (UNKNOWN_TOPIC_OR_PARTITION), as by Container.
//   - message.max.bytes and a topic's max.message.bytes are enforced, on the batch as sent: a
//     compressed batch passes by its compressed size. The default is Kafka's, 1048588.
//   - kafka-go's Client, Writer, Reader and ConsumerGroup work with it, and so do transactions.
//   - Consumer groups: a session time-out outside MinSessionTimeout and Kafka's maximum is refused, as by Container.
//   - Nothing is replicated: acks, min.insync.replicas and unclean elections have no meaning.
//   - Faults come from the cluster itself, which Fake returns: ControlKey(int16(kmsg.Produce), …)
//     answers the next such request in the broker's place, with an error code or, by returning
//     an error, with a broken connection. A control function that handled a request is gone
//     afterwards unless it called KeepControl. Control functions run one at a time and hold up
//     every connection; only SleepControl lets the others go on.
func InProcess(opts ...kfake.Opt) (*Server, error) {
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1),
		kfake.BrokerConfigs(map[string]string{minSession: minSessionMillis()})}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("start the in-process Kafka: %w", err)
	}
	return newServer(KindInProcess, cluster.ListenAddrs(), inProcess{cluster}), nil
}

// Fake returns the cluster of a server that InProcess made, and nil for any other.
func (s *Server) Fake() *kfake.Cluster {
	if b, ok := s.backend.(inProcess); ok {
		return b.cluster
	}
	return nil
}

type inProcess struct{ cluster *kfake.Cluster }

func (i inProcess) stop() { i.cluster.Close() }
