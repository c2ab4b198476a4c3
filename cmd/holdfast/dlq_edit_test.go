package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestDLQEdit_AnEditOfJSONMustBeJSON(t *testing.T) {
	db := installed(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, payload, hash, headers)
		values ('inbox', 'billing', 'r', 'e1', 's', 't', 'orders', 'k', now(), '{}', '', '{"content-type": "application/json"}')`)
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{\n  \"amount\": 1,\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, 1, "is not JSON: line 3, column 1: invalid character '}'", "dlq", "edit", "1", broken, "--reason", "typo")
	wantStatus(t, 1, "add --raw", "dlq", "edit", "1", broken, "--reason", "typo")
	wantStatus(t, 0, "version        1", "dlq", "show", "1")
	wantStatus(t, 0, "has a new payload", "dlq", "edit", "1", broken, "--reason", "typo", "--raw")
	wantStatus(t, 0, "has a new payload", "dlq", "edit", "1", "--reason", "gone", "--tombstone")
}
