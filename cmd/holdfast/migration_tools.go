package main

import "strings"

// forTool makes of a script one that a tool for migrations runs in a transaction of its own. The script begins with "begin" and
// ends with "commit".
func forTool(tool, script string) string {
	if tool == "" {
		return script
	}
	script = strings.TrimSuffix(strings.TrimPrefix(script, "begin;\n\n"), "\ncommit;\n")
	script = "-- For " + tool + ", in the transaction that it begins. Nothing undoes it: docs/guides/migrations.md of holdfast says how to go back.\n\n" + script
	if tool == "goose" {
		// goose ends a statement at each semicolon, also inside of functions. The server takes the script as a whole.
		return "-- +goose Up\n-- +goose StatementBegin\n" + script + "-- +goose StatementEnd\n\n" +
			"-- +goose Down\n-- +goose StatementBegin\ndo $$ begin\n    raise exception 'nothing undoes this migration of holdfast: docs/guides/migrations.md says how to go back';\nend $$;\n-- +goose StatementEnd\n"
	}
	return script
}
