package main

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// documented returns a page of the documentation.
func documented(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDocumented_EverythingThatStatusSaysIsDocumented(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	db := installed(t)
	letters(t, db, "billing", "f", 1)
	pgtest.Exec(t, db.Pool, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 5, 77);
		insert into holdfast.relay (name, seen_until) values ('the sidecar', now() + interval '1 minute');
		insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time) values (3, 'orders', 'k', 1, 'record', now(), now() - interval '1 hour', 'e', 's', 't', now()), (3, 'gone', 'k', 2, 'topic', now(), now(), 'e', 's', 't', now());
		insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash) values ('billing', 'orders', 'k', 1, 's', 'e', 't', now(), '');
		insert into holdfast.consumer_skip (consumer, topic, type, events) values ('billing', 'orders', 'order.payed', 50);
		insert into holdfast.consumer_backfill (consumer, node, began_at, partitions, partitions_left, done, remaining, per_second) values ('billing', 'n', now(), 1, 1, 1, 1, 1);
		insert into holdfast.dependency (consumer, name, away) values ('billing', 'stripe', true);
		insert into holdfast.pause (topic, by, reason) values ('orders', 'ann', 'a test');
		insert into holdfast.event_0 (lane, id, type, topic) values (3, 'a', 't', 'o'); insert into holdfast.event_1 (lane, id, type, topic) values (3, 'b', 't', 'o');
		insert into holdfast.event_2 (lane, id, type, topic) values (3, 'c', 't', 'o'); insert into holdfast.event_3 (lane, id, type, topic) values (3, 'd', 't', 'o')`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	pgtest.Exec(t, tx, "select from holdfast.event; select from holdfast.lane for update")
	section := documented(t, "docs/operations/status.md")
	var object map[string]json.RawMessage
	_, out, _ := call(t, "status", "--json")
	if err := json.Unmarshal([]byte(out), &object); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, table := range slices.Sorted(maps.Keys(object)) {
		names := []string{table}
		if table != "needs_a_person" {
			var rows []map[string]any
			if err := json.Unmarshal(object[table], &rows); err != nil || len(rows) == 0 {
				t.Fatalf("%s has no row: %s, %v", table, out, err)
			}
			names = append(names, slices.Sorted(maps.Keys(rows[0]))...)
		}
		for _, name := range names {
			if !strings.Contains(section, "`"+name+"`") {
				t.Errorf("docs/operations/status.md does not explain %s of %s", name, table)
			}
		}
	}
	_, out, _ = call(t, "status")
	heads := regexp.MustCompile(`(?m)^(LANE|RELAY|SEGMENT|CONSUMER|TABLE) .*`).FindAllString(out, -1)
	if len(heads) != 10 {
		t.Fatalf("status has %d tables, want 10: %s", len(heads), out)
	}
	for _, head := range heads {
		for _, column := range regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(head), -1) {
			if !regexp.MustCompile(`(?m)^\| ([^|` + "`" + `]*, )?` + column + `(, [^|]*)? \|`).MatchString(section) {
				t.Errorf("docs/operations/status.md does not explain the column %s", column)
			}
		}
	}
}

func TestDocumented_EveryFlagOfTheRelayIsDocumented(t *testing.T) {
	section := documented(t, "docs/guides/run-a-relay.md")
	help := wantStatus(t, 0, "--brokers", "relay", "--help") + wantStatus(t, 0, "--tls", "help", "kafka") + wantStatus(t, 0, "--schema", "help")
	flags := regexp.MustCompile(`--[a-z][a-z-]*|KAFKA_[A-Z]+|\$[A-Z_]+`).FindAllString(help, -1)
	if len(flags) < 15 {
		t.Fatalf("only %d flags are found in\n%s", len(flags), help)
	}
	for _, flag := range flags {
		if flag != "--help" && !strings.Contains(section, "`"+strings.TrimPrefix(flag, "$")+"`") {
			t.Errorf("docs/guides/run-a-relay.md does not explain %s", flag)
		}
	}
}

var rewrite = flag.Bool("rewrite", false, "write docs/reference/cli.md")

func TestDocumented_ThePageOfTheCommandLineIsThatOfTheHelp(t *testing.T) {
	t.Setenv("COLUMNS", "120")
	var page strings.Builder
	page.WriteString(`# Command line

What ` + "`holdfast help`, `holdfast help kafka` and `holdfast help COMMAND`" + ` print. The first two have what commands share: exit codes, variables, and
the flags of the database and of Kafka. The help of a command ends with a line that names them if it has them too: it is left out here.
` + "`go test ./cmd/holdfast -run ThePageOfTheCommandLine -rewrite`" + ` writes this page.
`)
	asked := []string{"", "kafka"}
	for _, leaf := range commands(t) {
		asked = append(asked, commandOf(leaf))
	}
	// On a page the head of a block stands out by itself.
	blanks := regexp.MustCompile(`(?m)^(Usage: .*|Example:)\n\n`)
	shared := regexp.MustCompile(`(?m)^  Also those of the database: .*\n`)
	for _, words := range asked {
		help := wantStatus(t, 0, "Usage: holdfast", append([]string{"help"}, strings.Fields(words)...)...)
		help = shared.ReplaceAllString(help, "")
		title := strings.TrimSpace("holdfast " + words)
		if words == "kafka" {
			title = "holdfast help kafka"
		}
		page.WriteString("\n## " + title + "\n```\n" + strings.TrimSpace(blanks.ReplaceAllString(help, "$1\n")) + "\n```\n")
	}
	const path = "../../docs/reference/cli.md"
	if *rewrite {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if documented(t, "docs/reference/cli.md") != page.String() {
		t.Error("docs/reference/cli.md is not what the help says: run go test ./cmd/holdfast -run ThePageOfTheCommandLine -rewrite")
	}
}
