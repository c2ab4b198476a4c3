package kafkaserver

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
)

// InProcess starts an imitation of Kafka with one broker on a free port of 127.0.0.1.
func InProcess(opts ...kfake.Opt) (*Server, error) {
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("start the in-process Kafka: %w", err)
	}
	return newServer(KindInProcess, cluster.ListenAddrs(), inProcess{cluster}), nil
}

type inProcess struct{ cluster *kfake.Cluster }

func (b inProcess) stop() { b.cluster.Close() }
