package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/retry"
)

// provider is the service's side of the gateway. It asks once: the client of the service asks again, under one key all
// the way through.
type provider struct {
	url  string
	http *http.Client
}

func newProvider(url string, timeout time.Duration) *provider {
	return &provider{url: url, http: &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
}

var errDeclined = errors.New("the gateway declined")

// move asks for a movement of money under a key. Its errors are errDeclined, and what another try may fix.
func (p *provider) move(ctx context.Context, kind, key, reference string, cents int64) (receipt string, err error) {
	body, err := json.Marshal(movement{Reference: reference, Cents: cents})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/"+kind, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Idempotency-Key", key)
	res, err := p.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the gateway for %s: %w", kind, err)
	}
	defer func() { _ = res.Body.Close() }()
	switch err := retry.ErrorOf(res); {
	case err == nil:
	case retry.Classify(err) == retry.Duplicate: // An earlier try has done it, and its answer was lost: here is the result.
	case res.StatusCode == http.StatusPaymentRequired:
		return "", errDeclined
	default: // Its class, such as RATE_LIMIT, says what to answer.
		return "", fmt.Errorf("ask the gateway for %s: %w", kind, err)
	}
	var done movement
	if err := json.NewDecoder(res.Body).Decode(&done); err != nil {
		return "", fmt.Errorf("read the gateway's answer: %w", err)
	}
	return done.ID, nil
}
