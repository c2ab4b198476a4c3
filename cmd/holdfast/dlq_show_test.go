package main

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operate"
	"github.com/holdfast-go/holdfast/internal/steps"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
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

// stepped makes a dead letter and a waiting event of billing, whose handlers have done a step, and one more for another payload.
func stepped(t *testing.T, db *pgtest.DB) {
	t.Helper()
	rows.Dead(t, db, "billing", "k", "e1")
	pgtest.Exec(t, db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, next_at) values ('billing', 'orders', 'w', 1, 'shop', 'e2', 'order.placed', now(), '{}', sha256('{}'), now())`)
	pgtest.Exec(t, db, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at)
		select 'billing', 'shop', id, sha256(payload::bytea), name, '', result::json, done_at
		  from unnest(array['e1', 'e2']) id, (values ('old', 'charge', '{"paid":1}', timestamptz '2026-01-01'), ('{}', E'charge\u202e', E'"\u202e"', '2026-01-02')) s (payload, name, result, done_at)`)
}

func TestDLQShow_StepsAreShownWithTheirKeys(t *testing.T) {
	db := installed(t)
	stepped(t, db)
	for id, command := range map[string][]string{"e1": {"dlq", "show", "1"}, "e2": {"waiting", "show", "e2"}} {
		old, now := sha256.Sum256([]byte("old")), sha256.Sum256([]byte("{}"))
		first, second := steps.Key("billing", "shop", id, old[:], "charge"), steps.Key("billing", "shop", id, now[:], "charge\u202e")
		out := wantStatus(t, 0, "step charge: done 2026-01-01T00:00:00Z, key "+first+", of another payload\nstep charge\\u202e: done 2026-01-02T00:00:00Z, key "+second+"\n", command...)
		if strings.Contains(out, "paid") {
			t.Errorf("results are shown unasked:\n%s", out)
		}
		out = wantStatus(t, 0, "key "+first+`, of another payload, result {"paid":1}`, append(command, "--payload")...)
		if !strings.Contains(out, second+`, result "\u202e"`) || strings.Contains(out, "\u202e") {
			t.Errorf("a terminal obeys a result:\n%q", out)
		}
		asJSON := `"steps":[{"name":"charge","key":"` + first + `","done_at":"2026-01-01T00:00:00Z","other_payload":true`
		wantStatus(t, 0, asJSON+`},{"name":"charge`, append(command, "--json")...)
		wantStatus(t, 0, asJSON+`,"result":{"paid":1}},{"name":"charge`, append(command, "--json", "--payload")...)
	}
	pgtest.Exec(t, db, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) select 'billing', 'shop', 'e1', '', 'n' || n, '', '1' from generate_series(1, 100) n`)
	wantStatus(t, 0, "there may be more steps", "dlq", "show", "1")
}

func TestDLQShow_AReplayForgetsStepsIfItIsTold(t *testing.T) {
	db := installed(t)
	stepped(t, db)
	const left = "select string_agg(event_id, ' ' order by event_id, name) from holdfast.inbox_step"
	wantStatus(t, 1, "only handlers of consumers have steps", "dlq", "replay", "--origin", "relay", "--forget-steps", "--reason", "r")
	wantStatus(t, 0, "1 dead letter would be replayed", "dlq", "replay", "1", "--forget-steps", "--dry-run")
	wantStatus(t, 0, "1 dead letter is being re-delivered", "dlq", "replay", "1", "--reason", "kept")
	if got := pgtest.Text(t, db, left); got != "e1 e1 e2 e2" {
		t.Errorf("a plain replay leaves the steps of %s", got)
	}
	pgtest.Exec(t, db, "update holdfast.letter set state = 'open'")
	pgtest.Exec(t, db, "delete from holdfast.stored where event_id = 'e1'")
	wantStatus(t, 0, "1 dead letter is being re-delivered", "dlq", "replay", "1", "--forget-steps", "--reason", "the bank undid it")
	if got := pgtest.Text(t, db, left); got != "e1 e2 e2" {
		t.Errorf("what is left are the steps of %s", got)
	}
	wantStatus(t, 0, "the bank undid it [steps forgotten: 1]", "dlq", "show", "1")
	with, without := operate.DLQReplay{ForgetSteps: true}, operate.DLQReplay{}
	if with.ReplayName() == without.ReplayName() {
		t.Error("a replay that forgets steps goes on with one that does not")
	}
}
