package find_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/find"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Each state of a key, of a table that package idempotency writes.
func TestKeys_AKeyIsFoundInEachState(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, `insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body_hash, result_ref, owner, fence, run, attempt, lease_until, expires_at) values
		('principal:ann', 'pay', 'k', '', 1, 'complete', 201, '{}', '', 'payment 7', gen_random_uuid(), null, null, 1, null, now() + interval '1 day'),
		('principal:bob', 'pay', 'k', '', 1, 'omitted', 200, '{}', '', null, gen_random_uuid(), null, null, 1, null, now() + interval '1 day'),
		('principal:cem', 'pay', 'k', '', 1, 'pending', null, null, null, null, gen_random_uuid(), 1, 1, 1, now() + interval '1 hour', now() + interval '1 day'),
		('principal:dee', 'pay', 'k', '', 1, 'pending', null, null, null, null, gen_random_uuid(), 2, 2, 3, '-infinity', now() + interval '1 day'),
		('principal:eve', 'pay', 'k', '', 1, 'pending', null, null, null, null, gen_random_uuid(), 3, 3, 2, '-infinity', 'infinity'),
		('principal:ann', 'pay', 'other', '', 1, 'complete', 201, '{}', '', null, gen_random_uuid(), null, null, 1, null, now())`)
	pgtest.Exec(t, db, "insert into holdfast.idempotency_step (run, name, result) values (2, 'charge', '1'), (2, 'mail', '2'), (3, 'charge', '1')")
	pgtest.Exec(t, db, `insert into holdfast.idempotency_request (run, scope, operation, key, route, principal, method, host, url, path_values, headers, body, due_at)
		values (3, 'principal:eve', 'pay', 'k', 'pay', 'eve', 'POST', 'h', '/', '{}', '{}', '', now() + interval '1 hour')`)
	pgtest.Exec(t, db, `insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, status, created_at, expires_at, keep_until) values
		('principal:fay', 'pay', 'k', '', 201, now() - interval '2 days', now() - interval '1 day', now()), ('principal:gus', 'pay', 'k', '', null, now() - interval '3 days', now(), now())`)
	operator, _ := roletest.Login(t, db, "", roletest.Make(t, db)+"_operator")
	uses, unsearched, err := find.Keys(t.Context(), operator, find.KeyQuery{Key: "k", Within: time.Minute})
	if err != nil || unsearched != "" {
		t.Fatalf("%v, not searched: %s", err, unsearched)
	}
	want := map[string]struct{ state, says string }{
		"principal:ann": {"answered", "was answered with 201; repeats get the same until "},
		"principal:bob": {"omitted", "was answered with 200, and the body was too long to keep"},
		"principal:cem": {"running", "runs, its first start, with 0 steps done"},
		"principal:dee": {"interrupted", "was interrupted after start 3, with 2 steps done: it runs again when its client sends it again"},
		"principal:eve": {"interrupted", "was interrupted after start 2, with 1 step done: it runs again at "},
		"principal:fay": {"expired", "was answered with 201, and its key has expired"},
		"principal:gus": {"expired", "was never answered, and its key has expired"},
	}
	for _, u := range uses {
		if w, known := want[u.Scope]; !known || u.State != w.state || !strings.Contains(u.Says, w.says) || u.Operation != "pay" || u.CreatedAt.IsZero() {
			t.Errorf("%+v: want state %q, and that it says %q", u, w.state, w.says)
		}
		delete(want, u.Scope)
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
	if uses[0].ResultRef != "payment 7" || !strings.HasSuffix(uses[0].Says, ": payment 7") {
		t.Errorf("what it created is %q: %s", uses[0].ResultRef, uses[0].Says)
	}
	for _, q := range []find.KeyQuery{{Key: "k", Scope: "principal:bob"}, {Key: "k", Scope: "principal:bob", Operation: "pay"}, {Key: "other", Operation: "pay"}} {
		q.Within = time.Minute
		if uses, _, err := find.Keys(t.Context(), operator, q); err != nil || len(uses) != 1 {
			t.Errorf("%+v finds %d uses, %v", q, len(uses), err)
		}
	}
	// A role without the right is told so, and everything else can still be searched.
	stranger, _ := roletest.Login(t, db, "", roletest.Make(t, db)+"_reader")
	if _, unsearched, err := find.Keys(t.Context(), stranger, find.KeyQuery{Key: "k"}); err != nil || !strings.Contains(unsearched, "connect as an operator") {
		t.Errorf("a role without rights is told %q, %v", unsearched, err)
	}
}

func TestKeys_AQueryForAKeyIsChecked(t *testing.T) {
	t.Parallel()
	_, _, err := find.Keys(t.Context(), nil, find.KeyQuery{Key: "", Scope: "a\x00", Within: 1, Schema: "a b"})
	for _, want := range []string{"pool is nil", "key has 0 bytes", "has a NUL", "within is 1ns", "schema"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
