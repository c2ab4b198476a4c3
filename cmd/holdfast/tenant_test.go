package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operate"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

func TestTenant_ATenantIsExportedAndErased(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx,
			holdfast.Event{ID: "e1", Type: "placed", Topic: "orders", Key: "acme/1", Payload: []byte("of acme")},
			holdfast.Event{ID: "e2", Type: "placed", Topic: "orders", Key: "o-1", Headers: map[string]string{"tenant": "acme"}, Payload: []byte("of acme")},
			holdfast.Event{ID: "e3", Type: "placed", Topic: "orders", Key: "beta/1", Payload: []byte("of beta")},
			holdfast.Event{ID: "e4", Type: "placed", Topic: "orders", Key: "o-2", Payload: []byte("of nobody")})
	}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', 's', 'acme/m', 'orders', '', now(), 'handled')`)
	out := wantStatus(t, 0, "event  2         0       1", "tenant", "export", "acme")
	var places []string
	for line := range strings.Lines(out) {
		var r struct {
			Place string
			Row   struct{ ID string }
			Body  string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Place == "event" && r.Body != "of acme" {
			t.Errorf("%v: %s", err, line)
		}
		places = append(places, r.Place+r.Row.ID)
	}
	if len(places) != 3 {
		t.Errorf("exported are %q", places)
	}

	wantStatus(t, 2, "--reason=WHY", "tenant", "erase", "acme")
	wantStatus(t, 2, "<tenant>", "tenant", "erase")
	wantStatus(t, 1, "must not contain the separator", "tenant", "erase", "acme/1", "--dry-run")
	out = wantStatus(t, 0, "TO ERASE", "tenant", "erase", "acme", "--dry-run")
	for _, says := range []string{"event  2         0       1", "1 row in inbox remains: they recognise a repeat", "- Kafka has what is published"} {
		if !strings.Contains(out, says) {
			t.Errorf("the dry run does not say %q:\n%s", says, out)
		}
	}
	var report operate.JSONTenant
	out = wantStatus(t, 0, "", "tenant", "erase", "acme", "--reason", "the contract ended", "--by", "ann", "--inbox", "--json", "--yes")
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Tenant != "acme" || report.DryRun || report.Places[0] != (operate.JSONTenantPlace{Place: "event", Found: 2, Erased: 2, Unattributed: 1}) {
		t.Errorf("%v: the report is\n%s", err, out)
	}
	for _, at := range report.Places {
		if at.Remains != 0 || at.Place == "inbox" && at.Erased != 1 {
			t.Errorf("%+v", at)
		}
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event where payload in ('of beta', 'of nobody')"); n != 2 {
		t.Errorf("%d events of others have their payload, want 2", n)
	}
	wantStatus(t, 0, `{"place":"event","found":1,`, "tenant", "erase", "o", "--header", "who", "--separator", "-", "--dry-run", "--json")
}

func TestTenant_ATenantIsErasedOnlyByAPersonWhoSaysYes(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'acme/1', 'placed', 'of acme')")
	var said strings.Builder
	c := operate.TenantErase{TenantFlags: operate.TenantFlags{Tenant: "acme"}, Acting: operate.Acting{By: "ann", Reason: "r"}}
	if err := c.Run(&program.Program{Ctx: t.Context(), Out: &said, ErrOut: &said, Database: program.ConnectionFlags{}, Terminal: strings.NewReader("n\n")}); err == nil || !strings.Contains(said.String(), `of tenant "acme" is erased for good. Go on?`) {
		t.Errorf("%v: %s", err, said.String())
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event where payload is not null"); n != 1 {
		t.Error("it was erased")
	}
}
