package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

func TestConsole_OnlyWhoLogsInReachesTheConsole(t *testing.T) {
	// No database answers there: who is let in gets the console's own error, and nobody else gets as far.
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	mux := http.NewServeMux()
	if err := mount(t.Context(), mux, pool, login(account{Email: "ann@example.com", OnCall: true}, "open sesame")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		user, password string
		want           int
	}{
		"nobody":           {"", "", http.StatusUnauthorized},
		"a wrong password": {"ann@example.com", "sesame", http.StatusForbidden},
		"another user":     {"bob@example.com", "open sesame", http.StatusForbidden},
		"ann":              {"ann@example.com", "open sesame", http.StatusOK},
	} {
		r := httptest.NewRequest(http.MethodGet, "/ops/holdfast/find", nil)
		if c.user != "" {
			r.SetBasicAuth(c.user, c.password)
		}
		w := httptest.NewRecorder()
		asking(mux).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d", name, w.Code, c.want)
		}
	}
}
