package path

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

// nowhere is an address at which no broker listens.
const nowhere = "127.0.0.1:1"

// start is a relay or a consumer that cannot work.
type start struct {
	pool    *pgxpool.Pool
	brokers []string
	topic   string
	handle  bool // a type has a handler
}

// relay runs a relay until ctx ends.
func (s start) relay(ctx context.Context, log *slog.Logger) error {
	p, err := kafkago.NewPublisher(kafkago.Connection{Brokers: s.brokers}, kafkago.PublisherConfig{})
	if err != nil {
		return err
	}
	defer p.Close()
	r, err := relay.New(s.pool, p, relay.Config{Logger: log})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// consume runs a consumer until ctx ends.
func (s start) consume(ctx context.Context, log *slog.Logger) error {
	g, err := kafkago.NewGroup(kafkago.Connection{Brokers: s.brokers}, kafkago.GroupConfig{GroupID: "billing of " + s.topic, Topics: []string{s.topic}})
	if err != nil {
		return err
	}
	in, err := inbox.New(s.pool, inbox.Config{Consumer: "billing", Logger: log})
	if err != nil {
		return err
	}
	if s.handle {
		in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	}
	return in.Consume(ctx, g)
}

// Each start that cannot work says so within seconds, in one line that says what to do: in the log, or as the error of Run.
func TestStarts_AStartThatCannotWorkSaysWhy(t *testing.T) {
	skip.InShort(t, "it takes 16 s beside the others")
	t.Parallel()
	cluster := kafkatest.New(t)
	there := cluster.Topic(t, 1)
	gone := there + ".gone"
	pool := func(connections int32) func(t *testing.T) *pgxpool.Pool {
		return func(t *testing.T) *pgxpool.Pool { return migrated.New(t).PoolOf(t, connections) }
	}
	enough := pool(30)
	unmigrated := func(t *testing.T) *pgxpool.Pool { return pgtest.New(t).PoolOf(t, 30) }
	ungranted := func(t *testing.T) *pgxpool.Pool {
		db := migrated.New(t)
		prefix := roletest.Make(t, db)
		pool, _ := roletest.Login(t, db, "", prefix+"_reader")
		return pool
	}
	written := func(t *testing.T) *pgxpool.Pool {
		pool := enough(t)
		pgtest.Exec(t, pool, "select holdfast.write($1, 'k', 'order.placed', '{}')", gone)
		return pool
	}
	for _, c := range []struct {
		name     string
		consumer bool
		pool     func(t *testing.T) *pgxpool.Pool
		start    start
		says     []string
		fails    error // nil: it waits, and the log says why
	}{
		{"a relay without a broker", false, enough, start{brokers: []string{nowhere}}, []string{"no broker answers yet", "check the addresses", "connection refused"}, nil},
		{"a relay whose topic is missing", false, written, start{brokers: cluster.Brokers}, []string{"topic held: it is missing or not permitted; create it or grant the rights", gone}, nil},
		{"a relay with a small pool", false, pool(2), start{brokers: cluster.Brokers}, []string{"set pool_max_conns", "connections=2", "needed=4"}, nil},
		{"a relay without a schema", false, unmigrated, start{brokers: cluster.Brokers}, []string{"run holdfast migrate"}, holdfast.ErrSchemaMissing},
		{"a relay without rights", false, ungranted, start{brokers: cluster.Brokers}, []string{"it lacks:", "on lane", "docs/operations.md"}, errAny},
		{"a consumer without a broker", true, enough, start{brokers: []string{nowhere}, topic: there, handle: true}, []string{"waiting for the broker", "joining the group", "connection refused"}, nil},
		{"a consumer whose topic is missing", true, enough, start{brokers: cluster.Brokers, topic: gone, handle: true}, []string{"topics are missing: nothing is read of them until they are created", gone}, nil},
		{"a consumer with a small pool", true, pool(4), start{brokers: cluster.Brokers, topic: there, handle: true}, []string{"set pool_max_conns, or fewer Workers", "connections=4", "needed=18"}, nil},
		{"a consumer without handlers", true, enough, start{brokers: cluster.Brokers, topic: there}, []string{"register handlers (Handle, HandleBatch) before Consume"}, inbox.ErrConfiguration},
		{"a consumer without a schema", true, unmigrated, start{brokers: cluster.Brokers, topic: there, handle: true}, []string{"run holdfast migrate"}, holdfast.ErrSchemaMissing},
		{"a consumer without rights", true, ungranted, start{brokers: cluster.Brokers, topic: there, handle: true}, []string{"it lacks:", "on consumer_type", "docs/operations.md"}, errAny},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.start.pool = c.pool(t)
			run := c.start.relay
			if c.consumer {
				run = c.start.consume
			}
			var log logtest.Log
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			begun := time.Now()
			go func() { ended <- run(ctx, slog.New(slog.NewTextHandler(&log, nil))) }()
			defer cancel()
			if c.fails != nil {
				select {
				case err := <-ended:
					if err == nil || c.fails != errAny && !errors.Is(err, c.fails) {
						t.Fatalf("it ended with %v, want %v", err, c.fails)
					}
					wantIn(t, err.Error(), c.says)
				case <-time.After(wait.Limit()):
					t.Fatalf("it goes on; the log has %s", log.String())
				}
			} else {
				var line string
				wait.Until(t, fmt.Sprintf("a line says %q", c.says[0]), func() bool { line = lineWith(log.String(), c.says[0]); return line != "" })
				wantIn(t, line, c.says)
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("it ended with %v", err)
				}
			}
			t.Logf("after %v", time.Since(begun).Round(time.Millisecond))
		})
	}
}

// errAny stands for an error that has no name of its own.
var errAny = errors.New("any error")

func wantIn(t *testing.T, text string, says []string) {
	t.Helper()
	for _, words := range says {
		if !strings.Contains(text, words) {
			t.Errorf("%q does not say %q", text, words)
		}
	}
}

// lineWith is the first whole line that has the words.
func lineWith(text, words string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, words) && strings.HasSuffix(line, "\n") {
			return line
		}
	}
	return ""
}
