package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// demo serves, is its own client for a moment, and stops as a signal would make it.
func (s *shop) demo(ctx context.Context, l net.Listener, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, l) }()

	demoErr := s.visit(ctx, "http://"+l.Addr().String(), out)
	begun := time.Now()
	stop()
	if err := <-ended; err != nil {
		return err
	}
	if demoErr == nil {
		fmt.Fprintf(out, "requests, relay and pool stopped in that order, in %.2f s\n", time.Since(begun).Seconds())
	}
	return demoErr
}

// visit sends the requests and waits for the events.
func (s *shop) visit(ctx context.Context, url string, out io.Writer) error {
	client := &http.Client{Timeout: 10 * time.Second}
	if err := ask(ctx, client, "GET", url+"/readyz", "", http.StatusOK); err != nil {
		return err
	}
	if err := ask(ctx, client, "POST", url+"/orders", `{"customer":"","cents":0}`, http.StatusBadRequest); err != nil {
		return err
	}
	const orders = 20
	for i := range orders {
		body := fmt.Sprintf(`{"customer":"customer-%d","cents":%d}`, i%4, 1000+i)
		if err := ask(ctx, client, "POST", url+"/orders", body, http.StatusCreated); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d orders answered with 201, and one that was none with 400\n", orders)

	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for begun := time.Now(); s.published.Load() < orders; {
		select {
		case <-wait.Done():
			return fmt.Errorf("%d of %d events were published within %.0f s", s.published.Load(), orders, time.Since(begun).Seconds())
		case <-time.After(time.Millisecond):
		}
	}
	fmt.Fprintf(out, "%d events published to %s by the relay in this process\n", s.published.Load(), s.topic)
	return nil
}

func ask(ctx context.Context, client *http.Client, method, url, body string, want int) error {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if said, _ := io.ReadAll(resp.Body); resp.StatusCode != want {
		return fmt.Errorf("%s %s was answered with %s, not %d: %s", method, url, resp.Status, want, said)
	}
	return nil
}
