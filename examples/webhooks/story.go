package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// story is what the chapters share.
type story struct {
	stories.Story
	config config

	service *service
	http    *httptest.Server
}

func (s *story) start(ctx context.Context) (err error) {
	if err := s.Start(ctx, "webhooks", s.config.DatabaseURL, tables); err != nil {
		return err
	}
	if s.service, err = newService(s.Pool, s.Schema, s.config.trusting, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	s.http = httptest.NewServer(s.service.mux)
	s.AtEnd(s.http.Close)
	s.Say("holdfast: webhooks of two providers, each with one effect\n\n%s\n", s.AboutPostgres)
	return nil
}

// request is one that a provider sends, or someone who would like to be one.
type request struct {
	to     string
	signed http.Header
	body   string
}

// payment is what the bank sends; each try is signed at its own time.
func payment(id, account string, cents int, signedAt time.Time, secret string) request {
	body := fmt.Sprintf(`{"type":"payment.received","timestamp":"2026-11-21T10:00:00Z","data":{"account":%q,"cents":%d}}`, account, cents)
	signed, err := sign.Standard(id, signedAt, []byte(body), secret)
	if err != nil {
		panic(err) // The secrets here are well formed.
	}
	return request{"bank", signed, body}
}

// push is what GitHub sends.
func push(id, ref string) request {
	body := fmt.Sprintf(`{"ref":%q,"after":"6113728f27ae82c7b1a177c8d03f9e96e0adf246"}`, ref)
	signed, err := sign.GitHub(id, "push", []byte(body), githubSecret)
	if err != nil {
		panic(err) // As is this one.
	}
	return request{"github", signed, body}
}

// send sends a request, says how it was answered, and wants it to be so.
func (s *story) send(ctx context.Context, what string, r request, want int) error {
	status, err := s.deliver(ctx, r)
	if err != nil {
		return err
	}
	s.Say("    %d  %s", status, what)
	if status != want {
		return stories.Broken("%s is answered %d, not %d", what, status, want)
	}
	return nil
}

func (s *story) deliver(ctx context.Context, r request) (status int, err error) {
	return stories.Deliver(ctx, s.http.URL+"/hooks/"+r.to, r.signed, []byte(r.body))
}

// both sends a payment and a push, always the same.
func (s *story) both(ctx context.Context, again string) error {
	if err := s.send(ctx, "a payment of the bank's"+again, payment("msg_1", "alice", 12_00, time.Now(), bankSecret), 200); err != nil {
		return err
	}
	return s.send(ctx, "a push of GitHub's"+again, push("72d3162e", "refs/heads/main"), 200)
}

func (s *story) delivered(ctx context.Context) error {
	s.Say("1. Each of them sends a delivery")
	return s.both(ctx, "")
}

func (s *story) repeated(ctx context.Context) error {
	s.Say("2. They send the same again: the answer was lost on its way")
	if err := s.both(ctx, ", once more"); err != nil {
		return err
	}
	s.Say("   And GitHub's under another id, which it does not sign: anyone who has seen one request could")
	return s.send(ctx, "the push as another delivery", push("ffffffff", "refs/heads/main"), 200)
}

func (s *story) forged(ctx context.Context) error {
	s.Say("3. Someone would like to be the bank")
	now := time.Now()
	paid, pushed := payment("msg_2", "alice", 10_00, now, bankSecret), push("1", "refs/heads/main")
	unsigned := paid.signed.Clone()
	unsigned.Del("webhook-signature")
	for _, f := range []struct {
		what string
		request
	}{
		{"a payment that is not signed", request{"bank", unsigned, paid.body}},
		{"one whose amount was changed on its way", request{"bank", paid.signed, strings.Replace(paid.body, "1000", "9000", 1)}},
		{"one that is signed with another secret", payment("msg_2", "alice", 1_000_000_00, now, "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")},
		{"one that was recorded an hour ago", payment("msg_2", "alice", 10_00, now.Add(-time.Hour), bankSecret)},
		{"what GitHub signed, at the bank's endpoint", request{"bank", pushed.signed, pushed.body}},
		{"a push to another branch, under the signature of the first", request{"github", pushed.signed, strings.Replace(pushed.body, "main", "evil", 1)}},
	} {
		if err := s.send(ctx, f.what, f.request, 401); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) inHand(ctx context.Context) error {
	s.Say("4. A payment comes again while it is being booked: whether it will be is not known yet")
	paid := payment("msg_3", "alice", 30_00, time.Now(), bankSecret)
	begun, end := make(chan struct{}), make(chan struct{})
	s.service.booking = func() { close(begun); <-end }
	first := make(chan int, 1)
	go func() {
		status, _ := s.deliver(ctx, paid)
		first <- status
	}()
	select {
	case <-begun:
	case status := <-first:
		return stories.Broken("a payment is answered %d before it is booked", status)
	}
	err := s.send(ctx, "the second copy: come again later", paid, 503)
	close(end)
	s.Say("    %d  the first copy, once it is booked", <-first)
	s.service.booking = func() {}
	if err != nil {
		return err
	}
	return s.send(ctx, "the second copy, when it comes again", paid, 200)
}

func (s *story) failing(ctx context.Context) error {
	s.Say("5. A payment comes for bob, who has no account yet: its handler fails")
	paid := payment("msg_4", "bob", 40_00, time.Now(), bankSecret)
	if err := s.send(ctx, "the payment: the inbox has it, and tries again by itself", paid, 202); err != nil {
		return err
	}
	if _, err := s.Pool.Exec(ctx, "insert into accounts values ('bob')"); err != nil {
		return err
	}
	if err := stories.Work(ctx, s.service.in, s.Pool, s.Schema); err != nil {
		return err
	}
	s.Say("    bob's account is opened, and the payment is booked by Run")
	return s.send(ctx, "the payment, once more", paid, 200)
}
