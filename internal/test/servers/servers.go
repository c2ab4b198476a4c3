// Package servers asks the command rig/servers for servers: PostgreSQL, PgBouncer and Kafka.
//
// The tests of this module link no container client, no embedded server and no imitation of Kafka. The command has them,
// in a module of its own, and go run builds it from the clone that the tests run in. One process serves all test binaries
// of a go test, by JSON-RPC over a socket, and ends with that go test; where it cannot be found out who runs the tests a
// binary has a process to itself, and talks to it over standard input and output. The process stops what a binary asked
// for when the binary's connection ends, and what binaries share when it ends itself: nothing outlives a test binary, or
// a go test, that is killed.
package servers

import (
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"os"
	"path/filepath"
)

// ErrNoClone is what errors wrap where the tests run outside a clone of the repository.
var ErrNoClone = errors.New("the servers of the tests come with a clone of the repository, and this is none")

// Call asks the process for something and waits for the answer. It starts the process where it does not run. The method
// is one of Service's, by its name: "Postgres".
func Call(ctx context.Context, method string, args, reply any) error {
	p, err := running.Get(start)
	if err != nil {
		return err
	}
	call := p.client.Go("Servers."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
	case <-ctx.Done():
		return ctx.Err()
	}
	switch r := reply.(type) {
	case *PostgresReply:
		if r.Docker {
			readDockerVars()
		}
	case *KafkaReply:
		if r.Docker {
			readDockerVars()
		}
	}
	var said rpc.ServerError
	if call.Error != nil && !errors.As(call.Error, &said) {
		return fmt.Errorf("ask the process of the servers: %w, it said:\n%s", call.Error, p.said())
	}
	return call.Error
}

// Stop lets go of the process, which stops the servers that only this binary has used. No test may run afterwards.
func Stop() {
	if p, ok := running.Close(); ok {
		p.stop()
	}
}

// running is the process, or the connection to the one of all.
var running Once[*process]

// commandDir finds the command above the folder that the tests run in, which is that of their package.
func commandDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the command of the servers: %w", err)
	}
	for {
		command := filepath.Join(dir, "rig", "servers")
		if _, err := os.Stat(filepath.Join(command, "main.go")); err == nil {
			return command, nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return "", ErrNoClone
		}
		dir = above
	}
}
