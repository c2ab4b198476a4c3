package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"
)

// errNotContainer is what fault calls answer on other kinds of server. kfake has its own ways to
// make trouble: see InProcess.
var errNotContainer = errors.New("only a broker in a container can be paused or stopped")

// Nodes are the brokers one by one, in the order of their IDs. Only a server that Container made has any.
func (s *Server) Nodes() []*Node {
	nodes, _ := s.backend.(containers)
	return nodes
}

// Pause freezes all brokers, at once: see Node.Pause.
func (s *Server) Pause(ctx context.Context) error { return s.all(ctx, "pause", (*Node).Pause) }

// Unpause lets frozen brokers go on and returns when all answer.
func (s *Server) Unpause(ctx context.Context) error { return s.all(ctx, "unpause", (*Node).Unpause) }

// StopBroker ends all brokers, at once, each in good order: see Node.Stop. It returns when they are gone. Of several, the
// last has no quorum any more, and may be killed after 20 s.
func (s *Server) StopBroker(ctx context.Context) error { return s.all(ctx, "stop", (*Node).Stop) }

// KillBroker ends all brokers at once, as a crash does: see Node.Kill.
func (s *Server) KillBroker(ctx context.Context) error { return s.all(ctx, "stop", (*Node).Kill) }

// StartBroker starts stopped brokers again and returns when all answer.
func (s *Server) StartBroker(ctx context.Context) error { return s.all(ctx, "start", (*Node).Start) }

func (s *Server) all(ctx context.Context, verb string, do func(*Node, context.Context) error) error {
	nodes := s.Nodes()
	if len(nodes) == 0 {
		return fmt.Errorf("%s the broker: %w", verb, errNotContainer)
	}
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = do(n, ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func pause(ctx context.Context, engine client.APIClient, id string) error {
	_, err := engine.ContainerPause(ctx, id, client.ContainerPauseOptions{})
	// A freezer that meets a process in the middle of a system call gives up: "unable to freeze".
	for try := 0; err != nil && strings.Contains(err.Error(), "unable to freeze") && try < 20; try++ {
		time.Sleep(250 * time.Millisecond)
		_, err = engine.ContainerPause(ctx, id, client.ContainerPauseOptions{})
	}
	return err
}

func unpause(ctx context.Context, engine client.APIClient, id string) error {
	_, err := engine.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{})
	return err
}

func start(ctx context.Context, engine client.APIClient, id string) error {
	_, err := engine.ContainerStart(ctx, id, client.ContainerStartOptions{})
	return err
}

// stopWithin is a stop in good order for which a broker has so long.
func stopWithin(grace time.Duration) engineCall {
	seconds := int(grace.Seconds())
	return func(ctx context.Context, engine client.APIClient, id string) error {
		_, err := engine.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &seconds})
		return err
	}
}
