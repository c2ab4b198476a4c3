package console

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
)

// What docs/guides/console.md says that the pool's user needs is enough for every page that shows something.
func TestPlan_TheRolesOfTheConsoleAreEnough(t *testing.T) {
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
	pgtest.Exec(t, db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, processed_at) values ('billing', 'shop', 'e1', 'orders', '', 'dead', now())`)
	pgtest.Exec(t, db, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) values ('billing', 'shop', 'e1', '', 'charge', '', '{}')`)
	letter := rows.Dead(t, db, "billing", "k", "e2")
	for _, page := range []string{"/", "/find?id=e1", fmt.Sprint("/letters/", letter), "/letters", "/letters/list", "/waiting", "/waiting/list?consumer=billing", "/waiting/list?why=scheduled", "/paused"} {
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, page, nil))
		if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "connect as an operator") || strings.Contains(w.Body.String(), ">?</b>") {
			t.Errorf("%s is answered with %d: %s", page, w.Code, log.String())
		}
	}
}
