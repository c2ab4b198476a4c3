package pgserver

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports to choose from lie below those that systems hand out for outgoing connections:
// between a Kill and the Restart any client of this machine could be given such a port.
const minPort, maxPort = 15000, 32000

// freePort returns a port of 127.0.0.1 on which nobody listens now.
func freePort() (int, error) {
	var err error
	for range 50 {
		port := minPort + rand.IntN(maxPort-minPort)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}
