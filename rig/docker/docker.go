// Package docker decides whether containers can be had, and keeps them from outliving the
// program that started them.
package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// ErrNoDocker is what errors wrap when no container can be started here.
var ErrNoDocker = errors.New("no Docker to be had")

// hostVar is where testcontainers-go reads the host that published ports are reached at.
const hostVar = "TESTCONTAINERS_HOST_OVERRIDE"

// reaperVar switches off the reaper of testcontainers-go.
const reaperVar = "TESTCONTAINERS_RYUK_DISABLED"

var prepared = sync.OnceValue(prepare)

// Ready returns nil when containers can be started and their ports reached on this machine. It
// must be called before the first container is made. It asks once per process.
func Ready() error { return prepared() }

func prepare() error {
	// Inside a container testcontainers-go takes the default route for the way to published
	// ports, and knocks at another machine. We always publish on loopback, and say so.
	if os.Getenv(hostVar) == "" {
		if err := os.Setenv(hostVar, "127.0.0.1"); err != nil {
			return fmt.Errorf("%w: %w", ErrNoDocker, err)
		}
	}
	if err := checkLoopback(os.Getenv(hostVar)); err != nil {
		return fmt.Errorf("%w: %w", ErrNoDocker, err)
	}
	// The reaper of testcontainers-go is one more image to have and one more container to start.
	// Where attach works it is not needed.
	if attachable() && os.Getenv(reaperVar) == "" {
		if err := os.Setenv(reaperVar, "true"); err != nil {
			return fmt.Errorf("%w: %w", ErrNoDocker, err)
		}
	}
	log.SetDefault(quiet{})
	if err := named(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoDocker, err)
	}
	if err := health(); err != nil {
		return fmt.Errorf("%w: %w: start Docker", ErrNoDocker, err)
	}
	return nil
}

// checkLoopback refuses a host whose Kafka or Postgres would be somebody else's.
func checkLoopback(host string) error {
	if host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s is %q: tests use containers of this machine only, set it to 127.0.0.1 or unset it", hostVar, host)
}

// engineVar names the engine to use.
const engineVar = "DOCKER_HOST"

// named asks the engine that DOCKER_HOST names whether it is there. Where it is not, testcontainers-go takes another one
// that it finds on the machine; a person who names an engine wants that one or none.
func named() error {
	host := os.Getenv(engineVar)
	if host == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	engine, err := client.New(client.FromEnv)
	if err == nil {
		defer engine.Close()
		_, err = engine.Ping(ctx, client.PingOptions{})
	}
	if err != nil {
		return fmt.Errorf("%s is %s, where no engine answers: start it, or unset the variable: %w", engineVar, host, err)
	}
	return nil
}

// health asks the engine whether it is there.
func health() (err error) {
	// testcontainers-go panics where it finds no engine at all.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("find a Docker engine: %v", r)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return fmt.Errorf("find a Docker engine: %w", err)
	}
	defer provider.Close()
	if err := provider.Health(ctx); err != nil {
		return fmt.Errorf("ask the Docker engine how it is: %w", err)
	}
	return nil
}

// quiet drops the chatter about each container; what goes wrong is in errors.
type quiet struct{}

func (quiet) Printf(string, ...any) {}
