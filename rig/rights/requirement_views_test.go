package rights

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
)

// Queries that were written after the requirement documents read what really was answered and handled, with the rights of an operator.
// A role without rights to the tables is refused.
func TestRequirementViews_TheTablesOfTheRequirementsCanBeReadByTheirNames(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx := t.Context()
	if err := holdfast.Migrate(ctx, db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	operator := roletest.As(t, db, "operator")
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))

	guard, err := idempotency.New(db.Pool, idempotency.Config{Logger: quiet, Principal: func(*http.Request) (string, error) { return "ann", nil }})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(key string, r idempotency.Route, handler http.HandlerFunc) {
		r.Operation = "POST /" + key
		req := httptest.NewRequest(http.MethodPost, "/"+key, strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", key)
		guard.Route(r)(handler).ServeHTTP(httptest.NewRecorder(), req)
	}
	keys := func() map[string]string {
		rows, err := operator.Query(ctx, `select key, concat_ws(' ', operation_type, length(request_hash), response_hash, status, created_at <= now() and expires_at > now() + interval '1 hour') from holdfast.idempotency_keys`)
		return pairs(t, rows, err)
	}
	ask("refund", idempotency.Route{}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") })
	ask("long", idempotency.Route{MaxResponse: 1}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "two") })
	var pending map[string]string
	ask("leased", idempotency.Route{Lease: time.Minute}, func(http.ResponseWriter, *http.Request) { pending = keys() })
	hash := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	if got, want := pending["leased"], "POST /leased 64 pending t"; got != want {
		t.Errorf("while its handler runs: %q, want %q", got, want)
	}
	if got, want := keys()["refund"], "POST /refund 64 "+hash("done")+" complete t"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := keys()["long"]; !strings.HasSuffix(got, " complete t") {
		t.Errorf("an answer that was too long to keep: %q, want complete", got)
	}

	in, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("t", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	in.Handle("later", func(context.Context, pgx.Tx, holdfast.Event) error { return fmt.Errorf("not now") })
	for id, typ := range map[string]string{"1": "t", "2": "later"} {
		if _, err := in.Receive(ctx, holdfast.Event{ID: id, Source: "shop", Topic: "orders", Type: typ, Key: id, Payload: []byte("paid")}); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := operator.Query(ctx, `select event_id, concat_ws(' ', source, length(payload_hash), received_at <= now(), processed_at <= now(), result) from holdfast.inbox_events`)
	events := pairs(t, rows, err)
	for id, want := range map[string]string{"1": "shop 64 t t handled", "2": "shop 64 t stored"} {
		if events[id] != want {
			t.Errorf("event %s: %q, want %q", id, events[id], want)
		}
	}

	for _, view := range []string{"idempotency_keys", "inbox_events"} {
		_, err := roletest.With(t, db, "stranger", []string{"usage on schema holdfast"}).Exec(ctx, "select * from holdfast."+view)
		if err == nil || !strings.Contains(err.Error(), "permission denied for table") {
			t.Errorf("a role without a right to the table reads %s: %v", view, err)
		}
	}
}

// pairs reads rows of two texts.
func pairs(t *testing.T, rows pgx.Rows, err error) map[string]string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error { all[name] = value; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}
