package incidents

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/holdfast-go/holdfast/kafkago"
)

// link is a network to Kafka that can be cut.
type link struct {
	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

// dial is for kafkago.Connection.
func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	isCut := l.isCut
	l.mu.Unlock()
	if isCut {
		return nil, errors.New("the network is cut")
	}
	c, err := kafkago.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		c.Close()
		return nil, errors.New("the network is cut")
	}
	l.conns = append(l.conns, c)
	return c, nil
}

// cut ends all connections, and lets none be made.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
	for _, c := range l.conns {
		c.Close()
	}
	l.conns = nil
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = false
}
