package pgtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/internal/test/servers"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestSkip_ATestWithoutAServerIsSkippedOrFails(t *testing.T) {
	cause := servers.Missing("no binaries")
	t.Setenv("REQUIRE_SERVICES", "")
	v := ending.Of(t, func(t testing.TB) { need(t, cause) })
	if !strings.Contains(v.Skipped, "start Docker: no binaries") || v.Failed != "" {
		t.Errorf("not required: %+v", v)
	}
	t.Setenv("REQUIRE_SERVICES", "1")
	v = ending.Of(t, func(t testing.TB) { need(t, cause) })
	if !strings.Contains(v.Failed, "no binaries") || v.Skipped != "" {
		t.Errorf("required: %+v", v)
	}
}

func TestSkip_AnAddressThatIsNoURLIsRefusedWithAnExample(t *testing.T) {
	t.Parallel()
	v := ending.Of(t, func(t testing.TB) { On(t, "host=127.0.0.1 dbname=x") })
	if !strings.Contains(v.Failed, "postgres://") {
		t.Errorf("it ended with %+v", v)
	}
}

func TestSkip_AConnectionThatIsNotGivenBackFailsTheTest(t *testing.T) {
	t.Parallel()
	pool := New(t).Pool
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v := ending.Of(t, func(t testing.TB) { closePool(t, pool, time.Millisecond) })
	if !strings.Contains(v.Failed, "1 connections were never given back") {
		t.Errorf("it ended with %+v", v)
	}
	conn.Release()
}

func TestSkip_AModelThatCannotBeMadeFailsTheTest(t *testing.T) {
	skip.InShort(t, "it takes 9 s beside the others")
	t.Parallel()
	m := &Model{Fill: func(context.Context, *pgxpool.Pool) error { return errors.New("planned") }}
	for range 2 {
		v := ending.Of(t, func(t testing.TB) { m.New(t) })
		if !strings.Contains(v.Failed, "make the model of the tests' databases: planned") {
			t.Errorf("it ended with %+v", v)
		}
	}
}

func TestSkip_ExamplesAreSkippedBesideWhatTheCallerSkips(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{"": "^Example", "TestSlow/hour": "TestSlow/hour|^Example"} {
		if got := withoutExamples(pattern); got != want {
			t.Errorf("%q became %q, want %q", pattern, got, want)
		}
	}
}
