//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/rig/bouncer"
	"github.com/holdfast-go/holdfast/rig/internal/auditlog"
	"github.com/holdfast-go/holdfast/rig/internal/faultproxy"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// partitions is how many each topic has.
const partitions = 6

// ground is the servers and links that the parts use.
type ground struct {
	dir     string // of histories, logs and servers
	small   *smallDisks
	primary *pgserver.Server
	kafka   *kafkaserver.Server
	bouncer *bouncer.Server   // nil without one
	entry   *faultproxy.Proxy // in front of the primary: what the parts' links, or the bouncer, have as their server
	links   map[link]proxies
	// kafkaproxies are in front of the relays' link to Kafka: one partition misbehaves there.
	kafkaproxies partitionProxies
	trials       []trial
	provider     *provider // what some handlers need
	absences     []absence
	admin        *pgxpool.Pool // of the run itself, straight to the primary
	topics       []string
	late         string
	misspelt     string // a topic that never exists
	control      string // a topic that no part uses
	lent         bool   // kafka belongs to several runs
	undone       []undoing
	stops        []func()
}

// settings of the throwaway Postgres: durable, as in production, with few connections.
var settings = map[string]string{"max_connections": "80", "max_prepared_transactions": "10", "shared_buffers": "64MB", "max_wal_size": "256MB", "log_min_messages": "warning"}

func newGround(ctx context.Context, dir string, o Options, late bool) (g *ground, err error) {
	g = &ground{
		dir:     dir,
		links:   map[link]proxies{},
		topics:  []string{o.prefix + "orders", o.prefix + "stock"},
		late:    o.prefix + "late",
		control: o.prefix + "control",

		misspelt: o.prefix + "oders",
	}
	defer func() {
		if err != nil {
			g.stop()
		}
	}()
	g.small = makeSmallDisks() // where there are none, the faults that need them say why
	g.stops = append(g.stops, g.small.remove)
	g.primary, err = pgserver.Start(ctx, pgserver.Options{
		BinDir:   o.Postgres,
		Settings: settings,
		Dir:      g.small.postgres(),
	})
	if err != nil {
		return g, err
	}
	g.stops = append(g.stops, func() { g.primary.Stop() })
	if g.provider, err = startProvider(); err != nil {
		return g, err
	}
	g.stops = append(g.stops, g.provider.stop)
	if err := g.startKafka(ctx, o); err != nil {
		return g, err
	}
	if err := g.link(ctx, o); err != nil {
		return g, err
	}
	return g, g.prepare(ctx, late)
}

func (g *ground) startKafka(ctx context.Context, o Options) (err error) {
	if g.kafka = o.shared; g.kafka != nil {
		g.lent = true
		return nil
	}
	if g.kafka, err = startBrokers(ctx, o.Brokers, g.small.kafka()); err != nil {
		return err
	}
	g.stops = append(g.stops, g.kafka.Stop)
	return nil
}

// startBrokers starts one broker, or a cluster of three, with its records in a folder; "" leaves the choice to it.
func startBrokers(ctx context.Context, n int, data string) (*kafkaserver.Server, error) {
	heap := "-Xmx512m -Xms256m"
	if n > 1 {
		heap = "-Xmx300m -Xms128m"
	}
	brokers, err := kafkaserver.Container(ctx, kafkaserver.ContainerOptions{
		Brokers: n,
		Data:    data,
		Settings: map[string]string{
			"KAFKA_HEAP_OPTS": heap, "log.segment.bytes": "4194304", "log.retention.ms": "-1", "log.cleaner.min.compaction.lag.ms": "9000000000000",
			"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: the fault suite needs a real Kafka, so a Docker engine", err)
	}
	return brokers, nil
}

// link puts the proxies, and the pooler, between parts and servers.
func (g *ground) link(ctx context.Context, o Options) (err error) {
	if g.entry, err = faultproxy.Start(hostOf(g.primary.DSN)); err != nil {
		return err
	}
	g.stops = append(g.stops, func() { _ = g.entry.Close() })
	database := g.entry.Address()
	if o.PgBouncer {
		g.bouncer, err = bouncer.Start(ctx, bouncer.Options{
			Target:   database,
			User:     "postgres",
			Password: g.password(),
			PoolSize: 24,
		})
		if err != nil {
			return err
		}
		g.stops = append(g.stops, g.bouncer.Stop)
		database, g.links[pooled] = g.bouncer.Address(), proxies{g.entry}
	}
	for _, l := range links {
		targets := []string{database}
		if l.server == broker {
			targets = g.kafka.Brokers
		}
		if g.links[l], err = startProxies(targets...); err != nil {
			return err
		}
		g.stops = append(g.stops, g.links[l].close)
	}
	if g.kafkaproxies, err = startPartitionProxies(g.links[link{roleRelay, broker}].addresses()); err != nil {
		return err
	}
	g.stops = append(g.stops, g.kafkaproxies.close)
	return nil
}

// tables are the service's own, and those of the oracles that package auditlog does not have.
var tables = []string{
	// The truth of what was committed, written in the transaction of each event: no process has to report it.
	"create table written (id text primary key, topic text not null, key text not null, number bigint not null, type text not null, content text not null, due timestamptz, at timestamptz not null default clock_timestamp())",
	"create table aggregate (key text primary key, n bigint not null default 0)",
	"create table other (x bigint)",
	// No key on id: an effect that happens twice must be visible.
	"create table effect (n bigint generated always as identity primary key, consumer text not null, id text not null, key text not null, content text not null, at timestamptz not null default clock_timestamp())",
	"create index effect_by_id on effect (id)",
	"create index written_by_time on written (at)",
	"create table state (consumer text, key text, id text, primary key (consumer, key))",
	// The places of events in the log of the relays, and which were parked.
	"create table place_log (id text not null, xid xid8 not null, seq bigint not null, at timestamptz not null default clock_timestamp())",
	`create function log_place() returns trigger language plpgsql as $$ begin
		insert into public.place_log (id, xid, seq) values (new.id, new.xid, new.seq);
		return null;
	end $$`,
	"create table parked_log (id text not null, at timestamptz not null default clock_timestamp())",
	// What a person decided about, with the lane's lock held.
	"create table removed_log (id text not null, by text not null default current_setting('application_name'), at timestamptz not null default clock_timestamp())",
	`create function log_removed() returns trigger language plpgsql as $$ begin
		insert into public.removed_log (id) values (old.id);
		return null;
	end $$`,
	`create function log_parked() returns trigger language plpgsql as $$ begin
		insert into public.parked_log (id) values (new.id);
		return null;
	end $$`,
}

var triggers = []string{
	"create trigger log_place after insert on holdfast.event_0 for each row execute function public.log_place()",
	"create trigger log_place after insert on holdfast.event_1 for each row execute function public.log_place()",
	"create trigger log_place after insert on holdfast.event_2 for each row execute function public.log_place()",
	"create trigger log_place after insert on holdfast.event_3 for each row execute function public.log_place()",
	"create trigger log_removed after delete on holdfast.parked for each row when (current_setting('application_name') like '" + rolePerson + "/%') execute function public.log_removed()",
	"create trigger log_parked after insert on holdfast.parked for each row execute function public.log_parked()",
}

func (g *ground) prepare(ctx context.Context, late bool) error {
	if err := g.openAdmin(ctx); err != nil {
		return err
	}
	g.stops = append(g.stops, func() { g.admin.Close() })
	if err := makeTables(ctx, g.admin); err != nil {
		return err
	}
	for _, topic := range g.topics {
		if err := g.kafka.CreateTopic(ctx, topic, partitions, nil); err != nil {
			return err
		}
	}
	if err := g.kafka.CreateTopic(ctx, g.control, 1, nil); err != nil {
		return err
	}
	if late {
		if err := g.createLate(ctx); err != nil {
			return err
		}
	}
	return g.awaitCoordinator(ctx)
}

// makeTables creates everything that parts and oracles need in a database.
func makeTables(ctx context.Context, pool *pgxpool.Pool) error {
	rows := fmt.Sprintf("insert into aggregate select k || g from generate_series(0, %d) g, unnest(array['k', 'm']) k", keys-1)
	for _, sql := range append(tables, rows) {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("prepare the database: %w", err)
		}
	}
	if err := holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{}); err != nil {
		return err
	}
	for _, sql := range triggers {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("prepare the database: %w", err)
		}
	}
	return auditlog.Install(ctx, pool)
}

// openAdmin connects to the current primary.
func (g *ground) openAdmin(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(g.primary.DSN)
	if err != nil {
		return errors.New("the server's address cannot be parsed")
	}
	config.MaxConns = 4
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.RuntimeParams["application_name"] = "torture"
	if g.admin != nil {
		g.admin.Close()
	}
	g.admin, err = pgxpool.NewWithConfig(ctx, config)
	return err
}

// awaitCoordinator waits until the broker has made the topic of its consumer groups, which takes seconds at first.
func (g *ground) awaitCoordinator(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		res, err := g.kafka.Client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: "any", KeyType: kafka.CoordinatorKeyTypeConsumer})
		if err == nil && res.Error == nil {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the broker coordinates no groups: %w", ctx.Err())
		}
	}
}

// dsn is the primary through a part's link.
func (g *ground) dsn(role string) string {
	u, err := url.Parse(g.primary.DSN)
	if err != nil {
		return ""
	}
	u.Host = g.links[link{role, postgres}][0].Address()
	return u.String()
}

// password is the superuser's.
func (g *ground) password() string {
	u, err := url.Parse(g.primary.DSN)
	if err != nil {
		return ""
	}
	password, _ := u.User.Password()
	return password
}

func (g *ground) stop() {
	for i := len(g.stops) - 1; i >= 0; i-- {
		g.stops[i]()
	}
	g.stops = nil
}

func hostOf(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), u.Port())
}

// folder makes one below dir.
func folder(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.MkdirAll(path, 0o755)
}
