package kafkago

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go/sasl"
)

// Rotating is a SASL mechanism whose credentials may change: each connection, and each renewal of its session, is
// authenticated by what latest returns then, a mechanism of that name ("PLAIN", "SCRAM-SHA-512"). latest must be quick, and
// return when ctx is done; many connections may call it at once.
//
// Connections that exist keep the old credentials until their sessions end, as with all clients of Kafka.
func Rotating(name string, latest func(ctx context.Context) (sasl.Mechanism, error)) sasl.Mechanism {
	return rotating{name, latest}
}

type rotating struct {
	name   string
	latest func(ctx context.Context) (sasl.Mechanism, error)
}

func (r rotating) Name() string { return r.name }

func (r rotating) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	m, err := r.latest(ctx)
	if err != nil {
		return nil, nil, err
	}
	if m.Name() != r.name {
		return nil, nil, fmt.Errorf("mechanism is %s: it must be %s, by which the connection began to authenticate", excerpt(m.Name()), r.name)
	}
	return m.Start(ctx)
}
