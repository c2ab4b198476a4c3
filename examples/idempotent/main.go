// Command idempotent is a service whose POST /refunds is safe to send again. It pays a refund back, sends the request again as a
// client does that got no answer, and asks with the same key for something else:
//
//	go run ./examples/idempotent
//
// It starts a PostgreSQL for itself unless DATABASE_URL names one of yours. Read service.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/servers"
	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

func main() {
	stories.Main("idempotent", func(ctx context.Context) error { return run(ctx, os.Stdout, os.Getenv("DATABASE_URL")) })
}

// run shows the exchange on out. Its error says which promise did not hold, or what to do about the server.
func run(ctx context.Context, out io.Writer, databaseURL string) (err error) {
	s, err := servers.Start(ctx, servers.Config{DatabaseURL: databaseURL, NoKafka: true, Name: servers.NewName("idempotent")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	if err := holdfast.Migrate(ctx, s.Pool, holdfast.SchemaConfig{Schema: s.Schema}); err != nil {
		return err
	}
	if _, err := s.Pool.Exec(ctx, tables); err != nil {
		return err
	}
	service, err := newService(s.Pool, s.Schema, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	srv := httptest.NewServer(service)
	defer srv.Close()

	const key = "refund:ch_9ab:1000:6f6c"
	var first string
	for _, turn := range []struct {
		what, key, body, status string
		code                    int
	}{
		{"a refund", key, `{"charge": "ch_9ab", "cents": 1000}`, "stored", 201},
		{"the same again", key, `{"charge": "ch_9ab", "cents": 1000}`, "replayed", 201},
		{"the same key for more", key, `{"charge": "ch_9ab", "cents": 9000}`, "", 409},
		{"no key", "", `{"charge": "ch_9ab", "cents": 1000}`, "", 400},
	} {
		code, status, body, err := ask(ctx, "POST", srv.URL+"/refunds", turn.key, turn.body)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d %-8s  %s: %s\n", code, status, turn.what, body)
		if code != turn.code || status != turn.status {
			return fmt.Errorf("%s was answered %d %q, not %d %q", turn.what, code, status, turn.code, turn.status)
		}
		switch turn.status {
		case "stored":
			first = body
		case "replayed":
			if body != first {
				return fmt.Errorf("the same refund was answered %s, then %s", first, body)
			}
		}
	}
	_, _, routes, err := ask(ctx, "GET", srv.URL+"/idempotent-routes", "", "")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "idempotent routes: %s\n", routes)
	var refunds int
	if err := s.Pool.QueryRow(ctx, "select count(*) from refund").Scan(&refunds); err != nil {
		return err
	}
	if refunds != 1 {
		return fmt.Errorf("there are %d refunds", refunds)
	}
	fmt.Fprintln(out, "\nEvery promise held.")
	return nil
}

func ask(ctx context.Context, method, url, key, body string) (code int, status, answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", "", err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Account", "shop-7")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header.Get("Idempotency-Status"), strings.TrimSpace(string(said)), err
}
