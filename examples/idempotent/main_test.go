package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestIdempotent_ARefundIsPaidBackOnceHoweverOftenItIsAskedFor(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	text, err := exampletest.Told(t, func(ctx context.Context, out io.Writer) error { return run(ctx, out, db.DSN) })
	if err != nil {
		t.Fatalf("%v, after:\n%s", err, text)
	}
	for _, want := range []string{"201 stored", "201 replayed", "409 ", "400 ", `"POST /refunds"`, "Every promise held."} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	exampletest.NoSchemas(t, db, "idempotent")
	if n := pgtest.Count(t, db, "select count(*) from pg_class where relname = 'refund'"); n != 0 {
		t.Errorf("%d tables are left behind", n)
	}
}
