package console

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
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
	for _, page := range []string{"/", "/find?id=e1", "/letters", "/letters/list", "/waiting", "/waiting/list?consumer=billing", "/waiting/list?why=scheduled", "/paused"} {
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, page, nil))
		if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "connect as an operator") || strings.Contains(w.Body.String(), ">?</b>") {
			t.Errorf("%s is answered with %d: %s", page, w.Code, log.String())
		}
	}
}
