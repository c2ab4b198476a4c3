package holdfastotel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// half refuses the events of topic refused and acknowledges the rest.
type half struct{}

func (half) Publish(_ context.Context, events []holdfast.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		if e.Topic == "refused" {
			errs[i] = &publish.Error{Topic: e.Topic, Fault: publish.FaultRecord, Err: errors.New("planned")}
		}
	}
	return errs
}

func relayOf(t *testing.T, db *pgtest.DB, observer relay.Observer) *relay.Relay {
	t.Helper()
	r, err := relay.New(db.Pool, half{}, relay.Config{Observer: observer, Logger: slog.New(slog.DiscardHandler), Lease: time.Minute,
		Retry: retry.Policy{Attempts: -1, Base: time.Hour, Cap: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// maxLabels is how many topics, and how many operations, have figures of their own, as docs/reference/metrics.md says.
const maxLabels = 200

func TestRelay_WhatARelayDoesAndWhatItHasNotDoneAreMeasured(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	reader := metric.NewManualReader()
	meter := holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"))
	observer, err := metrics.Relay(meter)
	if err != nil {
		t.Fatal(err)
	}
	db := migrated.New(t)
	r := relayOf(t, db, observer)
	stop, err := metrics.ObserveDatabase(meter, db.Pool, metrics.DatabaseConfig{Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	write := func(topic string) {
		e := holdfast.Event{Topic: topic, Key: "1", Type: "paid", Time: time.Now().Add(-time.Hour)}
		if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, e) }); err != nil {
			t.Fatal(err)
		}
	}
	write("payments")
	write("refused")
	if got := collected(t, reader); got["holdfast.backlog.lanes{}"] != 1 || got["holdfast.backlog.age{}"] < 3600 {
		t.Errorf("nobody has published: %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	wait.Until(t, "no lane has a backlog", func() bool { return collected(t, reader)["holdfast.backlog.lanes{}"] == 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	got := collected(t, reader)
	for name, want := range map[string]int64{
		"holdfast.relay.published{topic=payments}": 1, "holdfast.relay.waits{topic=refused,why=failed}": 1,
		"holdfast.backlog.lanes{}": 0, "holdfast.backlog.age{}": 0, "holdfast.backlog.waiting{}": 1, "holdfast.backlog.scheduled{}": 0,
		"holdfast.relay.claimed{}": got["holdfast.relay.released{}"],
	} {
		if got[name] != want {
			t.Errorf("%s is %d, want %d, of %v", name, got[name], want, got)
		}
	}
	if got["holdfast.relay.claimed{}"] == 0 || got["holdfast.relay.saving{}"] == 0 {
		t.Errorf("no lane was claimed, or no cursor saved: %v", got)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, asked := collected(t, reader)["holdfast.backlog.lanes{}"]; asked {
		t.Error("gauges that were taken back are still asked for")
	}
}

func TestRelay_WhatWaitsForAConsumerIsMeasured(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	reader := metric.NewManualReader()
	meter := holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"))
	db := migrated.New(t)
	in, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.ObserveDatabase(meter, db.Pool, metrics.DatabaseConfig{}); err != nil {
		t.Fatal(err)
	}
	in.Handle("paid", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	e := holdfast.Event{ID: "7d7f6a3c-7b0e-4f0e-9a53-6a2d1c0f8f01", Topic: "payments", Key: "1", Type: "paid", Source: "bank"}
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { _, err := in.StoreTx(t.Context(), tx, e); return err }); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.stored set first_at = now() - interval '1 hour'")
	got := collected(t, reader)
	for name, want := range map[string]int64{"holdfast.waiting.events{consumer=billing}": 1, "holdfast.waiting.keys{consumer=billing}": 1, "holdfast.waiting.no_handler{consumer=billing}": 1} {
		if got[name] != want {
			t.Errorf("%s is %d, want %d, of %v", name, got[name], want, got)
		}
	}
	if age := got["holdfast.waiting.age{consumer=billing}"]; age < 3600 || age > 3900 {
		t.Errorf("it has waited %d s, want 3600", age)
	}
}

// Whoever may write events can name any number of topics that do not exist.
func TestRelay_TopicsThatDoNotExistLeaveTheOthersTheirLabels(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	observer, err := metrics.Relay(holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")))
	if err != nil {
		t.Fatal(err)
	}
	const junk, real = 10 * maxLabels, maxLabels
	for i := range junk {
		observer.OnWaiting(relay.Waiting{Event: holdfast.Event{Topic: fmt.Sprint("junk ", i)}, Why: "topic"})
		observer.OnDead(relay.DeadLettered{Event: holdfast.Event{Topic: fmt.Sprint("junk ", i)}})
	}
	for i := range real {
		observer.OnPublished(0, []holdfast.Event{{Topic: fmt.Sprint("real ", i)}})
	}
	observer.OnDead(relay.DeadLettered{Event: holdfast.Event{Topic: "real 0"}}) // It is known by now.
	got := collected(t, reader)
	labels, own := 0, int64(0)
	for i := range real {
		own += got[fmt.Sprintf("holdfast.relay.published{topic=real %d}", i)]
	}
	for i := range junk {
		if got[fmt.Sprintf("holdfast.relay.dead{topic=junk %d}", i)] != 0 {
			labels++
		}
	}
	if own != real*3/4 || labels != maxLabels/4 || got["holdfast.relay.dead{topic=real 0}"] != 1 {
		t.Errorf("%d topics that take events have labels of their own, and %d that do not", own, labels)
	}
	if others := got["holdfast.relay.published{topic=other}"]; others != real/4 {
		t.Errorf("%d events are of other topics", others)
	}
}
