// Package freeport finds ports for throwaway servers.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports to choose from lie below those that systems hand out for outgoing connections: between the end of a server
// and its next start any client of this machine could be given such a port.
const lowest, highest = 15000, 32000

// Listen listens on such a port of 127.0.0.1. It may be called by many goroutines at once.
func Listen() (l net.Listener, err error) {
	for range 50 {
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(highest-lowest))); err == nil {
			return l, nil
		}
	}
	return nil, err
}

// Find returns a port of 127.0.0.1 on which nobody listens now. Another process may take it before the caller does.
func Find() (int, error) {
	l, err := Listen()
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
