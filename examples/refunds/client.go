package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/retry"
)

// client is a shop's side of the service: it tries again while that is of use, with one key over all tries.
type client struct {
	http  *http.Client
	token string
}

// newClient makes the client of a service with one node or several: it asks the first that can be reached.
func newClient(token string, tracer trace.Tracer, policy retry.Policy, nodes ...string) *client {
	dial := func(ctx context.Context, network, _ string) (conn net.Conn, err error) {
		var d net.Dialer
		for _, node := range nodes {
			var failed error
			if conn, failed = d.DialContext(ctx, network, node); failed == nil {
				return conn, nil
			}
			err = errors.Join(err, failed)
		}
		return nil, err
	}
	base := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 64}
	return &client{token: token, http: &http.Client{Transport: &retry.Transport{Base: attempts{tracer, base}, Policy: policy}}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// answer is what the service said.
type answer struct {
	status          int
	replayed        bool
	body            string
	id, state, code string // of its body, where they are there
	attempts        int64
}

// post asks for an operation under a key.
func (c *client) post(ctx context.Context, path, key string, body any) (answer, error) {
	var a answer
	text, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	made := new(atomic.Int64)
	req, err := http.NewRequestWithContext(context.WithValue(ctx, attemptsKey{}, made), http.MethodPost, "http://payments"+path, bytes.NewReader(text))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", c.token)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	said, err := io.ReadAll(res.Body)
	if err != nil {
		return a, err
	}
	a = answer{status: res.StatusCode, replayed: res.Header.Get("Idempotency-Status") == "replayed", body: string(said), attempts: made.Load()}
	var read struct {
		ID, Code string
		Status   any // of a payment or a refund; in a problem the number once more
	}
	if json.Unmarshal(said, &read) == nil {
		a.id, a.code, a.state = read.ID, read.Code, fmt.Sprint(read.Status)
	}
	return a, nil
}
