package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

// story is what the chapters share.
type story struct {
	stories.Story
	config config

	services services
	server   *httptest.Server
	process  *exec.Cmd // the node
	alive    io.Closer // its standard input
	address  string    // where it takes events
}

func (s *story) start(ctx context.Context) error {
	if err := s.Start(ctx, "steps", s.config.DatabaseURL, tables); err != nil {
		return err
	}
	s.services.answers, s.services.calls, s.services.effects = map[string]string{}, map[string]int{}, map[string]int{}
	s.server = httptest.NewServer(&s.services)
	s.AtEnd(s.server.Close)
	s.AtEnd(s.stopNode)
	s.Say("holdfast: a handler that calls two services\n\n%s\n", s.AboutPostgres)
	return s.startNode()
}

// startNode starts a process that handles events.
func (s *story) startNode() error {
	c := s.Pool.Config()
	text, err := json.Marshal(node{c.ConnString(), c.ConnConfig.RuntimeParams["search_path"], s.Schema, s.server.URL, s.config.careless})
	if err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asNode+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.process, s.alive = cmd, in
	address, err := bufio.NewReader(out).ReadString('\n')
	s.address = strings.TrimSpace(address)
	return err
}

// stopNode ends the process.
func (s *story) stopNode() {
	if s.process != nil {
		_ = s.alive.Close()
		_ = s.process.Wait()
		s.process = nil
	}
}

// send sends an order to the node as often as it takes, and starts another node when it is gone.
func (s *story) send(ctx context.Context, id string) error {
	payload, err := json.Marshal(order{id, 1000})
	if err != nil {
		return err
	}
	body, err := json.Marshal(holdfast.Event{ID: id, Source: "shop", Type: "order.placed", Topic: "orders", Key: id, Payload: payload})
	if err != nil {
		return err
	}
	for {
		outcome, err := s.post(ctx, body)
		if err == nil {
			s.Say("    %s is %s", id, outcome)
			return s.handled(ctx, id)
		}
		if ctx.Err() != nil {
			return err
		}
		s.Say("    the node is gone: another one starts, and %s comes again", id)
		s.stopNode()
		if err := s.startNode(); err != nil {
			return err
		}
	}
}

func (s *story) post(ctx context.Context, body []byte) (outcome string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("the node answers %s: %s", res.Status, text)
	}
	return string(text), err
}

// handled waits until an order is shipped, and says what the services did for it.
func (s *story) handled(ctx context.Context, id string) error {
	err := stories.Await(ctx, func(ctx context.Context) (yes bool, err error) {
		err = s.Pool.QueryRow(ctx, "select exists (select from shipments where order_id = $1)", id).Scan(&yes)
		return yes, err
	})
	for _, service := range []string{"/warehouse", "/payments"} {
		s.Say("    %s", s.services.were(service, id))
	}
	return err
}

func (s *story) plain(ctx context.Context) error {
	s.Say("1. Both services answer")
	return s.send(ctx, "order 1")
}

func (s *story) busy(ctx context.Context) error {
	s.Say("\n2. The payments are busy once, when the warehouse has reserved. Its call is not made again")
	s.services.mu.Lock()
	s.services.busy = true
	s.services.mu.Unlock()
	return s.send(ctx, "order 2")
}

// killing lets a service kill the node, as kill -9 does, before the node can hear the answer.
func (s *story) killing(service string) {
	process := s.process.Process
	s.services.mu.Lock()
	defer s.services.mu.Unlock()
	s.services.kill, s.services.killer = service, func() { _ = process.Kill() }
}

func (s *story) killed(ctx context.Context) error {
	s.Say("\n3. The node is killed when the payments have charged. They are called again, with the same key, and know it")
	s.killing("/payments")
	return s.send(ctx, "order 3")
}

func (s *story) killedWithoutKeys(ctx context.Context) error {
	s.Say("\n4. The node is killed when the warehouse has reserved. It does not know keys, and reserves once more")
	s.killing("/warehouse")
	return s.send(ctx, "order 4")
}
