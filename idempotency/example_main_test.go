package idempotency_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
)

// newPool returns a pool to a database that holdfast.Migrate has prepared, with the service's own table.
func newPool() *pgxpool.Pool {
	return exampledb.NewWith("create table charge (id bigint generated always as identity, cents bigint)")
}

// newGuard returns a guard for a service with one user.
func newGuard(pool *pgxpool.Pool, c idempotency.Config) *idempotency.Guard {
	c.Principal = func(*http.Request) (string, error) { return "alice", nil }
	c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	g, err := idempotency.New(pool, c)
	if err != nil {
		log.Fatal(err)
	}
	return g
}

// post sends POST /charges as a client does, and prints the answer: of a problem (RFC 9457) its code.
func post(service http.Handler, key, cents string) {
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(cents))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	w := httptest.NewRecorder()
	service.ServeHTTP(w, r)
	answer := strings.TrimSpace(w.Body.String())
	var problem struct{ Code string }
	if json.Unmarshal(w.Body.Bytes(), &problem) == nil {
		answer = problem.Code
	}
	fmt.Println(w.Code, answer)
}
