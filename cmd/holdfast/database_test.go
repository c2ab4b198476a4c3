package main

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/certtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestDatabase_APasswordOnTheCommandLineIsRefusedAndNotRepeated(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for _, dsn := range []string{"postgres://u:hunter2@127.0.0.1:1/x", "postgresql://u:hunter2@127.0.0.1:1/x", "postgres://u@127.0.0.1:1/x?password=hunter2",
		"postgres://u@127.0.0.1:1/x?sslpassword=hunter2", "host=127.0.0.1 port=1 password=hunter2", "password = hunter2", "postgres://u:hunter2@[::bad"} {
		for _, args := range [][]string{{"--database-url", dsn}, {"--database-url=" + dsn}} {
			for _, command := range []string{"status", "migrate", "relay --brokers b:9092"} {
				status, out, errOut := call(t, append(strings.Fields(command), args...)...)
				if status != 2 || strings.Contains(out+errOut, "hunter2") || !strings.Contains(errOut, "--database-url has a password, which every user of this machine can read: it must be without one: set DATABASE_URL") {
					t.Errorf("%s %s: status %d, %s%s", command, args, status, out, errOut)
				}
			}
		}
	}
	for _, dsn := range []string{"postgres://u@127.0.0.1:1/x", "postgres://u:@127.0.0.1:1/x", "host=127.0.0.1 port=1 passfile=/x", "host=127.0.0.1 port=1 dbname=mypassword"} {
		wantStatus(t, 1, "does not answer", "status", "--database-url", dsn)
	}
	// The environment may have one. An error does not show it.
	for _, dsn := range []string{"postgres://u:hunter2@[::bad", "postgres://u:hunter2@127.0.0.1:1/x"} {
		t.Setenv("DATABASE_URL", dsn)
		if status, out, errOut := call(t, "status"); status != 1 || strings.Contains(out+errOut, "hunter2") || strings.Contains(errOut, "command line") {
			t.Errorf("status %d, or the password is shown: %s%s", status, out, errOut)
		}
	}
}

func TestDatabase_TheConnectionStringComesFromWhereItIsSaid(t *testing.T) {
	db := pgtest.New(t)
	migrate(t, db)
	const away = "postgres://u@127.0.0.1:1/x"
	file := certtest.File(t, "url", []byte(db.DSN+"\n"))
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	bare := *u
	bare.User = url.User(u.User.Username())
	empty := certtest.File(t, "empty", nil)
	for _, row := range []struct {
		name   string
		env    []string
		args   []string
		status int
		says   string
	}{
		{"the variable", []string{"DATABASE_URL=" + db.DSN}, nil, 0, "complete"},
		{"the flag, before the variable", []string{"DATABASE_URL=" + away, "PGPASSWORD=" + password}, []string{"--database-url", bare.String()}, 0, "complete"},
		{"a file", nil, []string{"--database-url-file", file}, 0, "complete"},
		{"a file, before the variable", []string{"DATABASE_URL=" + away}, []string{"--database-url-file", file}, 0, "complete"},
		{"a file of the environment", []string{"DATABASE_URL_FILE=" + file}, nil, 0, "complete"},
		{"the flag, before a file of the environment", []string{"DATABASE_URL_FILE=" + file}, []string{"--database-url", away}, 1, "does not answer"},
		{"Postgres' own variables", []string{"PGHOST=" + u.Hostname(), "PGPORT=" + u.Port(), "PGUSER=" + u.User.Username(), "PGPASSWORD=" + password, "PGDATABASE=" + strings.TrimPrefix(u.Path, "/")}, nil, 0, "complete"},
		{"nowhere", nil, nil, 1, "no database: set DATABASE_URL, PGHOST or PGSERVICE"},
		{"two flags", nil, []string{"--database-url-file", file, "--database-url", away}, 2, "it must be one of them"},
		{"two variables", []string{"DATABASE_URL_FILE=" + file, "DATABASE_URL=" + away}, nil, 2, "it must be one of them"},
		{"two flags, with a password", nil, []string{"--database-url-file", file, "--database-url", "postgres://u:hunter2@127.0.0.1:1/x"}, 2, "--database-url has a password"},
		{"a file that is missing", nil, []string{"--database-url-file", "missing"}, 2, "--database-url-file is missing: it must be a file that can be read"},
		{"an empty file", nil, []string{"--database-url-file", empty}, 2, "which is empty: it must have the connection string"},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, name := range []string{"DATABASE_URL", "DATABASE_URL_FILE", "PGHOST", "PGSERVICE", "PGPASSWORD", "PGPORT", "PGUSER", "PGDATABASE"} {
				t.Setenv(name, "")
				os.Unsetenv(name)
			}
			for _, v := range row.env {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv(name, value)
			}
			wantStatus(t, row.status, row.says, append([]string{"check"}, row.args...)...)
		})
	}
}
