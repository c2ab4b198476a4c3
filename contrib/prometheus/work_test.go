package holdfastprometheus_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// running runs f until the returned function is called.
func running(t *testing.T, what string, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s ended: %v", what, err)
		}
	}
}

func TestWork_WhatIsDoneOnRealServersIsMeasured(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	db, cluster := migrated.New(t), kafkatest.New(t)
	orders, small := cluster.Topic(t, 2), cluster.Topic(t, 1, "max.message.bytes", "1000")
	c, registry := registered(t)

	// 1. The producer: five events, one of them scheduled, and one that its topic does not take.
	out := need[*outbox.Outbox](t)(outbox.New(outbox.Config{Source: "shop", Observer: need[outbox.Observer](t)(metrics.Outbox(c))}))
	big := make([]byte, 5000)
	for i := range big {
		big[i] = byte(i * i >> 3)
	}
	write := func(es ...holdfast.Event) {
		t.Helper()
		if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return out.Write(t.Context(), tx, es...) }); err != nil {
			t.Fatal(err)
		}
	}
	event := func(id, kind string) holdfast.Event {
		return holdfast.Event{ID: id, Topic: orders, Type: kind, Key: id, Payload: []byte("{}"), Source: "shop"}
	}
	later := event("later", "told")
	later.NotBefore = time.Now().Add(time.Hour)
	write(event("good", "told"), event("twice", "told"), event("bad", "told"), event("odd", "nobody's"), later)
	write(holdfast.Event{ID: "large", Topic: small, Type: "told", Payload: big})

	pgtest.Exec(t, db, "update holdfast.scheduled set due_at = now()")

	// 2. The database before anything is published.
	need[func() error](t)(metrics.ObserveDatabase(c, db.Pool, metrics.DatabaseConfig{Interval: time.Second}))
	need[func() error](t)(metrics.ObservePool(c, "main", db.Pool))
	if got := values(t, registry); got["holdfast_backlog_lanes{}"] < 1 || got["holdfast_backlog_age_seconds{}"] <= 0 || got["holdfast_table_size_bytes{table=log}"] <= 0 {
		t.Errorf("nothing is published: %v", got)
	}

	// 3. Relay and consumer.
	publisher := need[*kafkago.Publisher](t)(kafkago.NewPublisher(kafkago.Connection{Brokers: cluster.Brokers}, kafkago.PublisherConfig{}))
	quick := retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond}
	r := need[*relay.Relay](t)(relay.New(db.Pool, publisher, relay.Config{Logger: silent, Lease: 30 * time.Second, Retry: quick, Observer: need[relay.Observer](t)(metrics.Relay(c))}))
	in := need[*inbox.Inbox](t)(inbox.New(db.Pool, inbox.Config{Consumer: "billing", Logger: silent, Retry: quick, ImmediateRetries: -1, PollMin: time.Millisecond, PollMax: 10 * time.Millisecond,
		Observer: need[inbox.Observer](t)(metrics.Inbox(c, "billing"))}))
	var failed atomic.Bool
	in.Handle("told", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
		if e.ID == "bad" || e.ID == "twice" && failed.CompareAndSwap(false, true) {
			return errors.New("planned")
		}
		return nil
	})
	group := need[*kafkago.Group](t)(kafkago.NewGroup(kafkago.Connection{Brokers: cluster.Brokers}, kafkago.GroupConfig{GroupID: "billing of " + orders, Topics: []string{orders},
		SessionTimeout: 20 * time.Second, HeartbeatInterval: 500 * time.Millisecond, WatchInterval: time.Second}))
	stopRelay, stopInbox := running(t, "relay", r.Run), running(t, "inbox", func(ctx context.Context) error { return in.Consume(ctx, group) })
	wait.Until(t, "all events are settled", func() bool {
		return pgtest.Count(t, db, "select count(*) from holdfast.letter") == 2 && pgtest.Count(t, db, "select count(*) from holdfast.inbox where result = 'handled'") == 3 &&
			values(t, registry)["holdfast_inbox_events_total{consumer=billing,outcome=skipped}"] == 1
	})
	if out, err := in.Receive(t.Context(), event("good", "told")); out != inbox.Duplicate || err != nil {
		t.Error(out, err)
	}
	other := event("good", "told")
	other.Payload = []byte("other")
	if out, err := in.Receive(t.Context(), other); out != inbox.Conflict || err != nil {
		t.Error(out, err)
	}
	stopRelay()
	stopInbox()

	// 4. Requests, webhooks, and a client that repeats.
	guard := need[*idempotency.Guard](t)(idempotency.New(db.Pool, idempotency.Config{Logger: silent, Principal: func(*http.Request) (string, error) { return "a", nil },
		Observer: need[idempotency.Observer](t)(metrics.Idempotency(c))}))
	mux := http.NewServeMux()
	mux.Handle("POST /charges", guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })))
	verifier := webhook.VerifierFunc(func(h http.Header, _ []byte, _ time.Time) (webhook.Delivery, error) {
		if h.Get("Signature") == "" {
			return webhook.Delivery{}, &webhook.RefusedError{Reason: webhook.ReasonMissing, Rule: "it must be signed"}
		}
		return webhook.Delivery{ID: "hook", IDSigned: true, Type: "told", Timestamp: time.Now()}, nil
	})
	mux.Handle("/hook", need[http.Handler](t)(webhook.New(in, "bank", verifier, webhook.Config{Logger: silent, Observer: need[webhook.Observer](t)(metrics.Webhook(c))})))
	for _, ask := range []struct{ path, body, header string }{
		{"/charges", "{}", "Idempotency-Key"}, {"/charges", "{}", "Idempotency-Key"}, {"/charges", `{"a":1}`, "Idempotency-Key"}, {"/charges", "{}", ""},
		{"/hook", "{}", ""}, {"/hook", "{}", "Signature"},
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, ask.path, strings.NewReader(ask.body))
		if ask.header != "" {
			request.Header.Set(ask.header, "0123456789abcdef")
		}
		mux.ServeHTTP(httptest.NewRecorder(), request)
	}
	answers := []int{http.StatusServiceUnavailable, http.StatusCreated}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answers[0])
		answers = answers[1:]
	}))
	defer server.Close()
	client := &http.Client{Transport: &retry.Transport{Policy: retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond}, Observer: need[retry.Observer](t)(metrics.Retry(c))}}
	if answer, err := client.Get(server.URL); err != nil {
		t.Error(err)
	} else {
		answer.Body.Close()
	}

	// 5. What is exactly known, and what must have happened.
	time.Sleep(time.Second) // sleep: the next sample is due
	got := values(t, registry)
	for series, want := range map[string]float64{
		"holdfast_outbox_written_total{topic=" + orders + "}":                                                    5,
		"holdfast_outbox_written_total{topic=" + small + "}":                                                     1,
		"messaging_client_operation_duration_seconds{messaging_operation_name=create,messaging_system=holdfast}": 2,
		"holdfast_relay_published_total{topic=" + orders + "}":                                                   5,
		"holdfast_relay_waits_total{topic=" + small + ",why=failed}":                                             1,
		"holdfast_relay_dead_total{topic=" + small + "}":                                                         1,
		"holdfast_relay_moved_total{}":                                                                           1,
		"holdfast_relay_claimed_total{}":                                                                         got["holdfast_relay_released_total{}"] + got["holdfast_relay_lost_total{}"],
		sent(orders, ""):                                                                                         5,
		sent(small, "record"):                                                                                    2,
		processed("messaging_client_consumed_messages_total", orders, "process", "kafka", ""):                    2,
		processed("messaging_client_consumed_messages_total", orders, "process", "kafka", "TRANSIENT"):           2,
		processed("messaging_client_consumed_messages_total", orders, "retry", "kafka", ""):                      1,
		processed("messaging_client_consumed_messages_total", orders, "retry", "kafka", "TRANSIENT"):             1,
		processed("messaging_process_duration_seconds", orders, "retry", "kafka", ""):                            1,
		"holdfast_inbox_events_total{consumer=billing,outcome=handled}":                                          4, // with the webhook
		"holdfast_inbox_events_total{consumer=billing,outcome=duplicate}":                                        1,
		"holdfast_inbox_events_total{consumer=billing,outcome=conflict}":                                         1,
		"holdfast_inbox_events_total{consumer=billing,outcome=skipped}":                                          1,
		"holdfast_inbox_lag_seconds{consumer=billing}":                                                           4,
		"holdfast_inbox_retry_delay_seconds{consumer=billing}":                                                   2,
		"holdfast_inbox_dead_total{consumer=billing}":                                                            1,
		"holdfast_inbox_conflicts_total{consumer=billing}":                                                       1,
		"holdfast_inbox_unknown_types_total{consumer=billing}":                                                   1,
		"holdfast_letters_open{consumer=billing,origin=inbox}":                                                   2,
		"holdfast_letters_open{origin=relay}":                                                                    1,
		"holdfast_backlog_lanes{}":                                                                               0,
		"holdfast_backlog_age_seconds{}":                                                                         0,
		"holdfast_sample_failures_total{}":                                                                       0,
		"idempotent_created_total{operation=POST /charges}":                                                      1,
		"idempotent_replayed_total{operation=POST /charges}":                                                     1,
		"idempotent_conflict_total{operation=POST /charges}":                                                     1,
		"idempotent_refused_total{operation=POST /charges}":                                                      1,
		"idempotent_duration_seconds{operation=POST /charges,outcome=replayed}":                                  1,
		"holdfast_webhook_refused_total{reason=missing,source=bank}":                                             1,
		"holdfast_webhook_deliveries_total{outcome=handled,secret=0,source=bank,status=" + statusOf(got) + "}":   1,
		"holdfast_webhook_seconds{source=bank}":                                                                  1,
		"holdfast_retry_attempts_total{met=5xx,repeat=false}":                                                    1,
		"holdfast_retry_attempts_total{met=2xx,repeat=true}":                                                     1,
		"holdfast_retry_delay_seconds{}":                                                                         1,
		"db_client_connection_max{db_client_connection_pool_name=main}":                                          float64(db.Pool.Config().MaxConns),
		"db_client_connection_count{db_client_connection_pool_name=main,db_client_connection_state=used}":        0,
	} {
		if value, there := got[series]; value != want || !there {
			t.Errorf("%s is %v (there: %v), want %v", series, value, there, want)
		}
	}
	for _, series := range []string{"holdfast_relay_poll_seconds{found=false}", "holdfast_relay_page_seconds{}", "holdfast_relay_read_total{}", "holdfast_relay_lag_seconds{}", "holdfast_relay_saving_seconds{}",
		"holdfast_inbox_poll_seconds{consumer=billing,found=true}", "holdfast_inbox_poll_seconds{consumer=billing,found=false}", "holdfast_sample_duration_seconds{}",
		"holdfast_pool_acquired_total{db_client_connection_pool_name=main}", "holdfast_table_size_bytes{table=inbox}", "holdfast_inbox_assigned_total{consumer=billing}"} {
		if got[series] <= 0 {
			t.Errorf("%s is %v", series, got[series])
		}
	}
	if t.Failed() {
		t.Logf("got %v", got)
	}
}

func sent(topic, failure string) string {
	if failure != "" {
		failure = "error_type=" + failure + ","
	}
	return "messaging_client_sent_messages_total{" + failure + "messaging_destination_name=" + topic + ",messaging_operation_name=publish,messaging_system=kafka}"
}

func processed(name, topic, operation, system, failure string) string {
	if failure != "" {
		failure = "error_type=" + failure + ","
	}
	return name + "{" + failure + "messaging_consumer_group_name=billing,messaging_destination_name=" + topic + ",messaging_operation_name=" + operation + ",messaging_system=" + system + "}"
}

// statusOf is the status with which the webhook was answered: any 2xx.
func statusOf(got map[string]float64) string {
	for _, status := range []string{"200", "202", "204"} {
		if got["holdfast_webhook_deliveries_total{outcome=handled,secret=0,source=bank,status="+status+"}"] > 0 {
			return status
		}
	}
	return "2xx"
}
