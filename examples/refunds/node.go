package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// This file runs the service in a process of its own, which ends when the gateway has paid and nothing of that is
// recorded: the moment at which a service must not be ended.

// serve is the process. It prints its address, and ends at the latest with its standard input.
func serve(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	own := flags.String("tables", "", "schema of the service's tables")
	schema := flags.String("schema", "", "schema of holdfast's tables")
	gateway := flags.String("gateway", "", "URL of the gateway")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["search_path"] = *own
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	tel, err := newTelemetry(slog.New(slog.DiscardHandler), metricnoop.NewMeterProvider(), tracenoop.NewTracerProvider())
	if err != nil {
		return err
	}
	die := func(where place, _ string) {
		if where == whenPaid {
			os.Exit(exitPaid)
		}
	}
	s, err := newService(settings{pool: pool, schema: *schema, gateway: *gateway, pace: hurried, telemetry: tel, log: log, at: die})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.mux}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		_ = server.Close()
	}()
	fmt.Fprintln(out, listener.Addr())
	if err := server.Serve(listener); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// exitPaid is the exit status of a node that was ended after the gateway had paid.
const exitPaid = 9

// node is the service in a process of its own.
type node struct {
	address string
	cmd     *exec.Cmd
	in      io.Closer
}

// startNode starts one: self is the command of this program, with what makes it one in its environment.
func startNode(self *exec.Cmd, databaseURL, tables, schema, gateway string) (*node, error) {
	n := &node{cmd: self}
	self.Args = append(self.Args, "serve", "-tables", tables, "-schema", schema, "-gateway", gateway)
	self.Env = append(self.Environ(), "DATABASE_URL="+databaseURL)
	var complaints strings.Builder
	self.Stderr = &complaints
	in, err := self.StdinPipe()
	if err != nil {
		return nil, err
	}
	n.in = in
	out, err := self.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := self.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = n.wait()
		return nil, fmt.Errorf("a node does not start: %w: %s", err, complaints.String())
	}
	n.address = strings.TrimSpace(line)
	return n, nil
}

// wait ends the node, where it has not ended by itself, and returns its exit status.
func (n *node) wait() int {
	_ = n.in.Close()
	_ = n.cmd.Wait()
	return n.cmd.ProcessState.ExitCode()
}
