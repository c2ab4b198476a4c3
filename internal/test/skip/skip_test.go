package skip_test

import (
	"errors"
	"flag"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestSkip_ASkipHasAReasonAndFailsWhereServicesAreRequired(t *testing.T) {
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
		want                  ending.Ending
	}{
		{"nothing is required", "", "false", without, ending.Ending{Skipped: "needs a broker, so start one: none answers"}},
		{"another value requires nothing", "0", "false", without, ending.Ending{Skipped: "needs a broker, so start one: none answers"}},
		{"services are required", "1", "false", without, ending.Ending{Failed: "a broker is required by REQUIRE_SERVICES=1, so start one: none answers"}},
		{"short", "", "true", inShort, ending.Ending{Skipped: "-short: a broker takes long to start"}},
		{"not short", "", "false", inShort, ending.Ending{}},
		{"short, and services are required", "1", "true", inShort, ending.Ending{Skipped: "-short: a broker takes long to start"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("REQUIRE_SERVICES", row.required)
			short(row.short)
			if v := ending.Of(t, row.test); v != row.want {
				t.Errorf("it ended with %+v, want %+v", v, row.want)
			}
		})
	}
}
