package kafkaserver_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/rig/docker"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// One container for all of this, because it takes seconds to start.
func TestContainer_ABrokerInAContainer(t *testing.T) {
	skip.InShort(t, "it takes 42 s beside the others")
	t.Parallel()
	s := start(t, kafkaserver.ContainerOptions{Settings: map[string]string{"message.max.bytes": "20000"}})
	ctx := t.Context()
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(t, s.CreateTopic(ctx, "kept", 2, nil))
	w := writer(s, "kept")
	defer w.Close()
	must(t, w.WriteMessages(ctx, kafka.Message{Key: []byte("a"), Value: []byte("before")}))

	t.Run("a topic that nobody made is not made by writing to it", func(t *testing.T) {
		w := writer(s, "nobody-made-this")
		defer w.Close()
		w.MaxAttempts = 1
		if err := w.WriteMessages(ctx, kafka.Message{Value: []byte("x")}); err == nil {
			t.Error("the write was taken")
		}
	})
	t.Run("settings reach the broker", func(t *testing.T) {
		err := w.WriteMessages(ctx, kafka.Message{Value: make([]byte, 30000)})
		if !isTooLarge(err) {
			t.Errorf("a record over message.max.bytes: %v", err)
		}
	})
	t.Run("a topic's own limit wins", func(t *testing.T) {
		must(t, s.CreateTopic(ctx, "small", 1, map[string]string{"max.message.bytes": "1000"}))
		w := writer(s, "small")
		defer w.Close()
		if err := w.WriteMessages(ctx, kafka.Message{Value: make([]byte, 2000)}); !isTooLarge(err) {
			t.Errorf("a record over max.message.bytes: %v", err)
		}
	})
	t.Run("what was written is there after a stop and a start at the same address", func(t *testing.T) {
		must(t, s.StopBroker(ctx))
		if err := ping(ctx, s); err == nil {
			t.Error("a stopped broker answers")
		}
		must(t, s.StartBroker(ctx))
		must(t, w.WriteMessages(ctx, kafka.Message{Key: []byte("a"), Value: []byte("after")}))
		wantValues(t, s, "kept", "before", "after")
	})
	t.Run("what was written is there after a kill", func(t *testing.T) {
		must(t, s.KillBroker(ctx))
		must(t, s.StartBroker(ctx))
		wantValues(t, s, "kept", "before", "after")
	})
	t.Run("a paused broker does not answer and an unpaused one does", func(t *testing.T) {
		must(t, s.Pause(ctx))
		var timeout interface{ Timeout() bool }
		if err := ping(ctx, s); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("a paused broker answers with %v, want a time-out", err)
		}
		must(t, s.Unpause(ctx))
		wantValues(t, s, "kept", "before", "after")
	})
	t.Run("a deleted topic is gone", func(t *testing.T) {
		must(t, s.DeleteTopic(ctx, "small"))
		// The broker takes a moment to forget it, and the client's metadata another.
		var err error
		wait.Until(t, "the topic cannot be read", func() bool {
			_, err = s.ReadAll(ctx, "small")
			return err != nil
		})
		if !errors.Is(err, kafka.UnknownTopicOrPartition) {
			t.Errorf("reading it: %v", err)
		}
	})
	t.Run("markers of transactions are not records", func(t *testing.T) { readsPastMarkers(t, s) })
}

// start starts brokers, which stop when the test ends.
func start(t *testing.T, o kafkaserver.ContainerOptions) *kafkaserver.Server {
	t.Helper()
	began := time.Now()
	s, err := kafkaserver.Container(t.Context(), o)
	if errors.Is(err, docker.ErrNoDocker) {
		skip.Without(t, "Docker", "start it", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	t.Logf("started in %s", time.Since(began).Round(time.Millisecond))
	return s
}

func writer(s *kafkaserver.Server, topic string) *kafka.Writer {
	return &kafka.Writer{
		Addr: kafka.TCP(s.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll,
		Balancer: &kafka.Hash{}, BatchSize: 1, Transport: s.Client.Transport,
	}
}

// cause digs the broker's answer out of what a Writer returns, which does not unwrap.
func cause(err error) error {
	var perMessage kafka.WriteErrors
	if errors.As(err, &perMessage) {
		return errors.Join(perMessage...)
	}
	return err
}

func isTooLarge(err error) bool { return errors.Is(cause(err), kafka.MessageSizeTooLarge) }

func ping(ctx context.Context, s *kafkaserver.Server) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := s.Client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{"kept": {kafka.LastOffsetOf(0)}},
	})
	return err
}

func wantValues(t *testing.T, s *kafkaserver.Server, topic string, want ...string) {
	t.Helper()
	records, err := s.ReadAll(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]string, len(records))
	for i, r := range records {
		got[i] = string(r.Value)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("records of %s: %q, want %q", topic, got, want)
	}
}
