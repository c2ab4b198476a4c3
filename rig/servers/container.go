package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/holdfast-go/holdfast/rig/docker"
)

// startTimeout includes pulling the image, on a machine that is busy with many other tests.
const startTimeout = 4 * time.Minute

// startContainer runs PostgreSQL in a container with the settings of startBest, and returns its
// address and what stops it.
func startContainer(image string) (dsn string, stop func(), err error) {
	if err := docker.Ready(); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	reference, err := docker.Image(ctx, image)
	if err != nil {
		return "", nil, err
	}
	tie := new(docker.Tie)
	ctr, err := postgres.Run(ctx, reference, tie.Option(),
		testcontainers.WithCmd("postgres", "-c", "fsync=off", "-c", "full_page_writes=off",
			"-c", "max_connections=400", "-c", "max_prepared_transactions=20"),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) {
			// On loopback only: the password is known.
			host.PortBindings = network.PortMap{network.MustParsePort("5432/tcp"): {{
				HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: "0",
			}}}
		}),
		// It starts twice: the first time to make the database, on a socket only.
		testcontainers.WithWaitStrategyAndDeadline(startTimeout,
			wait.ForLog("database system is ready to accept connections").WithOccurrence(2).WithStartupTimeout(startTimeout),
			wait.ForListeningPort("5432/tcp").WithStartupTimeout(startTimeout)),
	)
	if err == nil {
		dsn, err = ctr.ConnectionString(ctx, "sslmode=disable")
	}
	if err != nil {
		tie.Stop()
		return "", nil, fmt.Errorf("start %s in a container: %w", image, err)
	}
	return dsn, tie.Stop, nil
}
