package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/direct"
	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// story is what the chapters share.
type story struct {
	stories.Story
	config config

	accounts accounts
	shop     *shop
	server   *httptest.Server
	stale    int // answers that lacked the client's own order
}

func (s *story) start(ctx context.Context) error {
	if err := s.Start(ctx, "ownwrites", s.config.DatabaseURL, tables); err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	in, err := inbox.New(s.Pool, inbox.Config{Schema: s.Schema, Consumer: "accounts", Logger: quiet})
	if err != nil {
		return err
	}
	in.Handle("order.placed", s.accounts.handle)
	publisher, err := direct.New(map[string][]direct.Store{"shop": {in}}, direct.Config{})
	if err != nil {
		return err
	}
	r, err := relay.New(s.Pool, publisher, relay.Config{Schema: s.Schema, Logger: quiet})
	if err != nil {
		return err
	}
	box, err := outbox.New(outbox.Config{Schema: s.Schema, Source: "shop"})
	if err != nil {
		return err
	}
	s.shop = &shop{
		pool:     s.Pool,
		outbox:   box,
		relay:    r,
		waiter:   holdfast.Waiter{Pool: s.Pool, Schema: s.Schema},
		patience: time.Minute, // a busy machine; a service would rather take a second
		careless: s.config.careless,
	}
	s.server = httptest.NewServer(s.shop.handler())
	s.AtEnd(s.server.Close)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- in.Run(running) }()
	go func() { ended <- r.Run(running) }()
	s.AtEnd(func() { stop(); <-ended; <-ended }) // Their errors would leave events that the check finds.
	s.Say("holdfast: a request that shows what it has just caused\n\n%s\n", s.AboutPostgres)
	return nil
}

// ask sends a request and returns its answer. The account is that of the answer, if it has one.
func (s *story) ask(ctx context.Context, method, path, token string, body any) (res *http.Response, a account, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, a, err
	}
	r, err := http.NewRequestWithContext(ctx, method, s.server.URL+path, bytes.NewReader(text))
	if err != nil {
		return nil, a, err
	}
	if token != "" {
		r.Header.Set(tokenHeader, token)
	}
	if res, err = s.server.Client().Do(r); err != nil {
		return nil, a, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusCreated {
		return res, a, json.NewDecoder(res.Body).Decode(&a)
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res, a, err
}

// place has a customer order, and looks whether the answer shows it: it is the customer's nth.
func (s *story) place(ctx context.Context, customer string, n int64) error {
	res, a, err := s.ask(ctx, http.MethodPost, "/orders", "", order{Customer: customer, Cents: 1000})
	switch {
	case err != nil:
		return err
	case res.StatusCode != http.StatusCreated:
		return fmt.Errorf("an order of %s was answered with %s", customer, res.Status)
	case a.Orders != n:
		s.stale++
	}
	return nil
}

func (s *story) orders(ctx context.Context) error {
	s.Say("1. Four customers order five times each. Each answer is the customer's account, from the consumer's table")
	begun := time.Now()
	for n := range int64(5) {
		for _, customer := range []string{"ann", "bob", "eve", "joe"} {
			if err := s.place(ctx, customer, n+1); err != nil {
				return err
			}
		}
	}
	s.Say("    %d of 20 answers lacked the order that they answered; an answer took %s", s.stale, (time.Since(begun) / 20).Round(100*time.Microsecond))
	return nil
}

func (s *story) slow(ctx context.Context) error {
	s.Say("\n2. The consumer is slow, and the request has no time")
	goOn := s.accounts.slow()
	defer goOn()
	s.shop.patience = 100 * time.Millisecond
	res, _, err := s.ask(ctx, http.MethodPost, "/orders", "", order{Customer: "ann", Cents: 1000})
	if err != nil {
		return err
	}
	s.Say("    POST /orders is answered with %s", res.Status)
	token := res.Header.Get(tokenHeader)
	early, _, err := s.ask(ctx, http.MethodGet, "/accounts/ann", token, nil)
	if err != nil {
		return err
	}
	s.Say("    GET /accounts/ann with the token: %s", early.Status)
	if !s.config.careless && (res.StatusCode != http.StatusAccepted || early.StatusCode != http.StatusServiceUnavailable) {
		return errors.New("the requests were not answered in time")
	}
	s.shop.patience = time.Minute
	goOn()
	late, a, err := s.ask(ctx, http.MethodGet, "/accounts/ann", token, nil)
	if err != nil {
		return err
	}
	s.Say("    the consumer goes on, and the same request: %s, with %d orders", late.Status, a.Orders)
	if a.Orders != 6 {
		s.stale++
	}
	return nil
}

func (s *story) givenUp(ctx context.Context) error {
	s.Say("\n3. The consumer gives an event up: nobody waits for what will not come")
	res, _, err := s.ask(ctx, http.MethodPost, "/orders", "", order{Customer: "joe", Cents: -1})
	if err != nil {
		return err
	}
	s.Say("    POST /orders is answered with %s, without a token", res.Status)
	if !s.config.careless && (res.StatusCode != http.StatusAccepted || res.Header.Get(tokenHeader) != "") {
		return fmt.Errorf("it was answered with %s, and the token %q", res.Status, res.Header.Get(tokenHeader))
	}
	return nil
}
