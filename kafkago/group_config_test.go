package kafkago

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/problems"
)

func wantAll(t *testing.T, err error, all ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	problems.HaveForm(t, err)
	for _, want := range all {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if lines := strings.Count(err.Error(), "\n") + 1; lines != len(all) {
		t.Errorf("%d problems, want %d: %v", lines, len(all), err)
	}
}

func TestGroupConfig_AGroupThatCannotWorkIsRefusedWithEveryProblem(t *testing.T) {
	_, err := NewGroup(Connection{Brokers: []string{"nowhere"}}, GroupConfig{
		Topics:         []string{"a b", "c", "c"},
		SessionTimeout: 10 * time.Second, HeartbeatInterval: 5 * time.Second, RebalanceTimeout: -1, WatchInterval: time.Nanosecond,
	})
	wantAll(t, err, `broker is "nowhere"`, "group id is empty", `topic is "a b"`, `topics has "c" twice`, "heartbeat interval is 5s: it must be at most a third of the session timeout, 10s",
		"rebalance timeout is -1ns", "watch interval is 1ns")
	_, err = NewGroup(Connection{}, GroupConfig{GroupID: strings.Repeat("x", 256), SessionTimeout: time.Millisecond, HeartbeatInterval: -1})
	wantAll(t, err, "brokers is empty", `of 256 bytes: it must have 1 to 255`, "topics is empty", "session timeout is 1ms: it must be at least 100ms", "heartbeat interval is -1ns")

	// What does not fit the inbox comes from Consume, all at once as well.
	g, err := NewGroup(Connection{Brokers: []string{"localhost:9092"}, Wrap: via(nil)}, GroupConfig{GroupID: "billing", Topics: []string{"orders"},
		HeartbeatInterval: 5 * time.Second, SessionTimeout: 15 * time.Second, RebalanceTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Open(t.Context(), 10*time.Second)
	wantAll(t, err, "session timeout is 15s: it must be longer than stop, grace and heartbeat interval together, 15s",
		"rebalance timeout is 10s: it must be longer than stop and grace together, 10s", "transport of wrap is nil")
}

// A node that hands its partitions over sends no heartbeats, while handlers finish for Config.StopTimeout and Config.Grace.
func TestGroupConfig_ASessionOutlastsAHandOver(t *testing.T) {
	for _, handover := range []time.Duration{0, time.Millisecond, 15 * time.Second, time.Minute, 2 * time.Hour} {
		whole := GroupConfig{}.withDefaults(handover)
		if problems := whole.tooShort(handover); len(problems) > 0 {
			t.Errorf("handover %s: the defaults are refused: %v", handover, problems)
		}
		if least := handover + whole.HeartbeatInterval; whole.SessionTimeout <= least || whole.RebalanceTimeout <= handover {
			t.Errorf("handover %s: session %s, rebalance %s", handover, whole.SessionTimeout, whole.RebalanceTimeout)
		}
		short := whole
		short.SessionTimeout = handover + whole.HeartbeatInterval
		if err := errors.Join(short.tooShort(handover)...); err == nil || !strings.Contains(err.Error(), "session timeout is "+short.SessionTimeout.String()+": it must be longer than stop, grace") {
			t.Errorf("handover %s, session %s: %v", handover, short.SessionTimeout, err)
		}
		short.SessionTimeout++
		if err := errors.Join(short.tooShort(handover)...); err != nil && strings.Contains(err.Error(), "session timeout is") {
			t.Errorf("handover %s, session %s: %v", handover, short.SessionTimeout, err)
		}
	}
	if got := (GroupConfig{}).withDefaults(15 * time.Second); got.SessionTimeout != 30*time.Second || got.HeartbeatInterval != 3*time.Second {
		t.Errorf("by default session %s and heartbeat %s", got.SessionTimeout, got.HeartbeatInterval)
	}
}

func TestGroupConfig_ASessionTheBrokerDoesNotAllowEndsConsume(t *testing.T) {
	t.Parallel()
	for name, cluster := range map[string]func(testing.TB) *kafkatest.Cluster{"imitation": kafkatest.InProcess, "Kafka": kafkatest.Container} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, db := cluster(t), pgtest.New(t)
			if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				session time.Duration
				allowed string
			}{
				{400 * time.Millisecond, "session timeout is 400ms: the broker refuses it, it allows 500ms to "},
				{time.Hour, "session timeout is 1h0m0s: the broker refuses it, it allows 500ms to "},
			} {
				in, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing", StopTimeout: 10 * time.Millisecond, Grace: 10 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
				topic := cluster.Topic(t, 1)
				g, err := NewGroup(Connection{Brokers: cluster.Brokers}, GroupConfig{GroupID: "group-of-" + topic, Topics: []string{topic},
					SessionTimeout: c.session, HeartbeatInterval: 100 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				err = in.Consume(ctx, g)
				cancel()
				if !errors.Is(err, inbox.ErrConfiguration) || !strings.Contains(err.Error(), c.allowed) || !strings.Contains(err.Error(), minSession) {
					t.Errorf("session %s: %v", c.session, err)
				}
			}
		})
	}
}

// Thousands of topics of other programs are no business of a member, which asks for metadata every few seconds.
func TestGroupConfig_AMemberAsksForItsOwnTopicsOnly(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		ours, _ := cluster.Topic(t, 2), cluster.Topic(t, 3)
		var transport kafka.RoundTripper
		g, err := NewGroup(Connection{Brokers: cluster.Brokers, Wrap: func(own kafka.RoundTripper) kafka.RoundTripper { transport = own; return own }},
			GroupConfig{GroupID: "group-of-" + ours, Topics: []string{ours, "missing"}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := g.Open(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		client := kafka.Client{Addr: kafka.TCP(cluster.Brokers...), Transport: transport, Timeout: 10 * time.Second}
		known, err := client.Metadata(t.Context(), &kafka.MetadataRequest{}) // of what the transport was told
		if err != nil {
			t.Fatal(err)
		}
		partitions := map[string]int{}
		for _, topic := range known.Topics {
			partitions[topic.Name] = len(topic.Partitions)
		}
		if want := map[string]int{ours: 2, "missing": 0}; !maps.Equal(partitions, want) {
			t.Errorf("the member knows the partitions of %v, want %v", partitions, want)
		}
	})
}
