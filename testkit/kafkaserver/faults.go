package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moby/moby/client"
)

// errNotContainer is what fault calls answer on other kinds of server. kfake has its own ways to
// make trouble: see InProcess.
var errNotContainer = errors.New("only a broker in a container can be paused or stopped")

// Pause freezes the broker: connections stay open and nothing answers, as with a broker whose
// machine hangs.
func (s *Server) Pause(ctx context.Context) error {
	return s.fault(ctx, "pause", func(ctx context.Context, engine client.APIClient, id string) error {
		_, err := engine.ContainerPause(ctx, id, client.ContainerPauseOptions{})
		// A freezer that meets a process in the middle of a system call gives up: "unable to freeze".
		for try := 0; err != nil && strings.Contains(err.Error(), "unable to freeze") && try < 20; try++ {
			time.Sleep(250 * time.Millisecond)
			_, err = engine.ContainerPause(ctx, id, client.ContainerPauseOptions{})
		}
		return err
	})
}

// Unpause lets a frozen broker go on and returns when it answers.
func (s *Server) Unpause(ctx context.Context) error {
	err := s.fault(ctx, "unpause", func(ctx context.Context, engine client.APIClient, id string) error {
		_, err := engine.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return s.awaitBroker(ctx)
}

// StopBroker ends the broker in good order and returns when it is gone. Topics and records stay;
// StartBroker brings it back under the same address.
func (s *Server) StopBroker(ctx context.Context) error { return s.stopBroker(ctx, stopTimeout) }

// KillBroker ends the broker at once, as a crash does. The StartBroker after it takes up to 9 s
// longer: for so long the controller holds the name of the dead one.
func (s *Server) KillBroker(ctx context.Context) error { return s.stopBroker(ctx, 0) }

func (s *Server) stopBroker(ctx context.Context, grace time.Duration) error {
	seconds := int(grace.Seconds())
	return s.fault(ctx, "stop", func(ctx context.Context, engine client.APIClient, id string) error {
		_, err := engine.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &seconds})
		return err
	})
}

// StartBroker starts a stopped broker again and returns when it answers.
func (s *Server) StartBroker(ctx context.Context) error {
	err := s.fault(ctx, "start", func(ctx context.Context, engine client.APIClient, id string) error {
		_, err := engine.ContainerStart(ctx, id, client.ContainerStartOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return s.awaitBroker(ctx)
}

func (s *Server) fault(ctx context.Context, verb string, call func(context.Context, client.APIClient, string) error) error {
	b, ok := s.backend.(*broker)
	if !ok {
		return fmt.Errorf("%s the broker: %w", verb, errNotContainer)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := b.engine(ctx, call); err != nil {
		return fmt.Errorf("%s the broker: %w", verb, err)
	}
	return nil
}
