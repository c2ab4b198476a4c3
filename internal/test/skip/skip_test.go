package skip_test

import (
	"errors"
	"flag"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/verdict"
)

func TestASkipHasAReasonAndFailsWhereServicesAreRequired(t *testing.T) {
	short := func(value string) {
		if err := flag.Set("test.short", value); err != nil {
			t.Fatal(err)
		}
	}
	before := fmt.Sprint(testing.Short())
	t.Cleanup(func() { short(before) })
	without := func(t testing.TB) { skip.Without(t, "a broker", "start one", errors.New("none answers")) }
	inShort := func(t testing.TB) { skip.InShort(t, "a broker takes long to start") }
	for _, row := range []struct {
		name, required, short string
		test                  func(testing.TB)
		want                  verdict.Verdict
	}{
		{"nothing is required", "", "false", without, verdict.Verdict{Skipped: "needs a broker, so start one: none answers"}},
		{"another value requires nothing", "0", "false", without, verdict.Verdict{Skipped: "needs a broker, so start one: none answers"}},
		{"services are required", "1", "false", without, verdict.Verdict{Failed: "a broker is required by REQUIRE_SERVICES=1, so start one: none answers"}},
		{"short", "", "true", inShort, verdict.Verdict{Skipped: "-short: a broker takes long to start"}},
		{"not short", "", "false", inShort, verdict.Verdict{}},
		{"short, and services are required", "1", "true", inShort, verdict.Verdict{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("REQUIRE_SERVICES", row.required)
			short(row.short)
			if v := verdict.Of(t, row.test); v != row.want {
				t.Errorf("it ended with %+v, want %+v", v, row.want)
			}
		})
	}
}
