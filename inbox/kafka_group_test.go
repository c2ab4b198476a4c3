package inbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/kafkatest"
)

func TestAGroupThatCannotWorkIsRefusedWithEveryProblem(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.StopTimeout, c.Grace = 8*time.Second, 2*time.Second })
	err := in.Consume(t.Context(), KafkaGroup{
		Brokers: []string{"nowhere"}, Topics: []string{"a b"},
		SessionTimeout: 10 * time.Second, HeartbeatInterval: 5 * time.Second, RebalanceTimeout: 10 * time.Second, WatchInterval: time.Nanosecond,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`broker is "nowhere"`, "group id is empty", `topic is "a b"`, "session timeout is 10s: it must be longer than stop, grace and heartbeat interval together, 15s",
		"heartbeat interval is 5s", "rebalance timeout is 10s", "watch interval is 1ns"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

// A node that hands its partitions over sends no heartbeats, while handlers finish for Config.StopTimeout and Config.Grace.
func TestASessionOutlastsAHandOver(t *testing.T) {
	g := KafkaGroup{Brokers: []string{"localhost:9092"}, GroupID: "billing", Topics: []string{"orders"}}
	for _, stop := range []time.Duration{-1, 0, time.Second, 20 * time.Second, time.Minute, time.Hour} {
		for _, grace := range []time.Duration{0, time.Millisecond, 30 * time.Second, time.Hour} {
			c := Config{Consumer: "billing", StopTimeout: stop, Grace: grace}.withDefaults()
			whole := g.withDefaults(c)
			if err := whole.validate(c); err != nil {
				t.Errorf("stop %s, grace %s: the defaults are refused: %v", stop, grace, err)
			}
			if least := c.StopTimeout + c.Grace + whole.HeartbeatInterval; whole.SessionTimeout <= least || whole.RebalanceTimeout <= c.StopTimeout+c.Grace {
				t.Errorf("stop %s, grace %s: session %s, rebalance %s", stop, grace, whole.SessionTimeout, whole.RebalanceTimeout)
			}
			short := whole
			short.SessionTimeout = c.StopTimeout + c.Grace + whole.HeartbeatInterval
			if err := short.validate(c); err == nil || !strings.Contains(err.Error(), "session timeout is "+short.SessionTimeout.String()+": it must be longer than stop, grace") {
				t.Errorf("stop %s, grace %s, session %s: %v", stop, grace, short.SessionTimeout, err)
			}
			short.SessionTimeout++
			if err := short.validate(c); err != nil && strings.Contains(err.Error(), "session timeout is") {
				t.Errorf("stop %s, grace %s, session %s: %v", stop, grace, short.SessionTimeout, err)
			}
		}
	}
	if got := g.withDefaults(Config{}.withDefaults()); got.SessionTimeout != 30*time.Second || got.HeartbeatInterval != 3*time.Second {
		t.Errorf("by default session %s and heartbeat %s", got.SessionTimeout, got.HeartbeatInterval)
	}
}

func TestASessionTheBrokerDoesNotAllowEndsConsume(t *testing.T) {
	for name, cluster := range map[string]func(testing.TB) *kafkatest.Cluster{"imitation": kafkatest.InProcess, "Kafka": kafkatest.Container} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			cluster := cluster(t)
			for _, c := range []struct {
				session time.Duration
				allowed string
			}{
				{400 * time.Millisecond, "session timeout is 400ms: the broker refuses it, it allows 500ms to "},
				{time.Hour, "session timeout is 1h0m0s: the broker refuses it, it allows 500ms to "},
			} {
				in := b.inbox(func(c *Config) { c.StopTimeout, c.Grace = 10*time.Millisecond, 10*time.Millisecond })
				topic := cluster.Topic(t, 1)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				err := in.Consume(ctx, KafkaGroup{Brokers: cluster.Brokers, GroupID: "group-of-" + topic, Topics: []string{topic},
					SessionTimeout: c.session, HeartbeatInterval: 100 * time.Millisecond})
				cancel()
				if !errors.Is(err, ErrConfiguration) || !strings.Contains(err.Error(), c.allowed) || !strings.Contains(err.Error(), minSession) {
					t.Errorf("session %s: %v", c.session, err)
				}
			}
		})
	}
}
