package nats

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast"
	natsjs "github.com/holdfast-go/holdfast/contrib/nats"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/inbox/sourcetest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/relay/publishertest"
)

func TestConformance_ThePublisherKeepsThePromises(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	publishertest.Run(t, publishertest.Options{
		Publisher: publisherOn(t, js, natsjs.PublisherConfig{}),
		Topic: func(t testing.TB, partitions int) string {
			return n.topic(js, partitions, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100_000 })
		},
		Read: func(t testing.TB, topic string) (all []publishertest.Stored) {
			for _, m := range messages(t, js, topic) {
				r := natsjs.RecordOf(m.header, m.data)
				headers := make([]publish.Header, len(r.Headers))
				for i, h := range r.Headers {
					headers[i] = publish.Header(h)
				}
				all = append(all, publishertest.Stored{Partition: m.partition, Record: publish.Record{Key: r.Key, Value: r.Value, Headers: headers}})
			}
			return all
		},
		Refuse: func(e holdfast.Event) holdfast.Event {
			e.Payload = bytes.Repeat([]byte("x"), 200_000)
			return e
		},
		Missing:     "missing",
		Unreachable: publisherOn(t, connectTo(t, "nats://127.0.0.1:1"), natsjs.PublisherConfig{PublishTimeout: 2 * time.Second}),
	})
}

func TestConformance_TheGroupKeepsThePromises(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	n := startServer(t)
	js := n.connect()
	sourcetest.Run(t, sourcetest.Options{
		Source: func(t testing.TB, group string, topics ...string) inbox.Source {
			return groupOn(t, js, natsjs.GroupConfig{GroupID: group, Topics: topics, HeartbeatInterval: 100 * time.Millisecond})
		},
		Topic: func(t testing.TB, partitions int) string { return n.topic(js, partitions) },
		Produce: func(t testing.TB, topic string, partition int, records ...source.Record) {
			for _, r := range records {
				headers := make([]publish.Header, len(r.Headers))
				for i, h := range r.Headers {
					headers[i] = publish.Header(h)
				}
				m := natsjs.MessageOf(natsjs.Subject(topic, partition), publish.Record{Key: r.Key, Value: r.Value, Headers: headers})
				send(t, js, m)
			}
		},
		Delete: func(t testing.TB, topic string, _ int, before int64) {
			s, err := js.Stream(t.Context(), natsjs.StreamName(topic))
			if err == nil {
				err = s.Purge(t.Context(), jetstream.WithPurgeSequence(uint64(before)))
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		FirstOffset: 1,
	})
}

func send(t testing.TB, js jetstream.JetStream, m *nats.Msg) {
	t.Helper()
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}
