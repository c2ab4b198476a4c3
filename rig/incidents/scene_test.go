package incidents

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-go/holdfast"
	holdfastprometheus "github.com/holdfast-go/holdfast/contrib/prometheus"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
)

// scene is a service with what watches it: its database, Kafka, a log, and a Prometheus that scrapes it.
type scene struct {
	*testing.T
	is      incident
	exprs   map[string]string // of alerts
	db      *pgtest.DB
	cluster *kafkatest.Cluster
	log     *logtest.Log
	logger  *slog.Logger
	watched *holdfastprometheus.Collector
	prom    *scraper
	begun   bool   // the incident
	unwatch func() // ends the gauges of the database

	// ends is where partitions end; nil without gauges of the lag.
	ends func(context.Context, []source.TopicPartition) (map[source.TopicPartition]int64, error)
}

// setup is a scene whose database has the gauges. db is nil for one of the server that tests share.
func setup(t *testing.T, is incident) *scene {
	t.Helper()
	s := &scene{T: t, is: is, exprs: map[string]string{}, cluster: kafkatest.New(t), log: &logtest.Log{}}
	for _, r := range rules(t) {
		s.exprs[r.Alert] = r.Expr
	}
	s.logger = slog.New(slog.NewJSONHandler(s.log, nil))
	registry := prometheus.NewRegistry()
	s.watched = holdfastprometheus.New()
	registry.MustRegister(s.watched)
	s.prom = newScraper(t, registry)
	return s
}

// on watches a database: the scene's from now on. nil is one of the server that tests share.
func (s *scene) on(db *pgtest.DB) {
	s.Helper()
	if db == nil {
		db = migrated.New(s.T)
	}
	s.db = db
	s.watch()
}

// watch begins the gauges of the database, and of the lag if it is known where partitions end.
func (s *scene) watch() {
	s.Helper()
	stop := need[func() error](s)(metrics.ObserveDatabase(s.watched, s.db.PoolOf(s.T, 2), metrics.DatabaseConfig{Interval: time.Second, Timeout: 20 * time.Second, EndsFunc: s.ends}))
	s.unwatch = func() { _ = stop() }
	s.Cleanup(s.unwatch)
}

// lag watches how far consumers are from the ends of their partitions, too.
func (s *scene) lag(via *link) {
	s.Helper()
	offsets := need[*kafkago.Offsets](s)(kafkago.NewOffsets(kafkago.Connection{Brokers: s.cluster.Brokers, Dial: via.dial}))
	s.Cleanup(offsets.Close)
	s.ends = func(ctx context.Context, of []source.TopicPartition) (map[source.TopicPartition]int64, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return offsets.Ends(ctx, of)
	}
	s.unwatch()
	s.watch()
}

// running runs f until the returned function is called, or the test ends.
func (s *scene) running(what string, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil {
			s.Errorf("%s ended: %v", what, err)
		}
	}()
	stop = func() { cancel(); <-done }
	s.Cleanup(stop)
	return stop
}

// quick is a policy of few attempts without pauses.
var quick = retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond}

// newRelay makes a relay of the scene's database. dial is nil for the usual way to Kafka.
func (s *scene) newRelay(dial dialer, change func(*relay.Config)) *relay.Relay {
	s.Helper()
	c := relay.Config{Logger: s.logger, Observer: need[relay.Observer](s)(metrics.Relay(s.watched)), Retry: quick}
	if change != nil {
		change(&c)
	}
	publisher := need[*kafkago.Publisher](s)(kafkago.NewPublisher(kafkago.Connection{Brokers: s.cluster.Brokers, Dial: dial}, kafkago.PublisherConfig{}))
	s.Cleanup(publisher.Close)
	return need[*relay.Relay](s)(relay.New(s.db.Pool, publisher, c))
}

// relay runs one.
func (s *scene) relay(dial dialer, change func(*relay.Config)) (stop func()) {
	s.Helper()
	return s.running("relay", s.newRelay(dial, change).Run)
}

// newInbox makes the consumer billing, which handles the type told.
func (s *scene) newInbox(pool *pgxpool.Pool, h inbox.Handler, change func(*inbox.Config)) *inbox.Inbox {
	s.Helper()
	c := inbox.Config{Consumer: "billing", Logger: s.logger, Observer: need[inbox.Observer](s)(metrics.Inbox(s.watched, "billing")), ImmediateRetries: -1, PollMin: time.Millisecond, PollMax: 20 * time.Millisecond,
		Retry: retry.Policy{Attempts: 100, Base: time.Hour, Cap: time.Hour}}
	if change != nil {
		change(&c)
	}
	in := need[*inbox.Inbox](s)(inbox.New(pool, c))
	if h != nil {
		in.Handle("told", h)
	}
	return in
}

// group is the consumer group of a topic.
func (s *scene) group(topic string, skipDeleted bool) *kafkago.Group {
	s.Helper()
	return need[*kafkago.Group](s)(kafkago.NewGroup(kafkago.Connection{Brokers: s.cluster.Brokers}, kafkago.GroupConfig{GroupID: "billing of " + topic, Topics: []string{topic},
		SessionTimeout: 20 * time.Second, HeartbeatInterval: 500 * time.Millisecond, WatchInterval: time.Second, SkipDeleted: skipDeleted}))
}

// consumer runs one of a topic.
func (s *scene) consumer(topic string, h inbox.Handler, change func(*inbox.Config)) (stop func()) {
	s.Helper()
	in := s.newInbox(s.db.Pool, h, change)
	return s.running("consumer", func(ctx context.Context) error { return in.Consume(ctx, s.group(topic, false)) })
}

func (s *scene) write(events ...holdfast.Event) {
	s.Helper()
	if err := pgx.BeginFunc(s.Context(), s.db.Pool, func(tx pgx.Tx) error { return outbox.Write(s.Context(), tx, events...) }); err != nil {
		s.Fatal(err)
	}
}

// events are n events of a topic, each with a key of its own.
func events(topic string, n int) (all []holdfast.Event) {
	for range n {
		id := fmt.Sprintf("e%d", rand.Uint64())
		all = append(all, holdfast.Event{ID: id, Source: "shop", Topic: topic, Type: "told", Key: id, Payload: []byte("{}")})
	}
	return all
}

// old are events whose time is an hour ago.
func old(all []holdfast.Event) []holdfast.Event {
	for i := range all {
		all[i].Time = time.Now().Add(-time.Hour)
	}
	return all
}

// random is a payload that does not become shorter by compression.
func random(n int) []byte {
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(rand.Uint32())
	}
	return payload
}

// command runs cmd/holdfast on the scene's database.
func (s *scene) command(args ...string) (out string, err error) {
	s.Helper()
	path := need[string](s)(program())
	secret := filepath.Join(s.TempDir(), "url")
	if err := os.WriteFile(secret, []byte(s.db.DSN), 0o600); err != nil {
		s.Fatal(err)
	}
	text, err := exec.CommandContext(s.Context(), path, append(args, "--database-url-file", secret)...).CombinedOutput()
	return string(text), err
}

// does runs a command that must succeed.
func (s *scene) does(args ...string) {
	s.Helper()
	if out, err := s.command(args...); err != nil {
		s.Fatalf("holdfast %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// status is what holdfast status prints, whatever its exit code.
func (s *scene) status() string {
	s.Helper()
	out, _ := s.command("status")
	return out
}

// count and exec are of the scene's database.
func (s *scene) count(sql string, args ...any) int64 {
	s.Helper()
	return pgtest.Count(s, s.db, sql, args...)
}

func (s *scene) exec(sql string, args ...any) {
	s.Helper()
	pgtest.Exec(s, s.db, sql, args...)
}

// looked is the pause between two scrapes: a sample of the database lasts a second, in operation as long as a scrape.
const looked = 250 * time.Millisecond

// healthy waits until none of the incident's alerts fires. The incident begins after it.
func (s *scene) healthy() {
	s.Helper()
	s.await("no alert fires before the incident", func() bool { s.prom.scrape(); return len(s.firing()) == 0 })
	if s.is.status != "" && strings.Contains(s.status(), s.is.status) {
		s.Errorf("status says %q before the incident", s.is.status)
	}
	s.begun = true
}

// await looks until ok. It takes as long as a busy machine may need.
func (s *scene) await(what string, ok func() bool) {
	s.Helper()
	if !wait.For(wait.Limit(), func() bool {
		if ok() {
			return true
		}
		time.Sleep(looked) // sleep: between two looks
		return false
	}) {
		s.Fatalf("not within %v: %s\nfiring: %q\n%s\n%s", wait.Limit(), what, s.firing(), s.status(), s.log)
	}
}

// firing are the incident's alerts whose expression gives something now.
func (s *scene) firing() (names []string) {
	s.Helper()
	for _, name := range s.is.alerts {
		if len(s.prom.query(s.exprs[name])) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// logged says whether the log, since it was last taken, has the incident's line.
func (s *scene) logged(text string) bool {
	s.Helper()
	for _, line := range logtest.Lines[map[string]json.RawMessage](s, text) {
		var message string
		if err := json.Unmarshal(line["msg"], &message); err == nil && message == s.is.log {
			return true
		}
	}
	return false
}

// shows waits until all that the page says is there, at one moment.
func (s *scene) shows() {
	s.Helper()
	if !s.begun {
		s.Fatal("the incident was made without a look at what was before")
	}
	s.await("the alerts fire, the log has its line, and status says it", func() bool {
		s.prom.scrape()
		return len(s.firing()) == len(s.is.alerts) && (s.is.log == "" || s.logged(s.log.String())) && (s.is.status == "" || strings.Contains(s.status(), s.is.status))
	})
}

// isOver waits until nothing of it is there, and nothing comes again. Time passes faster: alerts that count look back for up to an
// hour. A busy machine may make the same trouble once more by itself, as when it stands still for half a lease: so that is looked at
// again, and what never ends is what fails.
func (s *scene) isOver() {
	s.Helper()
	s.await("the alerts are over, status does not say it any more, and nothing comes again", func() bool {
		s.prom.pass(5 * time.Minute)
		if len(s.firing()) > 0 || s.is.status != "" && strings.Contains(s.status(), s.is.status) != s.is.stays {
			return false
		}
		s.log.Take()
		for range 8 {
			time.Sleep(looked) // sleep: a line that comes again would come meanwhile
			s.prom.scrape()
		}
		if text := s.log.Take(); s.is.log != "" && s.logged(text) {
			s.Logf("it was over, and the line came again: %s", text)
			return false
		}
		return len(s.firing()) == 0
	})
}
