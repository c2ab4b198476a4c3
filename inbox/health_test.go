package inbox

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// says reports that a live inbox gives a reason for not being ready.
func (in *Inbox) says(reason string) bool {
	h := in.Health(context.Background())
	return h.Live && !h.Ready && strings.Contains(strings.Join(h.Reasons, "\n"), reason)
}

func (in *Inbox) healthy() bool { h := in.Health(context.Background()); return h.Live && h.Ready }

func TestHealth_HealthFollowsAnOutageOfTheDatabase(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	wait.Until(t, "it is healthy though it only receives", in.healthy)
	stop := b.run(in.Run)
	wait.Until(t, "it is healthy", in.healthy)

	admin, name := pgtest.New(t), b.db.Config().ConnConfig.Database
	away := func(yes string) {
		pgtest.Exec(t, admin.Pool, "update pg_database set datallowconn = not "+yes+"::boolean where datname = $1", name)
	}
	away("true")
	pgtest.Exec(t, admin.Pool, "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
	wait.Until(t, "it says that the database is away", func() bool { return in.says("the database has not answered") })
	away("false")
	wait.Until(t, "it is healthy again", in.healthy)

	if stop(); !in.says("the inbox has stopped") {
		t.Errorf("after Run: %+v", in.Health(t.Context()))
	}
}

func TestHealth_HealthFollowsTheGroupAndAnOutageOfKafka(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	source := &fakeSource{make(chan *fakeGeneration, 1)}
	b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, source) })
	wait.Until(t, "it waits for the group", func() bool { return in.says("this node has not joined the consumer group yet") })

	gen, away := newFakeGeneration(logOf(event("1", "k"))), errors.New("no broker answers")
	gen.fail.Store(&away)
	source.gens <- gen
	wait.Until(t, "it says that Kafka is away", func() bool { return in.says("the broker has not answered") && in.says("fetching: no broker answers") })
	gen.fail.Store(nil)
	b.awaitOutcome("1", Handled)
	wait.Until(t, "it is healthy", in.healthy)
}

func TestHealth_HealthSaysWhyAnInboxHasEnded(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inboxOn(pgtest.New(t).Pool)
	in.Handle("order.placed", effectOf)
	wait.Until(t, "it says what to do without a schema, though it only receives", func() bool { return in.says("holdfast migrate") })
	if err := in.Run(t.Context()); err == nil {
		t.Fatal("it ran without a schema")
	}
	if h := in.Health(t.Context()); h.Live || h.Ready || len(h.Reasons) != 1 || !strings.Contains(h.Reasons[0], "holdfast migrate") {
		t.Errorf("%+v", h)
	}
}

// A database that takes connections and says nothing keeps nobody waiting for long who asks.
func TestHealth_HealthIsBoundedWhileTheDatabaseSaysNothing(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	config, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	in := b.inboxOn(pool)
	answered := make(chan Health, 1)
	go func() { answered <- in.Health(context.Background()) }()
	select {
	case h := <-answered:
		if !h.Live || h.Ready || !strings.Contains(h.Reasons[0], "the database does not answer") {
			t.Errorf("%+v", h)
		}
	case <-time.After(time.Minute):
		t.Fatal("Health waits for the database")
	}
}
