package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestDLQShow_ShowSaysWhatBecameOfADeadLetter(t *testing.T) {
	db := installed(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, reason, state, event_id, source, type, topic, key, time, hash) values
		('inbox', 'billing', 'r', 'open', 'e1', 's', 't', 'orders', 'k', now(), ''), ('inbox', 'billing', 'r', 'replaying', 'e2', 's', 't', 'orders', 'k', now(), ''),
		('inbox', 'billing', 'r', 'replayed', 'e3', 's', 't', 'orders', 'k', now(), ''), ('relay', '', 'r', 'replayed', 'e4', 's', 't', 'orders', 'k', now(), ''),
		('relay', '', 'r', 'discarded', 'e5', 's', 't', 'orders', 'k', now(), '')`)
	for id, want := range map[string]string{"1": "last given up", "2": "last given up", "3": "last handled", "4": "last published", "5": "last discarded"} {
		out := wantStatus(t, 0, want, "dlq", "show", id)
		if want != "last given up" && strings.Contains(out, "last given up") {
			t.Errorf("dead letter %s is said to be given up:\n%s", id, out)
		}
	}
}
