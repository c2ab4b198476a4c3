// Servers starts PostgreSQL, PgBouncer and Kafka for the tests of other modules, by whatever the machine has. Package
// internal/test/servers has the client and says what can be asked for, in JSON-RPC.
//
// Without flags it serves one test binary, on standard input and output, and stops its servers when the input ends. With
// -socket and -owner it serves all test binaries of a go test: what only one of them uses is stopped when that one's
// connection ends, what they share when the owner ends.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	socket := flag.String("socket", "", "where to listen for test binaries; standard input and output are one's if it is empty")
	owner := flag.Int("owner", 0, "the process of the go test to serve")
	flag.Parse()
	// An interrupt goes to the test binary too, which closes our input when it ends.
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	replies := os.Stdout
	os.Stdout = os.Stderr // for what libraries print
	var err error
	if *socket == "" {
		shared := new(shared)
		err = serve(shared, os.Stdin, replies)
		shared.stopAll()
	} else {
		err = listen(*socket, *owner)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
		os.Exit(1)
	}
}
