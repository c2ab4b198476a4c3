package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"time"

	"github.com/holdfast-go/holdfast/console"
)

type consoleCmd struct {
	Listen   string `help:"Loopback address and port of the page; port 0 is any that is free." default:"127.0.0.1:7413" placeholder:"ADDRESS"`
	ReadOnly bool   `help:"Change nothing."`
	Payloads bool   `help:"Show payloads, and whole errors of handlers."`
	By       string `help:"Your name, which is kept with what you do. Defaults to your login name." placeholder:"NAME"`

	Brokers []string `help:"Kafka brokers as host:port, separated by commas: to show the lag of consumers. Defaults to none." placeholder:"HOST:PORT" env:"KAFKA_BROKERS" sep:","`

	Kafka kafkaFlags `embed:""`
}

func (c *consoleCmd) Run(p *program) error {
	if err := loopback(c.Listen); err != nil {
		return usageError{err}
	}
	who := console.User{Name: c.By, MayChange: !c.ReadOnly, SeesPayload: c.Payloads}
	if who.Name == "" {
		login, err := user.Current()
		if err != nil {
			return usageError{fmt.Errorf("your login name is not known: give --by: %w", err)}
		}
		who.Name = login.Username
	}
	ends, done, err := endsOf(c.Brokers, &c.Kafka, os.Getenv)
	if err != nil {
		return err
	}
	defer done()
	pool, err := p.pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	h, err := console.New(pool, console.Config{Schema: p.cli.Schema, Ends: ends, Logger: slog.New(slog.NewTextHandler(p.errOut, nil)),
		UserFunc: func(r *http.Request) (console.User, error) { return who, asked(r) }})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(p.ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := context.AfterFunc(p.ctx, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(last)
	})
	defer ended()
	fmt.Fprintf(p.out, "http://%s/ until you press ctrl-C\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// loopback refuses addresses that others can reach: the command asks nobody who they are.
func loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--listen is %s: it must be an address and a port, as 127.0.0.1:7413", address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--listen is %s: it must be a loopback address, because the console asks nobody who they are; elsewhere mount package console behind your own authentication", address)
	}
	return nil
}

// asked refuses a request whose browser looked up some other name: a site could point its own name at this address.
func asked(r *http.Request) error {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("the browser asks for the host %q", r.Host)
	}
	return nil
}
