package main

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// documented returns a section of the operations page.
func documented(t *testing.T, title string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## "+title+"\n")
	if !found {
		t.Fatalf("docs/operations.md has no section %q", title)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

func TestTheOperationsPageExplainsEverythingThatStatusSays(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "f", 1)
	pgtest.Exec(t, db.Pool, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 5, 77);
		insert into holdfast.relay (name, seen_until) values ('the sidecar', now() + interval '1 minute');
		insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time) values (3, 'orders', 'k', 1, 'record', now(), now() - interval '1 hour', 'e', 's', 't', now()), (3, 'gone', 'k', 2, 'topic', now(), now(), 'e', 's', 't', now());
		insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash) values ('billing', 'orders', 'k', 1, 's', 'e', 't', now(), '');
		insert into holdfast.event_0 (lane, id, type, topic) values (3, 'a', 't', 'o'); insert into holdfast.event_1 (lane, id, type, topic) values (3, 'b', 't', 'o');
		insert into holdfast.event_2 (lane, id, type, topic) values (3, 'c', 't', 'o'); insert into holdfast.event_3 (lane, id, type, topic) values (3, 'd', 't', 'o')`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	pgtest.Exec(t, tx, "select from holdfast.event")
	section := documented(t, "What `holdfast status` says")
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
				t.Errorf("docs/operations.md does not explain %s of %s", name, table)
			}
		}
	}
	_, out, _ = call(t, "status")
	heads := regexp.MustCompile(`(?m)^(LANE|RELAY|SEGMENT|CONSUMER) .*`).FindAllString(out, -1)
	if len(heads) != 6 {
		t.Fatalf("status has %d tables, want 6: %s", len(heads), out)
	}
	for _, head := range heads {
		for _, column := range regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(head), -1) {
			if !regexp.MustCompile(`(?m)^\| ([^|` + "`" + `]*, )?` + column + `(, [^|]*)? \|`).MatchString(section) {
				t.Errorf("docs/operations.md does not explain the column %s", column)
			}
		}
	}
}

func TestTheOperationsPageExplainsEveryFlagOfTheRelay(t *testing.T) {
	section := documented(t, "Running the relay as a process")
	help := wantStatus(t, 0, "--brokers", "relay", "--help")
	flags := regexp.MustCompile(`--[a-z][a-z-]*|KAFKA_[A-Z]+|\$[A-Z_]+`).FindAllString(help, -1)
	if len(flags) < 15 {
		t.Fatalf("only %d flags are found in\n%s", len(flags), help)
	}
	for _, flag := range flags {
		if flag != "--help" && !strings.Contains(section, "`"+strings.TrimPrefix(flag, "$")+"`") {
			t.Errorf("docs/operations.md does not explain %s", flag)
		}
	}
}
