package natsjs

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
)

// errConnectionLost ends what waits for an answer that was lost with its connection.
var errConnectionLost = errors.New("the connection to the server was lost before it answered")

// whileConnected is a context that ends when the connection does, with errConnectionLost as its cause: nats.go waits on for the answer to
// a request that was lost with its connection. stop must be called.
func whileConnected(ctx context.Context, nc *nats.Conn) (during context.Context, stop func()) {
	during, cancel := context.WithCancelCause(ctx)
	changes := nc.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	go func() {
		select {
		case _, changed := <-changes:
			if changed {
				cancel(errConnectionLost)
			}
		case <-during.Done():
		}
	}()
	return during, func() {
		nc.RemoveStatusListener(changes)
		cancel(nil)
	}
}

// lostConnection says that a context of whileConnected ended with the connection.
func lostConnection(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), errConnectionLost)
}
