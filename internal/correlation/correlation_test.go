package correlation

import (
	"strings"
	"testing"
)

func TestCorrelation_CorrelationIdsAreFitForALog(t *testing.T) {
	t.Parallel()
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range [][3]string{
		{"abc", "", "abc"}, {"abc", trace, "abc"}, {"", trace, "0af7651916cd43dd8448eb211c80319c"}, {"a b", trace, "0af7651916cd43dd8448eb211c80319c"},
		{"a\nb", "", ""}, {"é", "", ""}, {strings.Repeat("x", 128), "", strings.Repeat("x", 128)}, {strings.Repeat("x", 129), "", ""},
		{"", "00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", ""}, {"", "00-xyz", ""}, {"", "", ""},
	} {
		headers := map[string]string{"correlation_id": c[0], "traceparent": c[1]}
		if got := ID(func(name string) string { return headers[name] }, "correlation_id"); got != c[2] {
			t.Errorf("%q: got %q", c, got)
		}
	}
}
