package idempotency

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// neighbourRows are 27 requests that are pending without a lease. Each scope, operation and key is a, b or c, so that around b, b, b there are
// some that are like it in all but one of them, below and above. Each has a run of its own, that of b, b, b is 14, two steps, and a request
// that holdfast may run again. All have the fence 14.
const neighbourRows = `
insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, owner, fence, run, lease_until, expires_at)
	select s, o, k, '\x05', 5, 'pending', gen_random_uuid(), 14, row_number() over (order by s, o, k), now() - interval '1 minute', now() + interval '1 hour'
	  from unnest('{a,b,c}'::text[]) s, unnest('{a,b,c}'::text[]) o, unnest('{a,b,c}'::text[]) k;
insert into holdfast.idempotency_step (run, name, result) select run, name, to_json(run || name) from holdfast.idempotency, unnest('{s0,s1}'::text[]) name;
insert into holdfast.idempotency_request (run, scope, operation, key, route, principal, method, host, url, path_values, headers, body, tries, due_at)
	select run, scope, operation, key, 'sell', '', 'POST', 'h', '/', '{}', '{}', '', 3, now() - interval '1 minute' from holdfast.idempotency`

// neighbourState is each row by a name that says which it is.
const neighbourState = `
select 'key ' || scope || operation || key, k::text from holdfast.idempotency k
union all select 'step ' || run || name, s::text from holdfast.idempotency_step s
union all select 'request ' || run, r::text from holdfast.idempotency_request r
union all select 'kept ' || scope || operation || key, e::text from holdfast.idempotency_expired e`

// A statement changes the rows of its own key and run, and none that are like them in all but the scope, the operation, the key or the run.
func TestNeighbours_AStatementTouchesWhatItNamesAndNothingElse(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const (
		all, ours, others = "true", "(scope, operation, key) = ('b', 'b', 'b')", "(scope, operation, key) <> ('b', 'b', 'b')"
		last              = "(scope, operation, key) = ('c', 'c', 'c')"

		expired  = "update holdfast.idempotency set expires_at = now() - interval '1 minute' where %s"
		earlier  = "update holdfast.idempotency set expires_at = now() - interval '2 minutes' where %s"
		leased   = "update holdfast.idempotency set lease_until = now() + interval '1 minute' where %s"
		released = "update holdfast.idempotency set lease_until = '-infinity' where %s"
		answered = "update holdfast.idempotency set state = 'complete', status = 200, headers = '{}', body = '', body_hash = '', lease_until = null where %s"
		oneRun   = "update holdfast.idempotency set run = 14 where %s"
		another  = "update holdfast.idempotency set run = 99 where %s"
		notDue   = "update holdfast.idempotency_request set due_at = now() + interval '1 minute' where %s"
		never    = "update holdfast.idempotency_request set due_at = null where %s"
		oldest   = "update holdfast.idempotency_request set due_at = now() - interval '2 minutes' where %s"
		stepless = "delete from holdfast.idempotency_step where run in (select run from holdfast.idempotency where %s)"
		kept     = "insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, created_at, expires_at, keep_until) select scope, operation, key, '', now(), now(), expires_at from holdfast.idempotency where %s"

		minute = int64(60_000_000)
		gone   = "key bbb gone, request 14 gone, step 14s0 gone, step 14s1 gone"
	)
	sql := newStatements("")
	of := func(format string, where ...string) (statements []string) {
		for _, w := range where {
			statements = append(statements, fmt.Sprintf(format, w))
		}
		return statements
	}
	claim := func(key string, keep int64, request ...any) []any {
		if request == nil {
			request = make([]any, 9)
		}
		return append(append([]any{"b", "b", key, int64(4711), []byte{5}, int16(5), uuid.NewString(), minute, minute, keep}, request...), minute)
	}
	claimAs := func(fingerprint byte, version int16) []any {
		args := claim("b", 0)
		args[4], args[5] = []byte{fingerprint}, version
		return args
	}
	ask := []any{"sell", "", "POST", "h", "/", "", "{}", "{}", []byte{}}
	finish := func(fence int64) []any {
		return []any{"b", "b", "b", fence, "complete", int16(200), "{}", []byte{}, []byte{}, "", minute}
	}
	step := func(fence int64) []any { return []any{"b", "b", "b", fence, "s2", minute, minute, "1"} }
	release := func(fence int64, forget bool) []any { return []any{"b", "b", "b", fence, forget, minute} }
	resume := []any{int64(14), uuid.NewString(), minute, minute, minute}
	sells := func(n int32) []any { return []any{[]string{"sell"}, n} }
	for name, c := range map[string]struct {
		before    []string
		locked    bool // another transaction has the key's lock
		statement string
		args      []any
		column    int // of each row that comes back
		want      string
	}{
		"lookup":                            {statement: sql.lookup, args: []any{"b", "b", "b"}, column: 9, want: "[14]"},
		"lookup of none":                    {statement: sql.lookup, args: []any{"b", "b", "d"}, want: "[]"},
		"count":                             {statement: sql.countKeys, args: []any{"b", int32(100)}, want: "[9]"},
		"count up to":                       {statement: sql.countKeys, args: []any{"b", int32(5)}, want: "[5]"},
		"expire":                            {before: of(expired, all), statement: sql.expire, args: []any{"b", "b", "b", int64(0)}, want: "[] " + gone},
		"expire and keep":                   {before: of(expired, all), statement: sql.expire, args: []any{"b", "b", "b", minute}, want: "[] kept bbb new, key bbb gone, request 14 gone, step 14s0 gone, step 14s1 gone"},
		"expire what lasts":                 {before: of(expired, others), statement: sql.expire, args: []any{"b", "b", "b", minute}, want: "[]"},
		"clean":                             {before: of(expired, ours), statement: sql.clean, args: []any{int32(100), int64(0)}, want: "[1] " + gone},
		"clean the oldest and keep it":      {before: slices.Concat(of(earlier, ours), of(expired, others)), statement: sql.clean, args: []any{int32(1), minute}, want: "[1] kept bbb new, key bbb gone, request 14 gone, step 14s0 gone, step 14s1 gone"},
		"clean nothing":                     {statement: sql.clean, args: []any{int32(100), minute}, want: "[0]"},
		"clean what was kept":               {before: slices.Concat(of(expired, ours), of(kept, all)), statement: sql.cleanExpired, args: []any{int32(100)}, want: "[1] kept bbb gone"},
		"clean the oldest of what was kept": {before: slices.Concat(of(earlier, ours), of(expired, others), of(kept, ours, others)), statement: sql.cleanExpired, args: []any{int32(1)}, want: "[1] kept bbb gone"},

		"claim a new key":                        {statement: sql.claim, args: claim("d", minute), column: 1, want: "[1] key bbd new"},
		"claim a new key with a request":         {before: []string{"select setval('holdfast.idempotency_fence', 41)"}, statement: sql.claim, args: claim("d", minute, ask...), column: 1, want: "[1] key bbd new, request 42 new"},
		"claim a new key that is locked":         {locked: true, statement: sql.claim, args: claim("d", minute), column: 1, want: "[]"},
		"claim a key without a lease":            {statement: sql.claim, args: claim("b", minute), column: 1, want: "[2] key bbb changed"},
		"claim it with a request":                {statement: sql.claim, args: claim("b", minute, ask...), column: 1, want: "[2] key bbb changed, request 14 changed"},
		"claim it, it was given up":              {before: of(never, all), statement: sql.claim, args: claim("b", minute, ask...), column: 1, want: "[2] key bbb changed"},
		"claim it, it is locked":                 {locked: true, statement: sql.claim, args: claim("b", minute), column: 1, want: "[]"},
		"claim it, it is leased":                 {before: of(leased, ours), statement: sql.claim, args: claim("b", minute), column: 1, want: "[]"},
		"claim it, it is answered":               {before: of(answered, ours), statement: sql.claim, args: claim("b", minute), column: 1, want: "[]"},
		"claim it with a smaller fingerprint":    {statement: sql.claim, args: claimAs(4, 5), column: 1, want: "[]"},
		"claim it with a larger fingerprint":     {statement: sql.claim, args: claimAs(6, 5), column: 1, want: "[]"},
		"claim it with an older version":         {statement: sql.claim, args: claimAs(5, 4), column: 1, want: "[]"},
		"claim it with a newer version":          {statement: sql.claim, args: claimAs(5, 6), column: 1, want: "[]"},
		"claim a key that has expired":           {before: slices.Concat(of(expired, all), of(leased, all)), statement: sql.claim, args: claim("b", minute), column: 1, want: "[1] kept bbb new, key bbb changed, request 14 gone, step 14s0 gone, step 14s1 gone"},
		"claim a key that has expired, unkept":   {before: of(expired, ours), statement: sql.claim, args: claim("b", 0), column: 1, want: "[1] key bbb changed, request 14 gone, step 14s0 gone, step 14s1 gone"},
		"claim an expired answer":                {before: slices.Concat(of(expired, all), of(answered, all)), statement: sql.claim, args: claim("b", minute), column: 1, want: "[1] kept bbb new, key bbb changed, request 14 gone, step 14s0 gone, step 14s1 gone"},
		"claim what expired, with a fingerprint": {before: of(expired, ours), statement: sql.claim, args: claimAs(6, 6), column: 1, want: "[1] key bbb changed, request 14 gone, step 14s0 gone, step 14s1 gone"},

		"renew":                     {statement: sql.renew, args: []any{"b", "b", "b", int64(14), minute}, want: "[] key bbb changed"},
		"renew under an old fence":  {statement: sql.renew, args: []any{"b", "b", "b", int64(13), minute}, want: "[]"},
		"renew what is released":    {before: of(released, ours), statement: sql.renew, args: []any{"b", "b", "b", int64(14), minute}, want: "[]"},
		"renew what is answered":    {before: of(answered, ours), statement: sql.renew, args: []any{"b", "b", "b", int64(14), minute}, want: "[]"},
		"finish":                    {statement: sql.finish, args: finish(14), column: -1, want: "[] key bbb changed, request 14 gone, step 14s0 gone, step 14s1 gone"},
		"finish under an old fence": {statement: sql.finish, args: finish(13), column: -1, want: "[]"},
		"finish what is answered":   {before: of(answered, ours), statement: sql.finish, args: finish(14), column: -1, want: "[]"},

		"lock for a release":                     {statement: sql.releaseLock, args: []any{"b", "b", "b", int64(14)}, want: "[1]"},
		"lock for a release under an old fence":  {statement: sql.releaseLock, args: []any{"b", "b", "b", int64(13)}, want: "[]"},
		"lock for a release of what is answered": {before: of(answered, ours), statement: sql.releaseLock, args: []any{"b", "b", "b", int64(14)}, want: "[]"},
		"release":                                {statement: sql.release, args: release(14, true), want: "[] key bbb changed, request 14 changed"},
		"release without steps":                  {before: of(stepless, ours), statement: sql.release, args: release(14, true), want: "[] key bbb gone, request 14 gone"},
		"release, nobody has steps":              {before: of(stepless, all), statement: sql.release, args: release(14, true), want: "[] key bbb gone, request 14 gone"},
		"release without steps, and remember":    {before: of(stepless, ours), statement: sql.release, args: release(14, false), want: "[] key bbb changed, request 14 changed"},
		"release what was given up":              {before: of(never, ours), statement: sql.release, args: release(14, false), want: "[] key bbb changed"},
		"release under an old fence":             {before: of(stepless, ours), statement: sql.release, args: release(13, true), want: "[]"},
		"release with steps under an old fence":  {statement: sql.release, args: release(13, true), want: "[]"},
		"release what is answered":               {before: slices.Concat(of(answered, ours), of(stepless, ours)), statement: sql.release, args: release(14, true), want: "[]"},
		"release an answer with steps":           {before: of(answered, ours), statement: sql.release, args: release(14, true), want: "[]"},

		"lock for a step":                     {statement: sql.stepLock, args: []any{"b", "b", "b", int64(14)}, want: "[14]"},
		"lock for a step under an old fence":  {statement: sql.stepLock, args: []any{"b", "b", "b", int64(13)}, want: "[]"},
		"lock for a step of what is answered": {before: of(answered, ours), statement: sql.stepLock, args: []any{"b", "b", "b", int64(14)}, want: "[]"},
		"look for a step":                     {statement: sql.stepLook, args: []any{"b", "b", "b", "s0"}, want: `["14s0"]`},
		"look for a step that is not done":    {statement: sql.stepLook, args: []any{"b", "b", "b", "s"}, want: "[]"},
		"a step":                              {statement: sql.stepDone, args: step(14), want: "[] key bbb changed, step 14s2 new"},
		"a step under an old fence":           {statement: sql.stepDone, args: step(13), want: "23502"},
		"a step of what is answered":          {before: of(answered, ours), statement: sql.stepDone, args: step(14), want: "23502"},

		"due":                          {before: of(notDue, others), statement: sql.due, args: sells(100), want: "[14]"},
		"due, the oldest":              {before: of(oldest, ours), statement: sql.due, args: sells(1), want: "[14]"},
		"due, of another route":        {before: of(notDue, others), statement: sql.due, args: []any{[]string{"rent", "tell"}, int32(100)}, want: "[]"},
		"due, all have one run":        {before: of(oneRun, all), statement: sql.due, args: sells(100), want: "[14]"},
		"due, the key has another run": {before: slices.Concat(of(notDue, others), of(another, ours)), statement: sql.due, args: sells(100), want: "[]"},
		"due, leased":                  {before: slices.Concat(of(notDue, others), of(leased, ours)), statement: sql.due, args: sells(100), want: "[]"},
		"due, expired":                 {before: slices.Concat(of(notDue, others), of(expired, ours)), statement: sql.due, args: sells(100), want: "[]"},
		"due, answered":                {before: slices.Concat(of(notDue, others), of(answered, ours)), statement: sql.due, args: sells(100), want: "[]"},

		"resume":                     {statement: sql.resume, args: resume, column: 1, want: "[2] key bbb changed, request 14 changed"},
		"resume, all have one run":   {before: of(oneRun, all), statement: sql.resume, args: resume, column: 1, want: "[2] key bbb changed, request 14 changed"},
		"resume, it has another run": {before: of(another, ours), statement: sql.resume, args: resume, column: 1, want: "[]"},
		"resume, not due":            {before: of(notDue, ours), statement: sql.resume, args: resume, column: 1, want: "[]"},
		"resume, leased":             {before: of(leased, ours), statement: sql.resume, args: resume, column: 1, want: "[]"},
		"resume, answered":           {before: of(answered, ours), statement: sql.resume, args: resume, column: 1, want: "[]"},
		"postpone":                   {statement: sql.postpone, args: []any{int64(14), minute}, want: "[] request 14 changed"},
		"postpone what is not due":   {before: of(notDue, ours), statement: sql.postpone, args: []any{int64(14), minute}, want: "[]"},

		"abandon":                          {before: of(notDue, others), statement: sql.abandon, args: sells(3), column: 6, want: "[2] request 14 changed"},
		"abandon after fewer tries":        {before: of(notDue, others), statement: sql.abandon, args: sells(4), column: 6, want: "[]"},
		"abandon of another route":         {before: of(notDue, others), statement: sql.abandon, args: []any{[]string{"rent", "tell"}, int32(3)}, column: 6, want: "[]"},
		"abandon, the key has another run": {before: slices.Concat(of(notDue, others), of(another, ours)), statement: sql.abandon, args: sells(3), column: 6, want: "[]"},
		"abandon, leased":                  {before: slices.Concat(of(notDue, others), of(leased, ours)), statement: sql.abandon, args: sells(3), column: 6, want: "[]"},
		"abandon, answered":                {before: slices.Concat(of(notDue, others), of(answered, ours)), statement: sql.abandon, args: sells(3), column: 6, want: "[]"},
		"abandon, the last":                {before: of(notDue, "not "+last), statement: sql.abandon, args: sells(3), column: 6, want: "[2] request 27 changed"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.locked {
				pgtest.Exec(t, pgtest.Begin(t, db), "select pg_advisory_xact_lock(4711)")
			}
			tx := pgtest.Begin(t, db) // It is rolled back.
			for _, before := range append([]string{neighbourRows}, c.before...) {
				pgtest.Exec(t, tx, before)
			}
			before := stateOf(t, tx)
			got := answerOf(t, tx, c.statement, c.args, c.column)
			if strings.HasPrefix(got, "[") {
				got = strings.TrimSpace(got + " " + strings.Join(changesOf(before, stateOf(t, tx)), ", "))
			}
			if got != c.want {
				t.Errorf("it is %s\nwant  %s", got, c.want)
			}
		})
	}
}

// answerOf is one column of what a statement returns, or the code of its error.
func answerOf(t *testing.T, tx pgx.Tx, statement string, args []any, column int) string {
	t.Helper()
	rows, err := tx.Query(t.Context(), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	values := []any{}
	for rows.Next() {
		row, err := rows.Values()
		if err != nil {
			t.Fatal(err)
		}
		if column >= 0 {
			values = append(values, row[column])
		}
	}
	var refused *pgconn.PgError
	if errors.As(rows.Err(), &refused) {
		return refused.Code
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return fmt.Sprint(values)
}

func stateOf(t *testing.T, tx pgx.Tx) map[string]string {
	t.Helper()
	rows, err := tx.Query(t.Context(), neighbourState)
	if err != nil {
		t.Fatal(err)
	}
	state := map[string]string{}
	var name, row string
	if _, err := pgx.ForEachRow(rows, []any{&name, &row}, func() error { state[name] = row; return nil }); err != nil {
		t.Fatal(err)
	}
	return state
}

func changesOf(before, after map[string]string) (changes []string) {
	for name, row := range before {
		switch now, there := after[name]; {
		case !there:
			changes = append(changes, name+" gone")
		case now != row:
			changes = append(changes, name+" changed")
		}
	}
	for name := range after {
		if _, there := before[name]; !there {
			changes = append(changes, name+" new")
		}
	}
	slices.Sort(changes)
	return changes
}
