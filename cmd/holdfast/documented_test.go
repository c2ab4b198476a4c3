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
	if len(heads) != 9 {
		t.Fatalf("status has %d tables, want 9: %s", len(heads), out)
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
	help := wantStatus(t, 0, "--brokers", "relay", "--help")
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
	var page strings.Builder
	page.WriteString(`# Command line

The help of ` + "`holdfast` and of each command, as they print it with `--help`. `go test ./cmd/holdfast -run ThePageOfTheCommandLine -rewrite` writes this page." + `

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed; or ` + "`status`" + ` or ` + "`doctor`" + ` found something that needs a person, or ` + "`find`" + ` found nothing |
| 2 | wrong command line |

| environment | sets |
|---|---|
| ` + "`DATABASE_URL` | `--database-url`. It may have a password; the flag may not, as a list of processes shows it" + ` |
| ` + "`DATABASE_URL_FILE` | `--database-url-file`" + ` |
| ` + "`PGHOST`, `PGPORT`, `PGUSER`, `PGDATABASE`, `PGPASSWORD`, `PGPASSFILE`, `PGSERVICE`, `PGSSLMODE` and so on | what the connection string leaves out, as for psql" + ` |
| ` + "`HOLDFAST_SCHEMA` | `--schema`" + ` |
| ` + "`KAFKA_BROKERS` | `--brokers`" + ` |
| ` + "`KAFKA_USER`, `KAFKA_PASSWORD_FILE`, `KAFKA_TOKEN_FILE` | `--sasl-user`, `--sasl-password-file`, `--sasl-token-file`" + ` |
| ` + "`KAFKA_TLS`, `KAFKA_TLS_CA`, `KAFKA_SASL_MECHANISM` and so on, `HOLDFAST_CONFIG`, `HOLDFAST_LISTEN` and so on | what the help of a command says beside its flags" + ` |
| ` + "`KAFKA_PASSWORD`, `KAFKA_TOKEN` | the secret of `--sasl-mechanism`, where no file has it. No flag takes one" + ` |
`)
	commands := []string{"", "migrate", "check", "roles", "relay", "status", "doctor", "find", "pause", "resume", "waiting groups", "waiting list", "waiting show", "waiting retry", "waiting give-up", "waiting discard", "waiting redirect", "waiting cancel", "dlq groups", "dlq list", "dlq show", "dlq replay", "dlq edit", "dlq discard", "dlq purge", "tenant export", "tenant erase", "console", "adopt", "version", "completion"}
	for _, command := range commands {
		help := wantStatus(t, 0, "Usage: holdfast", append(strings.Fields(command), "--help")...)
		title := strings.TrimSpace("holdfast " + command)
		page.WriteString("\n## " + title + "\n\n```\n" + regexp.MustCompile(`(?m) +$`).ReplaceAllString(strings.TrimSpace(help), "") + "\n```\n")
	}
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z-]+(?: [a-z-]+)?) `).FindAllStringSubmatch(wantStatus(t, 0, "", "--help"), -1) {
		if !slices.Contains(commands, m[1]) {
			t.Errorf("the page leaves out %s", m[1])
		}
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
