package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/webhook"
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
	what string
	to   string
	h    http.Header
	body string
	want int
}

// send sends requests and says how each was answered.
func (s *story) send(ctx context.Context, requests ...request) error {
	for _, r := range requests {
		status, err := s.post(ctx, r)
		if err != nil {
			return err
		}
		s.Say("    %d  %s", status, r.what)
		if status != r.want {
			return stories.Broken("%s is answered %d, not %d", r.what, status, r.want)
		}
	}
	return nil
}

func (s *story) post(ctx context.Context, r request) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.http.URL+"/hooks/"+r.to, bytes.NewReader([]byte(r.body)))
	if err != nil {
		return 0, err
	}
	req.Header = r.h.Clone()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// payment is what the bank sends; each try is signed at its own time.
func payment(id, account string, cents int, signedAt time.Time, secret string) (http.Header, string, error) {
	body := fmt.Sprintf(`{"type":"payment.received","timestamp":"2026-11-21T10:00:00Z","data":{"account":%q,"cents":%d}}`, account, cents)
	h, err := webhook.SignStandard(id, signedAt, []byte(body), secret)
	return h, body, err
}

// push is what GitHub sends.
func push(id, ref string) (http.Header, string, error) {
	body := fmt.Sprintf(`{"ref":%q,"after":"6113728f27ae82c7b1a177c8d03f9e96e0adf246"}`, ref)
	h, err := webhook.SignGitHub(id, "push", []byte(body), githubSecret)
	return h, body, err
}

// both are a payment and a push, as they are sent under a delivery's id of GitHub's.
func (s *story) both(ctx context.Context, delivery, again string) error {
	bh, bank, err := payment("msg_1", "alice", 12_00, time.Now(), bankSecret)
	if err != nil {
		return err
	}
	gh, github, err := push(delivery, "refs/heads/main")
	if err != nil {
		return err
	}
	return s.send(ctx, request{"a payment of the bank's" + again, "bank", bh, bank, 200},
		request{"a push of GitHub's" + again, "github", gh, github, 200})
}

func (s *story) delivered(ctx context.Context) error {
	s.Say("1. Each of them sends a delivery")
	return s.both(ctx, "72d3162e", "")
}

func (s *story) repeated(ctx context.Context) error {
	s.Say("2. They send the same again: the answer was lost on its way")
	if err := s.both(ctx, "72d3162e", ", once more"); err != nil {
		return err
	}
	s.Say("   And GitHub's under another id, which it does not sign: whoever has seen one request could")
	h, body, err := push("ffffffff", "refs/heads/main")
	if err != nil {
		return err
	}
	return s.send(ctx, request{"the push as another delivery", "github", h, body, 200})
}

func (s *story) forged(ctx context.Context) error {
	s.Say("3. Someone would like to be the bank")
	now := time.Now()
	h, body, err := payment("msg_2", "alice", 10_00, now, bankSecret)
	if err != nil {
		return err
	}
	unsigned := h.Clone()
	unsigned.Del("webhook-signature")
	other, otherBody, err := payment("msg_2", "alice", 1_000_000_00, now, "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")
	if err != nil {
		return err
	}
	old, oldBody, err := payment("msg_2", "alice", 10_00, now.Add(-time.Hour), bankSecret)
	if err != nil {
		return err
	}
	gh, github, err := push("1", "refs/heads/main")
	if err != nil {
		return err
	}
	return s.send(ctx,
		request{"a payment that is not signed", "bank", unsigned, body, 401},
		request{"one whose amount was changed on its way", "bank", h, strings.Replace(body, "1000", "9000", 1), 401},
		request{"one that is signed with another secret", "bank", other, otherBody, 401},
		request{"one that was recorded an hour ago", "bank", old, oldBody, 401},
		request{"what GitHub signed, at the bank's endpoint", "bank", gh, github, 401},
		request{"a push to another branch, under the signature of the first", "github", gh, strings.Replace(github, "main", "evil", 1), 401},
	)
}

func (s *story) inHand(ctx context.Context) error {
	s.Say("4. A payment comes again while it is being booked: whether it will be is not known yet")
	h, body, err := payment("msg_3", "alice", 30_00, time.Now(), bankSecret)
	if err != nil {
		return err
	}
	begun, end := make(chan struct{}), make(chan struct{})
	s.service.booking = func() { close(begun); <-end }
	first := make(chan int, 1)
	go func() {
		status, _ := s.post(ctx, request{to: "bank", h: h, body: body})
		first <- status
	}()
	select {
	case <-begun:
	case status := <-first:
		return stories.Broken("a payment is answered %d before it is booked", status)
	}
	err = s.send(ctx, request{"the second copy: come again later", "bank", h, body, 503})
	close(end)
	s.Say("    %d  the first copy, once it is booked", <-first)
	s.service.booking = func() {}
	if err != nil {
		return err
	}
	return s.send(ctx, request{"the second copy, when it comes again", "bank", h, body, 200})
}

func (s *story) failing(ctx context.Context) error {
	s.Say("5. A payment comes for bob, who has no account yet: its handler fails")
	h, body, err := payment("msg_4", "bob", 40_00, time.Now(), bankSecret)
	if err != nil {
		return err
	}
	if err := s.send(ctx, request{"the payment: the inbox has it, and tries again by itself", "bank", h, body, 202}); err != nil {
		return err
	}
	if _, err := s.Pool.Exec(ctx, "insert into accounts values ('bob')"); err != nil {
		return err
	}
	if err := stories.Work(ctx, s.service.in); err != nil {
		return err
	}
	s.Say("    bob's account is opened, and the payment is booked by Run")
	return s.send(ctx, request{"the payment, once more", "bank", h, body, 200})
}
