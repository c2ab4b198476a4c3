package kafkaserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/segmentio/kafka-go"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/holdfast-go/holdfast/rig/docker"
)

// Node is one broker of a Server that Container started. Its methods may be called from many goroutines at once.
type Node struct {
	// ID is its node.id, from 1 on.
	ID int
	// Address is where clients reach it, one of Server.Brokers.
	Address string

	server       *Server
	ctr          *testcontainers.DockerContainer
	tie          docker.Tie
	startTimeout time.Duration
}

// run starts the container. It returns when the broker says that it has started.
func (n *Node) run(ctx context.Context, opts ContainerOptions, own map[string]string, options ...testcontainers.ContainerCustomizer) (err error) {
	if opts.Data != "" {
		own["log.dirs"] = dataInside + "/log" // a folder of the broker's own: what else is there is not its
		if opts.Brokers > 1 {
			own["log.dirs"] += "-" + strconv.Itoa(n.ID)
		}
		options = append(options, testcontainers.WithHostConfigModifier(func(host *container.HostConfig) {
			host.Binds = append(host.Binds, opts.Data+":"+dataInside)
		}))
	}
	for path, text := range opts.Files {
		options = append(options, testcontainers.WithFiles(testcontainers.ContainerFile{
			Reader:            bytes.NewReader(text),
			ContainerFilePath: path,
			FileMode:          0o644,
		}))
	}
	options = append(options, n.tie.Option(), testcontainers.WithEnv(brokerEnv(own, opts.Settings)),
		testcontainers.WithWaitStrategyAndDeadline(opts.StartTimeout,
			wait.ForLog("Kafka Server started").WithStartupTimeout(opts.StartTimeout)))
	image, err := docker.Image(ctx, Image)
	if err != nil {
		return err
	}
	if n.ctr, err = testcontainers.Run(ctx, image, options...); err != nil {
		return fmt.Errorf("%w%s", err, n.lastWords())
	}
	return nil
}

// lastWords are the last lines that a broker logged, for an error.
func (n *Node) lastWords() string {
	if n.ctr == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	logs, err := n.ctr.Logs(ctx)
	if err != nil {
		return ""
	}
	defer logs.Close()
	text, _ := io.ReadAll(io.LimitReader(logs, 4<<20))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "; its log ends with:\n" + strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// Pause freezes the broker: connections stay open and nothing answers, as with a broker whose machine hangs.
func (n *Node) Pause(ctx context.Context) error { return n.fault(ctx, "pause", pause) }

// Unpause lets a frozen broker go on and returns when it answers.
func (n *Node) Unpause(ctx context.Context) error {
	if err := n.fault(ctx, "unpause", unpause); err != nil {
		return err
	}
	return n.await(ctx)
}

// Stop ends the broker in good order and returns when it is gone. Topics and records stay; Start brings it back under the
// same address.
func (n *Node) Stop(ctx context.Context) error { return n.fault(ctx, "stop", stopWithin(stopTimeout)) }

// Kill ends the broker at once, as a crash does. The Start after it takes up to 9 s longer: for so long the controller
// holds the name of the dead one.
func (n *Node) Kill(ctx context.Context) error { return n.fault(ctx, "stop", stopWithin(0)) }

// Start starts a stopped broker again and returns when it answers.
func (n *Node) Start(ctx context.Context) error {
	if err := n.fault(ctx, "start", start); err != nil {
		return err
	}
	return n.await(ctx)
}

func (n *Node) fault(ctx context.Context, verb string, call engineCall) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := n.engine(ctx, call); err != nil {
		return fmt.Errorf("%s the broker: %w", verb, err)
	}
	return nil
}

// engineCall is a call of the Docker engine about a container.
type engineCall func(ctx context.Context, engine client.APIClient, id string) error

func (n *Node) engine(ctx context.Context, call engineCall) error {
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return err
	}
	defer provider.Close()
	return call(ctx, provider.Client(), n.ctr.GetContainerID())
}

// await polls until the broker answers: its log speaks before its listener is forwarded, and the
// log of an earlier start speaks still. It asks over connections of its own, because the server's
// client would answer from what it remembers, and drops the client's, which may be dead.
func (n *Node) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.startTimeout)
	defer cancel()
	for {
		err := n.ask(ctx, func(conn *kafka.Conn) error {
			brokers, err := conn.Brokers()
			if err == nil && len(brokers) == 0 {
				err = errors.New("it knows of no broker")
			}
			return err
		})
		if err == nil {
			n.server.CloseIdle()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for broker %d: %w: %w%s", n.ID, ctx.Err(), err, n.lastWords())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ask connects to this broker for one question, which it has 2 s for.
func (n *Node) ask(ctx context.Context, question func(*kafka.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var dialer net.Dialer
	plain, err := dialer.DialContext(ctx, "tcp", n.Address)
	if err != nil {
		return err
	}
	conn := kafka.NewConn(plain, "", 0)
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	return question(conn)
}
