package console

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The overview is loaded again and again on the worst day, so it goes by indexes and stops counting.
func TestTheOverviewReadsByIndexes(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		`insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
			select n % 8, 'orders', (n % 2000)::text, n, 'topic', 'infinity', n::text, 's', 't', now() from generate_series(1, 20000) n`,
		`insert into holdfast.scheduled (lane, due_at, id, type, topic, key, time) select n % 8, now() + interval '1 hour', n::text, 't', 'orders', '', now() from generate_series(1, 20000) n`,
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	for _, table := range []string{"parked", "scheduled"} {
		pgtest.Exec(t, db.Pool, "analyze holdfast."+table)
	}
	role := roletest.Make(t, db) + "_operator"
	plantest.Allowed(t, db.Pool, role, readLanes, "")
	for _, plan := range plantest.Of(t, db.Pool, readLanes, "") {
		plan.NeverReadsAllOf("parked", "scheduled")
	}
	plantest.EveryStatement(t, []string{readLanes}, map[string]string{
		"console.written": "a view of the server's counts", "console.positions": "a row a consumer and partition"})

	// The oldest is found where nobody counts any more.
	pgtest.Exec(t, db.Pool, "insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) select 7, 'orders', 'k', n, 'topic', 'infinity', n::text, 's', 't', now() from generate_series(30001, 41000) n")
	pgtest.Exec(t, db.Pool, "update holdfast.parked set first_at = now() - interval '9 hours' where place = 40999")
	if n := pgtest.Count(t, db.Pool, "select count(*) from ("+readLanes+") c (lane, owner, owned, saved, parked, scheduled, oldest) where c.oldest < now() - interval '8 hours' and c.parked = 10001"); n != 1 {
		t.Errorf("%d lanes have the oldest, want 1", n)
	}
}

// What docs/guides/console.md says that the pool's user needs is enough for every page that shows something.
func TestTheRolesOfTheConsoleAreEnough(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	prefix := roletest.Make(t, db)
	user, _ := roletest.Login(t, db, "", prefix+"_operator", prefix+"_reader")
	var log bytes.Buffer
	c, err := New(user, Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), UserFunc: func(*http.Request) (User, error) {
		return User{Name: "ann", MayChange: true, SeesPayload: true}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"/", "/flow", "/find?id=e1", "/letters", "/letters/list", "/waiting", "/waiting/list?consumer=billing", "/waiting/list?why=scheduled", "/paused"} {
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, page, nil))
		if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "connect as an operator") {
			t.Errorf("%s is answered with %d: %s", page, w.Code, log.String())
		}
	}
}
