package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMigrationTools_AScriptForAToolLeavesTheTransactionToIt(t *testing.T) {
	for _, from := range [][]string{nil, {"--from", "1"}} {
		own := wantStatus(t, 0, "begin;\n", append([]string{"migrate", "--print"}, from...)...)
		for _, tool := range []string{"goose", "tern", "atlas", "flyway"} {
			script := wantStatus(t, 0, "-- For "+tool, append([]string{"migrate", "--print", "--for", tool}, from...)...)
			body := strings.TrimSuffix(strings.TrimPrefix(own, "begin;\n\n"), "\ncommit;\n")
			if !strings.Contains(script, body) || strings.Contains(script, "\ncommit;\n") || strings.Contains(script, "begin;\n\n") {
				t.Errorf("the script for %s is not that of holdfast without begin and commit", tool)
			}
			// What these tools would take for their own: Flyway replaces ${…}, tern {{…}}, and reads a separator.
			for _, taken := range []string{"${", "{{", "---- create above", "\nGO\n"} {
				if strings.Contains(script, taken) {
					t.Errorf("the script for %s has %q", tool, taken)
				}
			}
			if goose := tool == "goose"; strings.Count(script, "-- +goose ") != map[bool]int{true: 6}[goose] {
				t.Errorf("the script for %s has marks of goose: %v", tool, goose)
			}
		}
	}
	wantStatus(t, 2, "for is set: it must be with --print", "migrate", "--for", "goose")
	wantStatus(t, 2, "--for must be one of", "migrate", "--print", "--for", "flywheel")
}

// What Flyway and Atlas do: they run the statements one by one, in a transaction, and know dollar quotes.
func TestMigrationTools_AScriptForAToolMakesAWholeSchema(t *testing.T) {
	db := pgtest.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	statements := split(wantStatus(t, 0, "create table", "migrate", "--print", "--for", "flyway"))
	if len(statements) < 100 {
		t.Fatalf("only %d statements are found", len(statements))
	}
	for _, statement := range statements {
		pgtest.Exec(t, tx, statement)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, 0, "complete", "check")
	wantStatus(t, 0, "nothing needs a person", "status")
}

// split cuts a script at the semicolons that are in no comment, no quotes and no dollar quotes.
func split(script string) (statements []string) {
	var one strings.Builder
	for len(script) > 0 {
		n := 1
		switch c := script[0]; {
		case strings.HasPrefix(script, "--"):
			n = strings.IndexByte(script+"\n", '\n')
		case c == '\'' || c == '"':
			n = 2 + strings.IndexByte(script[1:], c)
		case strings.HasPrefix(script, "$$"):
			n = 4 + strings.Index(script[2:], "$$")
		case c == ';':
			statements = append(statements, one.String())
			one.Reset()
			script = script[1:]
			continue
		}
		one.WriteString(script[:n])
		script = script[n:]
	}
	return statements
}
