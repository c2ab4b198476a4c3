package incidents

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	holdfastprometheus "github.com/holdfast-go/holdfast/contrib/prometheus"
	"github.com/holdfast-go/holdfast/internal/test/instruments"
	"github.com/holdfast-go/holdfast/metrics"
)

// rule is an alert of holdfast.rules.yml.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal([]byte(read(t, dashboards+"/holdfast.rules.yml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// ofTarget are labels that Prometheus gives to everything it scrapes.
var ofTarget = []string{"job", "instance"}

// series is what an expression may name: a metric, or one of the three of a histogram.
type series struct {
	kind   metrics.Kind // Counter, also for those of a histogram, or Gauge
	labels []string
}

// known are the series of all metrics.
func known() map[string]series {
	all := map[string]series{}
	for _, i := range instruments.All() {
		labels := slices.Clone(ofTarget)
		for _, l := range i.Labels {
			labels = append(labels, strings.ReplaceAll(l, ".", "_"))
		}
		name := holdfastprometheus.Name(i)
		switch i.Kind {
		case metrics.Histogram:
			all[name+"_bucket"] = series{metrics.Counter, append(slices.Clone(labels), "le")}
			all[name+"_sum"], all[name+"_count"] = series{metrics.Counter, labels}, series{metrics.Counter, labels}
		case metrics.Total:
			all[name] = series{metrics.Counter, labels}
		default:
			all[name] = series{i.Kind, labels}
		}
	}
	return all
}

// wrong lists what an expression asks for that is not there, or that does not fit its kind.
func wrong(expr string, all map[string]series) (found []string) {
	tree, err := parser.ParseExpr(expr)
	if err != nil {
		return []string{err.Error()}
	}
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	selectors := 0
	parser.Inspect(tree, func(node parser.Node, path []parser.Node) error {
		v, is := node.(*parser.VectorSelector)
		if !is {
			return nil
		}
		selectors++
		s, there := all[v.Name]
		if !there {
			say("nobody measures %s", v.Name)
			return nil
		}
		for _, m := range v.LabelMatchers {
			if m.Name != "__name__" && !slices.Contains(s.labels, m.Name) {
				say("%s does not have the label %s", v.Name, m.Name)
			}
		}
		counted := false
		for _, above := range path {
			switch a := above.(type) {
			case *parser.AggregateExpr:
				for _, label := range a.Grouping {
					if !slices.Contains(s.labels, label) {
						say("%s does not have the label %s", v.Name, label)
					}
				}
			case *parser.BinaryExpr:
				counted = counted || a.Op == parser.LUNLESS // A new counter is itself what it increased by.
			case *parser.Call:
				rises := slices.Contains([]string{"rate", "increase", "irate"}, a.Func.Name)
				counted = counted || rises || a.Func.Name == "absent"
				if rises && s.kind != metrics.Counter {
					say("%s of %s, a %s", a.Func.Name, v.Name, s.kind)
				}
				if slices.Contains([]string{"delta", "deriv", "predict_linear"}, a.Func.Name) && s.kind != metrics.Gauge {
					say("%s of %s, a %s", a.Func.Name, v.Name, s.kind)
				}
				if a.Func.Name == "histogram_quantile" && !strings.HasSuffix(v.Name, "_bucket") {
					say("histogram_quantile of %s", v.Name)
				}
			}
		}
		if s.kind == metrics.Counter && !counted {
			say("%s is a counter: only its increase says something", v.Name)
		}
		return nil
	})
	if selectors == 0 {
		say("it asks for nothing")
	}
	return found
}

// panel is a panel of a dashboard.
type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               struct{ Type, UID string }
	FieldConfig              struct {
		Defaults struct {
			Unit       string
			Thresholds struct{ Steps []struct{ Color string } }
		}
	}
	Targets []struct {
		Expr, RefID, LegendFormat string
		Datasource                struct{ Type, UID string }
	}
}

type dashboard struct {
	Title, UID string
	Templating struct {
		List []struct {
			Name, Type string
			Query      json.RawMessage
		}
	}
	Panels []panel
}

var (
	grafanaVariable = regexp.MustCompile(`\$\{?(\w+)\}?`)
	legendLabel     = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	labelValues     = regexp.MustCompile(`label_values\((\w+), (\w+)\)`)
)

// asPromQL is an expression of Grafana with a value for its own variables.
func asPromQL(expr string) string { return strings.ReplaceAll(expr, "$__rate_interval", "5m") }

func TestExpressions_EveryDashboardAsksForWhatIsMeasured(t *testing.T) {
	t.Parallel()
	all := known()
	files := need[[]string](t)(filepath.Glob(dashboards + "/*.json"))
	if len(files) != 4 {
		t.Errorf("there are %d dashboards, want 4", len(files))
	}
	uids, used := map[string]string{}, map[string]bool{}
	for _, file := range files {
		name := filepath.Base(file)
		var d dashboard
		if err := json.Unmarshal([]byte(read(t, file)), &d); err != nil {
			t.Fatal(name, err)
		}
		if other := uids[d.UID]; other != "" || d.UID == "" {
			t.Errorf("%s has the uid %q, as %q", name, d.UID, other)
		}
		uids[d.UID] = name
		variables := []string{"__rate_interval"}
		for _, v := range d.Templating.List {
			variables = append(variables, v.Name)
			for _, m := range labelValues.FindAllStringSubmatch(string(v.Query), -1) {
				if s, there := all[m[1]]; !there || !slices.Contains(s.labels, m[2]) {
					t.Errorf("%s: the variable %s asks for %s of %s, which is not there", name, v.Name, m[2], m[1])
				}
			}
		}
		ids, stats := map[int]bool{}, 0
		for _, p := range d.Panels {
			say := func(format string, args ...any) {
				t.Errorf("%s, %q: %s", name, p.Title, fmt.Sprintf(format, args...))
			}
			if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || len(p.Targets) == 0 || p.Description == "" || p.FieldConfig.Defaults.Unit == "" {
				say("its id is taken, it stands out, or has no description, unit or target")
			}
			ids[p.ID] = true
			if p.Type == "stat" && len(p.FieldConfig.Defaults.Thresholds.Steps) > 1 && p.GridPos.Y == 0 {
				stats++
			}
			for _, target := range p.Targets {
				if target.Datasource.UID != "${datasource}" || p.Datasource.UID != "${datasource}" {
					say("its data source is not the variable")
				}
				for _, m := range grafanaVariable.FindAllStringSubmatch(target.Expr, -1) {
					if !slices.Contains(variables, m[1]) {
						say("there is no variable %s", m[1])
					}
				}
				for _, what := range wrong(asPromQL(target.Expr), all) {
					say("%s: %s", what, target.Expr)
				}
				for metric := range all {
					if strings.Contains(target.Expr, metric) {
						used[metric] = true
					}
				}
				for _, m := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
					if !regexp.MustCompile(`by \([^)]*\b` + m[1] + `\b[^)]*\)`).MatchString(target.Expr) {
						say("the legend has %s, by which it does not group: %s", m[1], target.Expr)
					}
				}
			}
		}
		if stats == 0 {
			t.Errorf("%s does not begin with what matters", name)
		}
	}
	// What has no panel: those of HTTP clients, which have no dashboard, and others that only alerts need.
	for _, i := range instruments.All() {
		name := holdfastprometheus.Name(i)
		shown := used[name] || used[name+"_bucket"] || used[name+"_count"]
		if expected := !slices.Contains(unshown, name); shown != expected {
			t.Errorf("%s is on a dashboard: %v, want %v", name, shown, expected)
		}
	}
}

// unshown are the metrics that no dashboard has.
var unshown = []string{
	"holdfast_consumer_partitions", "holdfast_relay_read_total", "holdfast_relay_retry_delay_seconds", "holdfast_backlog_lanes", "holdfast_pool_acquired_total", "holdfast_pool_waits_total",
	"holdfast_consumer_lag_failures_total", "idempotent_other_total",
	"holdfast_webhook_refused_total", "holdfast_webhook_deliveries_total", "holdfast_webhook_seconds", "holdfast_retry_attempts_total", "holdfast_retry_delay_seconds",
}

func TestExpressions_EveryAlertAsksForWhatIsMeasured(t *testing.T) {
	t.Parallel()
	all := known()
	for _, r := range rules(t) {
		for _, what := range wrong(r.Expr, all) {
			t.Errorf("%s: %s: %s", r.Alert, what, r.Expr)
		}
	}
}

// metricName is a word of a page that looks like a metric. Roles look like one, too.
var metricName = regexp.MustCompile("`((?:holdfast|idempotent|messaging_client|messaging_process|db_client)_[a-z_]+)(?:\\{[^`]*)?`")

func TestExpressions_EveryPageNamesWhatIsMeasured(t *testing.T) {
	t.Parallel()
	all, names := known(), map[string]bool{}
	for _, i := range instruments.All() {
		names[holdfastprometheus.Name(i)] = true
	}
	roles := []string{"holdfast_reader", "holdfast_operator", "holdfast_owner", "holdfast_relay", "holdfast_consumer", "holdfast_producer", "holdfast_web"}
	pages := append(need[[]string](t)(filepath.Glob(operations+"/*.md")), "../../docs/operations.md", "../../docs/reference/metrics.md")
	found := 0
	for _, page := range pages {
		for _, m := range metricName.FindAllStringSubmatch(read(t, page), -1) {
			if found++; !names[m[1]] && all[m[1]].kind == "" && !slices.Contains(roles, m[1]) {
				t.Errorf("%s names %s, which nobody measures", page, m[1])
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d names were found: the search has gone blind", found)
	}
}

func TestExpressions_TheLintOfExpressionsFindsMistakes(t *testing.T) {
	t.Parallel()
	all := map[string]series{"a_total": {metrics.Counter, []string{"job", "topic"}}, "g": {metrics.Gauge, []string{"job"}}, "h_bucket": {metrics.Counter, []string{"le"}}}
	for expr, want := range map[string]string{
		"sum by (job) (rate(a_total[5m]))": "", "max(g) > 1": "", "delta(g[5m])": "", "histogram_quantile(0.9, rate(h_bucket[5m]))": "",
		"sum((a_total unless a_total offset 5m) or increase(a_total[5m]))": "",
		"absent(a_total)": "", "rate(b_total[5m])": "nobody measures b_total", "a_total > 1": "only its increase", "rate(g[5m])": "rate of g, a gauge",
		"delta(a_total[5m])": "delta of a_total", `rate(a_total{key="k"}[5m])`: "does not have the label key", "sum by (key) (rate(a_total[5m]))": "does not have the label key",
		"histogram_quantile(0.9, rate(a_total[5m]))": "histogram_quantile of a_total", "rate(a_total[5m]": "unclosed", "1": "asks for nothing",
	} {
		if got := strings.Join(wrong(expr, all), "; "); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", expr, got, want)
		}
	}
}
