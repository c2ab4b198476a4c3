package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// With no setting at all it starts what it needs, as on a bare machine.
func TestHello_ItGreetsWithoutAnySetting(t *testing.T) {
	out, err := exampletest.Command([]string{"DATABASE_URL=", "KAFKA_BROKERS="}).CombinedOutput()
	if bytes.Contains(out, []byte(pgserver.ErrNoServer.Error())) {
		skip.Without(t, "PostgreSQL", "install it", pgserver.ErrNoServer)
	}
	if err != nil || strings.Count(string(out), "hello, world\n") != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

// Twice, because the second run finds the schema, the topic, the group and its offsets.
func TestHello_ItGreetsEachTimeOnServersOfTheUser(t *testing.T) {
	db, cluster := pgtest.New(t), kafkatest.InProcess(t)
	for range 2 {
		out, err := exampletest.Command([]string{"DATABASE_URL=" + db.DSN, "KAFKA_BROKERS=" + strings.Join(cluster.Brokers, ",")}).CombinedOutput()
		if err != nil || strings.Count(string(out), "hello, world\n") != 1 {
			t.Errorf("%v: %s", err, out)
		}
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from hello_holdfast.inbox where result = 'handled'"); n != 2 {
		t.Errorf("%d events were handled, want 2", n)
	}
}

// It is the first program that people see: it must fit on a page.
func TestHello_ItHasAtMostEightyLines(t *testing.T) {
	code, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(code, []byte("\n")); n > 80 {
		t.Errorf("main.go has %d lines, at most 80 are wanted", n)
	}
}
