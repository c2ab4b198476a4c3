package relay_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func healthy(r *relay.Relay) bool { h := r.Health(context.Background()); return h.Live && h.Ready }

// says reports that a live relay gives a reason for not being ready.
func says(r *relay.Relay, reason string) bool {
	h := r.Health(context.Background())
	return h.Live && !h.Ready && strings.Contains(strings.Join(h.Reasons, "\n"), reason)
}

// Health answers while Postgres is away, while Kafka is, and once they are back, without a restart.
func TestHealth_HealthFollowsOutagesOfPostgresAndKafka(t *testing.T) {
	skip.InShort(t, "it takes 14 s beside the others")
	t.Parallel()
	pool, b := setup(t, 8), newBroker()
	name := pool.Config().ConnConfig.Database
	var log logtest.Log
	r, err := relay.New(pool, b, relay.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if !says(r, "call Run") {
		t.Errorf("before Run: %+v", r.Health(t.Context()))
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	wait.Until(t, "it is healthy", func() bool { return healthy(r) })

	admin := pgtest.New(t) // a database of its own: sessions there go on
	away := func(yes string) {
		pgtest.Exec(t, admin.Pool, "update pg_database set datallowconn = not "+yes+"::boolean where datname = $1", name)
	}
	away("true")
	pgtest.Exec(t, admin.Pool, "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
	wait.Until(t, "it says that the database is away", func() bool { return says(r, "the database has not answered") })
	away("false")
	wait.Until(t, "it is healthy again", func() bool { return healthy(r) })
	wait.Until(t, "the log says that it is over", func() bool { return strings.Contains(log.String(), "database back") })
	if said := strings.Count(log.String(), "relay waits for the database"); said == 0 {
		t.Errorf("the log says that the database is back, and not that it was away:\n%s", log.String())
	}

	b.set(func(holdfast.Event) error { return refusal(publish.FaultBroker) })
	write(t, pool, event("k", "waits"))
	const noted = "select count(*) from holdfast.relay where trouble like '%scripted: %'"
	wait.Until(t, "the heartbeat says that Kafka takes nothing", func() bool { return pgtest.Count(t, pool, noted) == 1 })
	wait.Until(t, "it says that Kafka is away", func() bool { return says(r, "the broker has taken nothing") })
	b.set(nil)
	arrives(t, b, "waits")
	wait.Until(t, "it is healthy after the outage", func() bool { return healthy(r) })
	wait.Until(t, "the heartbeat says nothing more", func() bool { return pgtest.Count(t, pool, noted) == 0 })

	stop()
	if err := <-ended; err != nil || !says(r, "the relay has stopped") {
		t.Errorf("Run: %v; %+v", err, r.Health(t.Context()))
	}
}

func TestHealth_HealthSaysWhyARelayHasEnded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r, err := relay.New(db.Pool, newBroker(), relay.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err == nil {
		t.Fatal("it ran without a schema")
	}
	if h := r.Health(t.Context()); h.Live || h.Ready || len(h.Reasons) != 1 || !strings.Contains(h.Reasons[0], "holdfast migrate") {
		t.Errorf("%+v", h)
	}
}

// A database that takes connections and says nothing keeps nobody waiting who asks.
func TestHealth_HealthDoesNotWaitForTheDatabase(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	config, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	mute := make(chan struct{}, 100)
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case mute <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	r, err := relay.New(pool, newBroker(), relay.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	<-mute // it tries to connect, and waits
	answered := make(chan relay.Health, 1)
	go func() { answered <- r.Health(context.Background()) }()
	select {
	case h := <-answered:
		if !h.Live || h.Ready {
			t.Errorf("%+v", h)
		}
	case <-time.After(time.Minute):
		t.Fatal("Health waits for the database")
	}
	stop()
	<-ended
}

// A relay that was killed left its row. Who takes its name has run since it started, and not since then.
func TestHealth_ARelayUnderTheNameOfADeadOneHasRunSinceItsStart(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	pgtest.Exec(t, pool, "insert into holdfast.relay (name, seen_until, started_at) values ('relay-1', now(), now() - interval '1 hour')")
	write(t, pool, event("k", "1"))
	run(t, pool, b, relay.Config{Name: "relay-1", Lease: time.Second})
	arrives(t, b, "1")
	const start = "select extract(epoch from started_at)::text from holdfast.relay where name = 'relay-1'"
	const beat = "select (extract(epoch from seen_until) * 1000)::bigint from holdfast.relay where name = 'relay-1'"
	if old := pgtest.Count(t, pool, "select count(*) from holdfast.relay where name = 'relay-1' and started_at < now() - interval '30 minutes'"); old != 0 {
		t.Error("it has run for more than half an hour")
	}
	first, began := pgtest.Count(t, pool, beat), pgtest.Text(t, pool, start)
	wait.Until(t, "another heartbeat", func() bool { return pgtest.Count(t, pool, beat) > first })
	if moved := pgtest.Text(t, pool, "select (abs(("+start+")::float8 - "+began+") < 0.5)::text"); moved != "true" {
		t.Errorf("its start moves with its heartbeats: %s, and then %s", began, pgtest.Text(t, pool, start))
	}
}
