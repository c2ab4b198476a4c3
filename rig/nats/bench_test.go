package nats

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	natsjs "github.com/holdfast-go/holdfast/contrib/nats"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// BenchmarkPath has a relay publish a backlog of 50,000 events of 300 bytes to eight partitions, and then a consumer handle them with an
// insert each. The server is in this process, and keeps its stream in files.
func BenchmarkPath(b *testing.B) {
	const events = 50_000
	var publishing, handling time.Duration
	for range b.N {
		n := startServer(b)
		js := n.connect()
		topic := n.topic(js, 8)
		producer, consumer := migrated.New(b), migrated.New(b)
		pgtest.Exec(b, consumer.Pool, "create table effect (n bigint generated always as identity, key text)")
		pgtest.Exec(b, producer.Pool, `select count(holdfast.write(topic => $1, type => 'counted', key => (n % 1000)::text, payload => convert_to(repeat('x', 300), 'UTF8'))) from generate_series(1, $2::int) n`, topic, events)

		var published, handled atomic.Int64
		r, err := relay.New(producer.Pool, publisherOn(b, n.connect(), natsjs.PublisherConfig{}), relay.Config{Logger: quiet, Observer: relay.Observer{
			OnPublished: func(_ int, events []holdfast.Event) { published.Add(int64(len(events))) },
		}})
		if err != nil {
			b.Fatal(err)
		}
		publishing += timed(b, "everything is published", r.Run, func() bool { return published.Load() >= events })

		in, err := inbox.New(consumer.Pool, inbox.Config{Consumer: "billing", Logger: quiet})
		if err != nil {
			b.Fatal(err)
		}
		in.Handle("counted", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			_, err := tx.Exec(ctx, "insert into effect (key) values ($1)", e.Key)
			handled.Add(1)
			return err
		})
		group := groupOn(b, n.connect(), natsjs.GroupConfig{GroupID: "billing", Topics: []string{topic}})
		handling += timed(b, "everything is handled", func(ctx context.Context) error { return in.Consume(ctx, group) }, func() bool { return handled.Load() >= events })
	}
	b.ReportMetric(events*float64(b.N)/publishing.Seconds(), "published/s")
	b.ReportMetric(events*float64(b.N)/handling.Seconds(), "handled/s")
}

// timed runs a part until something is so, and says how long that took.
func timed(b *testing.B, what string, run func(context.Context) error, until func() bool) time.Duration {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- run(ctx) }()
	wait.Until(b, what, until)
	took := time.Since(began)
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	return took
}
