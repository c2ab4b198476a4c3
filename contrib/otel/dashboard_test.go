package holdfastotel_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/instruments"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// scraped are the metrics that Prometheus finds once every observer was told everything, with their labels.
func scraped(t *testing.T) map[string][]string {
	t.Helper()
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo())
	if err != nil {
		t.Fatal(err)
	}
	meter := holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(exporter)).Meter("test"))
	guard, err := metrics.Idempotency(meter)
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range []idempotency.Result{idempotency.Created, idempotency.Replayed, idempotency.Conflict, idempotency.InProgress, idempotency.Forgotten,
		idempotency.Lost, idempotency.Bypassed, idempotency.Refused, idempotency.Unavailable, idempotency.Unknown, idempotency.Unusable, "other"} {
		guard.OnOutcome(t.Context(), idempotency.Outcome{Result: result, Route: "POST /charges", Code: "idempotency.too_many_keys", Omitted: true, Expired: true})
	}
	guard.OnAbandoned(idempotency.Abandoned{Operation: "POST /charges"})
	guard.OnCleaned(1, time.Second)
	in, err := metrics.Inbox(meter, "billing")
	if err != nil {
		t.Fatal(err)
	}
	_, handled := in.OnHandle(t.Context(), inbox.Handling{Events: []holdfast.Event{{Topic: "orders"}}})
	handled(errors.New("planned"))
	in.OnReceive(inbox.Received{Outcome: inbox.Handled, Event: holdfast.Event{Time: time.Now()}})
	in.OnHeld(inbox.Assignment{}, nil)
	in.OnErased(holdfast.Event{})
	in.OnStep(inbox.Stepped{Result: inbox.StepDone})
	in.OnUnknownType("", "")
	in.OnPolled(1, time.Second)
	in.OnRetry(inbox.Retried{})
	in.OnDead(inbox.DeadLettered{})
	in.OnConflict(holdfast.Event{})
	in.OnFull(holdfast.Event{}, nil)
	in.OnCleaned(1, time.Second)
	in.OnHungHandler(holdfast.Event{}, 1)
	in.OnLeaseLost(holdfast.Event{})
	in.OnFenced(inbox.Assignment{})
	in.OnRevoked(inbox.Assignment{}, true)
	in.OnAssigned(inbox.Assignment{}, 0)
	in.OnReread(inbox.Assignment{}, 1)
	in.OnError(errors.New("planned"))
	publishing, err := metrics.Relay(meter)
	if err != nil {
		t.Fatal(err)
	}
	writes, err := metrics.Outbox(meter)
	if err != nil {
		t.Fatal(err)
	}
	_, wrote := writes.OnWrite(t.Context(), []holdfast.Event{{Topic: "orders"}})
	wrote(nil)
	_, sent := publishing.OnPublish(t.Context(), relay.Publishing{Topic: "orders"})
	sent([]error{errors.New("planned")})
	publishing.OnPolled(0, false, 0)
	publishing.OnRead(0, 1, 0)
	publishing.OnPublished(0, []holdfast.Event{{Time: time.Now()}})
	publishing.OnWaiting(relay.Waiting{Why: "failed"})
	publishing.OnResumed(0, holdfast.Event{})
	publishing.OnDead(relay.DeadLettered{Letter: 1})
	publishing.OnClaimed(0, 1)
	publishing.OnReleased(0)
	publishing.OnLost(0, true, nil)
	publishing.OnHeld(relay.Held{Fault: publish.FaultTopic, Wait: time.Second})
	publishing.OnSaved(1, time.Second)
	publishing.OnMoved(0, 1)
	publishing.OnReclaimed(0, "kept")
	db := migrated.New(t)
	if _, err := db.Exec(t.Context(), `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash) values ('inbox', 'billing', 'planned', '1', 's', 't', 'orders', 'k', now(), '');
		insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash) values ('billing', 'orders', 'k', 1, 's', '1', 't', now(), '');
		insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 3);
		insert into holdfast.consumer_backfill (consumer, node, began_at, partitions, partitions_left, done, remaining, per_second) values ('billing', 'n', now(), 1, 1, 1, 1, 1);
		insert into holdfast.dependency (consumer, name, away) values ('billing', 'stripe', true)`); err != nil {
		t.Fatal(err)
	}
	ends := func(context.Context, []source.TopicPartition) (map[source.TopicPartition]int64, error) {
		return map[source.TopicPartition]int64{{Topic: "orders", Partition: 0}: 5}, nil
	}
	if _, err := metrics.ObserveDatabase(meter, db.Pool, metrics.DatabaseConfig{EndsFunc: ends}); err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.ObservePool(meter, "main", db.Pool); err != nil {
		t.Fatal(err)
	}
	hooks, err := metrics.Webhook(meter)
	if err != nil {
		t.Fatal(err)
	}
	hooks.OnRefused(webhook.Refused{})
	hooks.OnDelivery(webhook.Answered{})
	waits, err := metrics.Wait(meter)
	if err != nil {
		t.Fatal(err)
	}
	waits.OnWaited(t.Context(), holdfast.Waited{Consumer: "billing", Settlement: holdfast.Handled})
	client, err := metrics.Retry(meter)
	if err != nil {
		t.Fatal(err)
	}
	client.OnAttempt(retry.Attempt{Request: httptest.NewRequest("GET", "/", nil), Number: 2, Delay: time.Second, Status: 200})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		if f.GetMetric()[0].GetHistogram() == nil {
			found[f.GetName()] = labels
			continue
		}
		found[f.GetName()+"_bucket"] = append(slices.Clone(labels), "le")
		found[f.GetName()+"_sum"], found[f.GetName()+"_count"] = labels, labels
	}
	return found
}

var (
	metricName = regexp.MustCompile(`\b(?:idempotent|holdfast)_[a-z0-9_]+`)
	selector   = regexp.MustCompile(`\b((?:idempotent|holdfast)_[a-z0-9_]+)\{([^}]*)\}`)
	labelName  = regexp.MustCompile(`([a-z_]+)\s*=`)
	grouping   = regexp.MustCompile(`by \(([^)]*)\)`)
)

// R49.
func TestDashboard_TheDashboardShowsWhatIsReallyMeasured(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/dashboards/idempotency.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Title, UID string
		Templating struct {
			List []struct{ Name, Type string }
		}
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	metrics := scraped(t)
	used := map[string]bool{}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q shows nothing, or stands out", p.Title)
		}
		for _, target := range p.Targets {
			names := metricName.FindAllString(target.Expr, -1)
			if len(names) == 0 || strings.Count(target.Expr, "(") != strings.Count(target.Expr, ")") {
				t.Errorf("panel %q: %s", p.Title, target.Expr)
			}
			for _, name := range names {
				used[name] = true
				if _, measured := metrics[name]; !measured {
					t.Errorf("panel %q asks for %s, which nobody measures", p.Title, name)
				}
				for _, g := range grouping.FindAllStringSubmatch(target.Expr, -1) {
					for _, label := range strings.Split(g[1], ", ") {
						if !slices.Contains(metrics[name], label) {
							t.Errorf("panel %q groups %s by %s, which it does not have", p.Title, name, label)
						}
					}
				}
			}
			for _, s := range selector.FindAllStringSubmatch(target.Expr, -1) {
				for _, label := range labelName.FindAllStringSubmatch(s[2], -1) {
					if !slices.Contains(metrics[s[1]], label[1]) {
						t.Errorf("panel %q selects %s by %s, which it does not have", p.Title, s[1], label[1])
					}
				}
			}
		}
	}
	counters := 0
	for name := range metrics {
		if !strings.HasPrefix(name, "idempotent_") || !strings.HasSuffix(name, "_total") || name == "idempotent_other_total" { // a result of a later version
			continue
		}
		if counters++; !used[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
	if counters < 15 {
		t.Errorf("only %d counters were found: the search has gone blind", counters)
	}
	if hit := dashboard.Panels[0]; !strings.Contains(hit.Title, "Hit rate") || !strings.Contains(hit.Targets[0].Expr, "by (operation)") {
		t.Errorf("the first panel is %q: %v", hit.Title, hit.Targets)
	}
}

// row is a metric of docs/reference/metrics.md: its name in Prometheus and in OpenTelemetry, what it is, and its labels.
var row = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `([\\w.]+)` \\| (\\w+), `[^`]+` \\| ([^|]*) \\|")

func TestDashboard_EveryMetricOfThePageIsThereUnderItsName(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	found, listed := scraped(t), map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		name, kind, labels := m[1], m[3], []string{}
		for _, label := range strings.Split(strings.ReplaceAll(m[4], "`", ""), ", ") {
			if label != "" {
				labels = append(labels, strings.ReplaceAll(label, ".", "_"))
			}
		}
		if kind == "histogram" {
			name += "_sum"
		}
		listed[m[1]] = true
		got, there := found[name]
		for _, label := range got { // One without a value is not there.
			if !slices.Contains(labels, label) {
				t.Errorf("%s has the label %s, which the page does not list", name, label)
			}
		}
		if !there || (kind == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("%s, a %s, is there: %v", name, kind, there)
		}
	}
	if len(listed) != len(instruments.All()) {
		t.Errorf("the page has %d metrics, want %d", len(listed), len(instruments.All()))
	}
	for name := range found {
		for _, end := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, end)
		}
		if !listed[name] && !listed[name+"_count"] {
			t.Errorf("docs/reference/metrics.md does not list %s", name)
		}
	}
}
