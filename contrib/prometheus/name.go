package holdfastprometheus

import (
	"strings"

	"github.com/holdfast-go/holdfast/metrics"
)

// Name is the name of an instrument in Prometheus: as OpenTelemetry's exporter translates it, with the unit, and "total" for counters.
func Name(i metrics.Instrument) string {
	name := underscored(i.Name)
	for unit, suffix := range map[string]string{"s": "_seconds", "By": "_bytes"} {
		if i.Unit == unit && !strings.HasSuffix(name, suffix) {
			name += suffix
		}
	}
	if i.Kind == metrics.Counter || i.Kind == metrics.Total {
		name += "_total"
	}
	return name
}

func underscored(name string) string { return strings.ReplaceAll(name, ".", "_") }

func labelsOf(names []string) []string {
	labels := make([]string, len(names))
	for i, name := range names {
		labels[i] = underscored(name)
	}
	return labels
}
