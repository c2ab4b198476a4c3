package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
)

// node is what a process that handles events has to know.
type node struct {
	DatabaseURL, SearchPath, Schema, Services string
	Careless                                  bool
}

// runNode is the process. It takes events over HTTP, and ends when its standard input does: with the process that started it.
func runNode(text string) error {
	var n node
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	c, err := pgxpool.ParseConfig(n.DatabaseURL)
	if err != nil {
		return err
	}
	c.ConnConfig.RuntimeParams["search_path"] = n.SearchPath
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return err
	}
	defer pool.Close()
	in, err := inbox.New(pool, inbox.Config{
		Schema:   n.Schema,
		Consumer: "shipping",
		Logger:   slog.New(slog.DiscardHandler),
		Retry:    retry.Policy{Attempts: 5, Base: time.Millisecond, Cap: 10 * time.Millisecond},
	})
	if err != nil {
		return err
	}
	s := &shipping{services: n.Services, http: &http.Client{Timeout: 10 * time.Second}}
	handler := s.ship
	if n.Careless {
		handler = s.careless
	}
	inbox.On(in, "order.placed", handler)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e holdfast.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := in.Receive(r.Context(), e)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable) // The sender sends it again.
			return
		}
		fmt.Fprint(w, out)
	})}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	fmt.Println("http://" + listener.Addr().String())
	go func() { _ = server.Serve(listener) }()
	if err := in.Run(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
