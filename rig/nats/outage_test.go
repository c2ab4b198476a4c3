package nats

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	natsjs "github.com/holdfast-go/holdfast/contrib/nats"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// The relay and the inbox do not know which broker they have: what they say of one that is away must not name another.
func TestOutage_AServerThatIsAwayIsNotCalledKafka(t *testing.T) {
	skip.InShort(t, "it takes 20 s beside the others")
	t.Parallel()
	s := newShop(t, 1)
	log := &logtest.Log{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	r, err := relay.New(s.producer.Pool, publisherOn(t, s.nats.connect(), natsjs.PublisherConfig{PublishTimeout: time.Second}), relay.Config{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(s.consumer.Pool, inbox.Config{Consumer: "billing", Logger: logger, StopTimeout: 2 * time.Second, Grace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("counted", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	group := groupOn(t, s.nats.connect(), natsjs.GroupConfig{GroupID: "billing", Topics: []string{s.topic}, HeartbeatInterval: 100 * time.Millisecond, SessionTimeout: 10 * time.Second})
	s.runs("the relay", r.Run)
	s.runs("a node", func(ctx context.Context) error { return in.Consume(ctx, group) })
	wait.Until(t, "both are ready", func() bool { return r.Health(t.Context()).Ready && in.Health(t.Context()).Ready })
	s.nats.stop()
	s.write(counted("k", 0))
	says := func(reasons []string, text string) bool { return strings.Contains(strings.Join(reasons, "\n"), text) }
	wait.Until(t, "both say what is away", func() bool {
		return says(r.Health(t.Context()).Reasons, "the broker has taken nothing for") && says(in.Health(t.Context()).Reasons, "the broker has not answered for") &&
			strings.Contains(log.String(), `msg="waiting for the broker"`)
	})
	if text := log.String() + strings.Join(append(r.Health(t.Context()).Reasons, in.Health(t.Context()).Reasons...), "\n"); strings.Contains(text, "Kafka") {
		t.Errorf("somebody is told of Kafka:\n%s", text)
	}
}
