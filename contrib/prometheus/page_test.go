package holdfastprometheus_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/holdfast-go/holdfast"
	holdfastprometheus "github.com/holdfast-go/holdfast/contrib/prometheus"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/instruments"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

var rewrite = flag.Bool("rewrite", false, "write the list of metrics in docs/reference/metrics.md")

// tellAll tells every observer everything once, so that each instrument has a value.
func tellAll(t *testing.T, c *holdfastprometheus.Collector) {
	t.Helper()
	ctx, planned := t.Context(), errors.New("planned")
	_, ended := need[outbox.Observer](t)(metrics.Outbox(c)).OnWrite(ctx, []holdfast.Event{{Topic: "orders"}})
	ended(nil)
	r := need[relay.Observer](t)(metrics.Relay(c))
	_, published := r.OnPublish(ctx, relay.Publishing{Topic: "orders"})
	published([]error{planned})
	r.OnPublished(0, []holdfast.Event{{Time: time.Now()}})
	r.OnWaiting(relay.Waiting{Why: "failed"})
	r.OnResumed(0, holdfast.Event{})
	r.OnDead(relay.DeadLettered{})
	r.OnClaimed(0, 0)
	r.OnReleased(0)
	r.OnLost(0, true, nil)
	r.OnHeld(relay.Held{Fault: publish.FaultTopic})
	r.OnPolled(0, false, 0)
	r.OnRead(0, 1, 0)
	r.OnSaved(0, 0)
	r.OnMoved(0, 1)
	r.OnReclaimed(0, "refused: by transaction 7")
	in := need[inbox.Observer](t)(metrics.Inbox(c, "billing"))
	_, handled := in.OnHandle(ctx, inbox.Handling{Events: []holdfast.Event{{Topic: "orders"}}})
	handled(planned)
	in.OnReceive(inbox.Received{Outcome: inbox.Handled, Event: holdfast.Event{Time: time.Now()}})
	in.OnRetry(inbox.Retried{})
	in.OnDead(inbox.DeadLettered{})
	in.OnConflict(holdfast.Event{})
	in.OnFull(holdfast.Event{}, nil)
	in.OnHeld(inbox.Assignment{}, nil)
	in.OnErased(holdfast.Event{})
	in.OnStep(inbox.Stepped{Result: inbox.StepDone})
	in.OnUnknownType("", "")
	in.OnHungHandler(holdfast.Event{}, 1)
	in.OnLeaseLost(holdfast.Event{})
	in.OnFenced(inbox.Assignment{})
	in.OnRevoked(inbox.Assignment{}, true)
	in.OnAssigned(inbox.Assignment{}, 0)
	in.OnReread(inbox.Assignment{}, 1)
	in.OnPolled(0, time.Second)
	in.OnError(planned)
	in.OnCleaned(1, time.Second)
	guard := need[idempotency.Observer](t)(metrics.Idempotency(c))
	for _, result := range []idempotency.Result{idempotency.Created, idempotency.Replayed, idempotency.Conflict, idempotency.InProgress, idempotency.Forgotten,
		idempotency.Lost, idempotency.Bypassed, idempotency.Refused, idempotency.Unavailable, idempotency.Unknown, idempotency.Unusable, "of a later version"} {
		guard.OnOutcome(ctx, idempotency.Outcome{Result: result, Route: "POST /charges", Code: "idempotency.too_many_keys", Omitted: true, Expired: true})
	}
	guard.OnAbandoned(idempotency.Abandoned{Operation: "POST /charges"})
	guard.OnCleaned(1, time.Second)
	hooks := need[webhook.Observer](t)(metrics.Webhook(c))
	hooks.OnRefused(webhook.Refused{})
	hooks.OnDelivery(webhook.Answered{})
	need[holdfast.WaitObserver](t)(metrics.Wait(c)).OnWaited(ctx, holdfast.Waited{Consumer: "billing", Settlement: holdfast.Handled})
	need[retry.Observer](t)(metrics.Retry(c)).OnAttempt(retry.Attempt{Request: httptest.NewRequestWithContext(ctx, "GET", "/", nil), Number: 2})

	db := migrated.New(t)
	if _, err := db.Exec(ctx, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash) values ('inbox', 'billing', 'planned', '1', 's', 't', 'orders', 'k', now(), '');
		insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash) values ('billing', 'orders', 'k', 1, 's', '1', 't', now(), '');
		insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 3);
		insert into holdfast.consumer_backfill (consumer, node, began_at, partitions, partitions_left, done, remaining, per_second) values ('billing', 'n', now(), 1, 1, 1, 1, 1);
		insert into holdfast.dependency (consumer, name, away) values ('billing', 'stripe', true)`); err != nil {
		t.Fatal(err)
	}
	ends := func(context.Context, []source.TopicPartition) (map[source.TopicPartition]int64, error) {
		return map[source.TopicPartition]int64{{Topic: "orders", Partition: 0}: 5}, nil
	}
	need[func() error](t)(metrics.ObserveDatabase(c, db.Pool, metrics.DatabaseConfig{EndsFunc: ends}))
	need[func() error](t)(metrics.ObservePool(c, "main", db.Pool))
}

func TestPage_EveryMetricIsThereWithItsTypeUnitAndLabels(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	c, registry := registered(t)
	tellAll(t, c)
	found := families(t, registry)
	types := map[metrics.Kind]dto.MetricType{metrics.Counter: dto.MetricType_COUNTER, metrics.Total: dto.MetricType_COUNTER, metrics.Gauge: dto.MetricType_GAUGE, metrics.Histogram: dto.MetricType_HISTOGRAM}
	for _, i := range instruments.All() {
		name := holdfastprometheus.Name(i)
		f := found[name]
		if f == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		delete(found, name)
		if f.GetType() != types[i.Kind] || f.GetHelp() != i.Description || i.Description == "" {
			t.Errorf("%s is a %s: %s", name, f.GetType(), f.GetHelp())
		}
		if unit := map[string]string{"s": "_seconds", "By": "_bytes"}[i.Unit]; !strings.Contains(name, unit) || unit == "" && (i.Unit[0] != '{' || strings.Contains(name, "_seconds")) {
			t.Errorf("%s has the unit %s", name, i.Unit)
		}
		var want, got []string
		for _, label := range i.Labels {
			want = append(want, strings.ReplaceAll(label, ".", "_"))
		}
		for _, l := range f.GetMetric()[0].GetLabel() {
			got = append(got, l.GetName())
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has the labels %q, want %q", name, got, want)
		}
		var bounds []float64
		for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
			bounds = append(bounds, b.GetUpperBound())
		}
		if !slices.Equal(bounds, i.Buckets) || (i.Kind == metrics.Histogram) != (len(bounds) > 0) {
			t.Errorf("%s has the buckets %v, want %v", name, bounds, i.Buckets)
		}
	}
	for name := range found {
		t.Errorf("%s is not among the instruments", name)
	}
}

func TestPage_ThePageListsEveryMetric(t *testing.T) {
	const page, begin, end = "../../docs/reference/metrics.md", "<!-- made of the code -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), begin)
	_, after, found := strings.Cut(rest, end)
	if !found {
		t.Fatalf("%s has no place for the list", page)
	}
	want := before + begin + listed() + end + after
	if *rewrite {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("%s is not what the code says (%v): run go test ./contrib/prometheus -run ThePageListsEveryMetric -rewrite", page, err)
	}
}

// listed is the list of the page.
func listed() string {
	var b strings.Builder
	b.WriteString("\n| Prometheus | OpenTelemetry | kind, unit | labels | what it says |\n|---|---|---|---|---|\n")
	for _, i := range instruments.All() {
		labels := make([]string, len(i.Labels))
		for n, label := range i.Labels {
			labels[n] = "`" + label + "`"
		}
		kind := string(i.Kind)
		if i.Kind == metrics.Total {
			kind = "counter"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s, `%s` | %s | %s |\n", holdfastprometheus.Name(i), i.Name, kind, i.Unit, strings.Join(labels, ", "), i.Description)
	}
	b.WriteString("\nThe histograms have these buckets, in seconds:\n\n| buckets | histograms |\n|---|---|\n")
	var order []string
	of := map[string][]string{}
	for _, i := range instruments.All() {
		if i.Kind != metrics.Histogram {
			continue
		}
		var bounds []string
		for _, bound := range i.Buckets {
			bounds = append(bounds, strconv.FormatFloat(bound, 'g', -1, 64))
		}
		key := strings.Join(bounds, ", ")
		if of[key] == nil {
			order = append(order, key)
		}
		of[key] = append(of[key], "`"+i.Name+"`")
	}
	for _, key := range order {
		fmt.Fprintf(&b, "| %s | %s |\n", key, strings.Join(of[key], ", "))
	}
	b.WriteString("\n")
	return b.String()
}

func TestPage_WhatCannotBeReadLeavesTheRest(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	c, registry := registered(t)
	broken := metrics.Instrument{Name: "a.b", Kind: metrics.Gauge, Unit: "{thing}", Description: "x"}
	stop, err := c.Observe([]metrics.Instrument{broken}, func(context.Context) ([]metrics.Reading, error) { return nil, errors.New("planned") })
	if err != nil {
		t.Fatal(err)
	}
	need[relay.Observer](t)(metrics.Relay(c)).OnClaimed(0, 0)
	if got := values(t, registry); got["holdfast_relay_claimed_total{}"] != 1 || len(got) != 1 {
		t.Errorf("got %v", got)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	db := migrated.New(t)
	stop = need[func() error](t)(metrics.ObserveDatabase(c, db.Pool, metrics.DatabaseConfig{Schema: "nowhere"}))
	for range 2 { // The second does not ask the database.
		if got := values(t, registry); got["holdfast_sample_failures_total{}"] != 1 || len(got) != 2 {
			t.Errorf("got %v", got)
		}
	}
	if err := stop(); err != nil || len(values(t, registry)) != 1 {
		t.Errorf("what was stopped is collected: %v", err)
	}
}
