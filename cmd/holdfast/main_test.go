package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// call runs the command line and returns its exit status and what it printed.
func call(t *testing.T, args ...string) (status int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	status = run(args, &o, &e)
	return status, o.String(), e.String()
}

func wantStatus(t *testing.T, want int, says string, args ...string) string {
	t.Helper()
	status, out, errOut := call(t, args...)
	if status != want || !strings.Contains(out+errOut, says) {
		t.Errorf("holdfast %s: status %d, want %d and %q\n%s%s", strings.Join(args, " "), status, want, says, out, errOut)
	}
	return out
}

func TestAnOperatorsDay(t *testing.T) {
	db := pgtest.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	t.Setenv("HOLDFAST_SCHEMA", "events")
	wantStatus(t, 1, "run holdfast migrate", "check")
	wantStatus(t, 1, "run holdfast migrate", "status")
	wantStatus(t, 0, "schema events is at version 1", "migrate", "--lanes", "4")
	wantStatus(t, 0, "schema events is at version 1", "migrate")
	wantStatus(t, 1, "fixed for life", "migrate", "--lanes", "5")
	wantStatus(t, 0, "schema events is complete", "check")
	wantStatus(t, 0, "nothing needs a person", "status")
	pgtest.Exec(t, db.Pool, "select events.write('orders', 'k', 'order.placed', '{}')")
	wantStatus(t, 1, "1 lanes have events and no owner: start a relay", "status")
	pgtest.Exec(t, db.Pool, `insert into events.letter (origin, consumer, reason, event_id, source, type, topic, key, time, payload, hash, errors)
		values ('inbox', 'billing', 'no such customer', 'e1', 's', 'order.placed', 'orders', 'k', now(), 'the secret', '', '{first,second}'),
		       ('inbox', 'billing', 'no such customer', 'e2', 's', 'order.placed', 'orders', 'k', now(), 'the secret', '', '{}')`)
	wantStatus(t, 1, "consumer billing has 2 open letters: holdfast dlq list --consumer billing", "status")
	if out := wantStatus(t, 0, "no such customer", "dlq", "list", "--consumer", "billing"); strings.Contains(out, "secret") {
		t.Error("a list shows payloads")
	}
	if out := wantStatus(t, 0, `"event_id":"e1"`, "dlq", "list", "--json"); strings.Contains(out, "secret") {
		t.Error("a JSON list shows payloads")
	}
	if out := wantStatus(t, 0, "error 2: second", "dlq", "show", "1"); strings.Contains(out, "secret") {
		t.Error("show shows the payload unasked")
	}
	wantStatus(t, 0, "the secret", "dlq", "show", "1", "--payload")
	wantStatus(t, 0, "2 letters would be replayed", "dlq", "replay", "--dry-run", "--reason", "x")
	mended := filepath.Join(t.TempDir(), "mended.json")
	if err := os.WriteFile(mended, []byte(`{"mended": true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, 0, "letter 1 has a new payload", "dlq", "edit", "1", mended, "--reason", "typo", "--by", "ann")
	wantStatus(t, 0, "1 letters are on their way", "dlq", "replay", "--id", "1", "--reason", "fixed", "--by", "ann")
	wantStatus(t, 0, "letter 2 is discarded", "dlq", "discard", "2", "--reason", "a test", "--by", "ann")
	wantStatus(t, 1, "not open", "dlq", "discard", "2", "--reason", "again")
	wantStatus(t, 1, "no such letter", "dlq", "show", "77")
	wantStatus(t, 1, "add --yes", "adopt")
	wantStatus(t, 0, "nothing to adopt", "adopt", "--yes")
}

func TestThePrintedMigrationMakesAWholeSchema(t *testing.T) {
	db := pgtest.New(t)
	script := wantStatus(t, 0, "create table", "migrate", "--print", "--schema", "printed")
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := conn.Conn().PgConn().Exec(t.Context(), script).Close(); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, 0, "complete", "check", "--schema", "printed", "--database-url", db.DSN)
}

func TestAWrongCommandLineSaysWhatToDo(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	wantStatus(t, 2, "unknown flag --nonsense", "status", "--nonsense")
	wantStatus(t, 1, "set DATABASE_URL, or pass --database-url", "status")
	wantStatus(t, 2, "missing flags: --brokers", "relay")
	wantStatus(t, 2, "missing flags: --reason", "dlq", "discard", "1")
	wantStatus(t, 0, "schema version 1", "version")
	wantStatus(t, 0, "Usage: holdfast", "--help")
	for _, url := range []string{"postgres://u:hunter2@[::bad", "postgres://u:hunter2@127.0.0.1:1/x"} {
		status, out, errOut := call(t, "status", "--database-url", url)
		if status != 1 || strings.Contains(out+errOut, "hunter2") {
			t.Errorf("status %d, or the password is shown: %s%s", status, out, errOut)
		}
	}
	wantStatus(t, 1, "add --tls", "relay", "--brokers", "b:9092", "--tls-ca", "main.go")
	wantStatus(t, 1, "KAFKA_USER", "relay", "--brokers", "b:9092", "--sasl-mechanism", "plain")
}

func TestTheSidecarRunsUntilItIsToldToStop(t *testing.T) {
	db := pgtest.New(t)
	wantStatus(t, 0, "version 1", "migrate", "--database-url", db.DSN)
	binary := filepath.Join(t.TempDir(), "holdfast")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	cmd := exec.Command(binary, "relay", "--database-url", db.DSN, "--brokers", "127.0.0.1:1", "--name", "the sidecar")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	waitFor(t, func() bool {
		return pgtest.Count(t, db.Pool, "select count(*) from holdfast.lane where owner = 'the sidecar'") == 8
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the sidecar ended with %v: %s", err, log.String())
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.lane where owner is not null"); n != 0 || !strings.Contains(log.String(), "stopped in order") {
		t.Errorf("%d lanes were not handed back: %s", n, log.String())
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 20 s")
		}
	}
}
