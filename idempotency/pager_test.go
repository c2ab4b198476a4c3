package idempotency

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// statementsOf are the statements that a document shows.
func statementsOf(t *testing.T, document string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/" + document)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range sqlBlock.FindAllSubmatch(text, -1) {
		for _, statement := range strings.SplitAfter(string(block[1]), ";\n") {
			if statement = strings.TrimSpace(statement); statement != "" {
				all = append(all, statement)
			}
		}
	}
	return all
}

func TestPager_ThePagersStatementsSayWhoHoldsAKey(t *testing.T) {
	b := setup(t)
	handler, entered, letGo := b.slow()
	defer letGo()
	h := b.service(b.guard(), handler)
	done := make(chan int)
	go func() { done <- b.send(h, sent{key: "k"}).Code }()
	<-entered
	other, err := b.db.Begin(t.Context()) // as the outbox, the inbox and migrations lock
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(t.Context())
	if _, err := other.Exec(t.Context(), "select pg_advisory_xact_lock(1751541606, 7)"); err != nil {
		t.Fatal(err)
	}
	shown := map[string][]map[string]any{}
	for _, document := range []string{"operations/idempotency.md", "guides/lease-mode.md"} {
		for _, statement := range statementsOf(t, document) {
			rows, err := b.db.Query(t.Context(), statement)
			if err != nil {
				t.Fatal(err)
			}
			found, err := pgx.CollectRows(rows, pgx.RowToMap)
			if err != nil {
				t.Errorf("%s: %v", statement, err)
			}
			what, _, _ := strings.Cut(statement, ":")
			shown[what] = found
		}
	}
	holders := shown["-- Who holds a key now"]
	if len(holders) != 1 {
		t.Fatalf("%d are said to hold a key: %v", len(holders), holders)
	}
	letGo()
	if code := <-done; code != 201 {
		t.Errorf("got %d", code)
	}
	if got, want := holders[0]["idempotency_key"], b.observed[0].KeyHash; got != want {
		t.Errorf("it shows the key %v, and the log has %s", got, want)
	}
}

func TestPager_AnAbandonedRequestIsListedWithTheRunThatItsRemedyNeeds(t *testing.T) {
	b := openTill(t)
	o := Route{Lease: aLease, Operation: sellOperation, Complete: asItIs}
	g := b.guard()
	b.abandon(g, "before the call", sent{key: "k"}, o)
	pgtest.Exec(t, b.db, "update holdfast.idempotency_request set due_at = null, tries = 10")
	rows, err := b.db.Query(t.Context(), statementsOf(t, "guides/lease-mode.md")[0])
	if err != nil {
		t.Fatal(err)
	}
	listed, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil || len(listed) != 1 || listed[0]["key"] != "k" {
		t.Fatalf("got %v, %v", listed, err)
	}
	run, ok := listed[0]["run"].(int64)
	if !ok {
		t.Fatalf("it has no run: %v", listed[0])
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request where run = $1", run); n != 1 {
		t.Errorf("%d requests have that run", n)
	}
}
