package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// A column that somebody added stops no statement of status; a table that is gone stops one of its parts.
func TestStatusDrift_StatusShowsWhatItCanOfASchemaThatDrifted(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	db := installed(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.consumer_position (consumer, topic, partition, position, owner) values ('billing', 'orders', 5, 77, 'node 1');
		alter table holdfast.inbox add column more text`)
	for _, want := range []string{"column inbox.more", "LANE ", "node 1", "runbooks.md#schema-drift says how to repair it"} {
		wantStatus(t, 1, want, "status")
	}
	pgtest.Exec(t, db.Pool, "drop table holdfast.consumer_skip cascade")
	out := wantStatus(t, 1, "table consumer_skip", "status")
	for _, want := range []string{"status cannot read skipped types: ", "LANE ", "node 1", "TABLE "} {
		if !strings.Contains(out, want) {
			t.Errorf("status does not say %q:\n%s", want, out)
		}
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(wantStatus(t, 1, "consumer_skip", "status", "--json")), &object); err != nil {
		t.Fatal(err)
	}
	if _, there := object["skipped_types"]; there || object["lanes"] == nil || object["positions"] == nil {
		t.Errorf("JSON has what could not be read, or lacks what could: %v", object)
	}
}

func TestStatusDrift_StatusRefusesASchemaOfWhichItReadsNothing(t *testing.T) {
	db := installed(t)
	pgtest.Exec(t, db.Pool, "update holdfast.installation set version = 1")
	if out := wantStatus(t, 1, "run holdfast migrate", "status"); strings.Contains(out, "LANE") {
		t.Errorf("status reads a schema of another version:\n%s", out)
	}
}
