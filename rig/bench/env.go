package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/rig/docker"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

const partitions = 8 // of a topic, unless a measurement needs others

// sizes is how much is measured.
type sizes struct {
	rounds      int
	drain       int // events of the backlog
	handwritten int // events of the hand-written relay's backlog; its speed does not depend on it
	held        int
	scale       int // events of each backlog drained by several relays, or spread over many keys, topics or partitions
	isolation   int // events of each backlog, one a transaction
	tenants     int // events of a noisy tenant
	retired     int // events that are parked of a topic that is given up
	parked      int // events that wait in a relay, of 10,000 keys; a tenth of one key
	memory      int
	large       int // bytes of each backlog of large events
	consume     int // records of the topic: the batches read all, the others a quarter
	retention   int // rows of the inbox
	stored      int // events that wait in a consumer
	due         int // of which are due
	cold        int // events of keys that share a partition with a hot one
	latency     time.Duration
	pinned      time.Duration // of each run beside a pinned segment
	giveUp      time.Duration // of the load while parked events are given up
	slow        time.Duration // of each run beside a slow partition
	receive     time.Duration // of each run beside retention
	producer    time.Duration // of each run
	idle        time.Duration
	paced       time.Duration // how long claims are timed at storedPace
	hour        time.Duration // how long a snapshot is held beside stored events, at their rate
}

var (
	fullSizes = sizes{
		rounds:      3,
		drain:       300_000,
		handwritten: 50_000,
		held:        150_000,
		scale:       300_000,
		isolation:   1_000_000,
		tenants:     1_000_000,
		retired:     1_000_000,
		parked:      1_000_000,
		memory:      1_000_000,
		large:       500_000_000,
		consume:     80_000,
		retention:   5_000_000,
		stored:      1_000_000,
		due:         6_000,
		cold:        12_000,
		latency:     15 * time.Second,
		pinned:      20 * time.Second,
		giveUp:      60 * time.Second,
		slow:        20 * time.Second,
		receive:     20 * time.Second,
		producer:    5 * time.Second,
		idle:        20 * time.Second,
		paced:       20 * time.Second,
		hour:        time.Hour,
	}
	quickSizes = sizes{
		rounds:      2,
		drain:       60_000,
		handwritten: 8_000,
		held:        30_000,
		scale:       40_000,
		isolation:   40_000,
		tenants:     100_000,
		retired:     40_000,
		parked:      100_000,
		memory:      100_000,
		large:       100_000_000,
		consume:     16_000,
		retention:   200_000,
		stored:      100_000,
		due:         1_000,
		cold:        3_000,
		latency:     3 * time.Second,
		pinned:      5 * time.Second,
		giveUp:      5 * time.Second,
		slow:        3 * time.Second,
		receive:     6 * time.Second,
		producer:    1500 * time.Millisecond,
		idle:        5 * time.Second,
		paced:       5 * time.Second,
		hour:        5 * time.Minute,
	}
)

// env is the two servers and what the measurements create in them. Every measurement has its own databases and topics.
type env struct {
	sizes
	growth     growthSizes
	options    options
	dsn        string // of the maintenance database
	admin      *pgx.Conn
	master     int // process id of the Postgres that we have started; 0 if it is not ours or not known
	kafka      *kafkaserver.Server
	postgres   string // what the servers are, for captions
	broker     string
	partitions int      // of the topics that are made
	made       []string // databases to drop if the server is not ours
	count      int
	stops      []func()
}

func newEnv(ctx context.Context, o options, r *report) (*env, error) {
	e := &env{sizes: fullSizes, growth: o.growthSizes(), options: o, partitions: partitions}
	if o.quick {
		e.sizes = quickSizes
	}
	if o.rounds > 0 {
		e.rounds = o.rounds
	}
	if err := errors.Join(e.startPostgres(ctx, r), e.startKafka(ctx, r)); err != nil {
		e.stop()
		return nil, err
	}
	return e, nil
}

func (e *env) startPostgres(ctx context.Context, r *report) error {
	e.dsn = os.Getenv("DATABASE_URL")
	if e.dsn == "" {
		// The settings of a fresh installation, durability included: no figure here is bought with fsync=off.
		s, err := pgserver.Start(ctx, pgserver.Options{})
		if err != nil {
			return err
		}
		e.stops = append(e.stops, s.Stop)
		e.dsn = s.DSN
	}
	var err error
	if e.admin, err = pgx.Connect(ctx, e.dsn); err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	var version, fsync, commit, buffers string
	if err := e.admin.QueryRow(ctx, "select version(), current_setting('fsync'), current_setting('synchronous_commit'), current_setting('shared_buffers')").Scan(&version, &fsync, &commit, &buffers); err != nil {
		return fmt.Errorf("ask Postgres for its settings: %w", err)
	}
	if os.Getenv("DATABASE_URL") == "" {
		e.master = parentOf(int(e.admin.PgConn().PID()))
	}
	if words := strings.Fields(version); len(words) > 1 {
		version = words[0] + " " + words[1]
	}
	e.postgres = version + ", fsync " + fsync
	r.progress("%s, fsync %s, synchronous_commit %s, shared_buffers %s", version, fsync, commit, buffers)
	if fsync != "on" {
		r.note("Postgres runs with fsync=%s: the figures are not those of a durable server.", fsync)
	}
	return nil
}

func (e *env) startKafka(ctx context.Context, r *report) (err error) {
	if brokers := os.Getenv("KAFKA_BROKERS"); brokers != "" {
		e.kafka, err = kafkaserver.External(ctx, strings.Split(brokers, ",")...)
	} else if e.kafka, err = kafkaserver.Container(ctx, kafkaserver.ContainerOptions{}); errors.Is(err, docker.ErrNoDocker) {
		r.note("There is no Docker here, so Kafka was an in-process fake: its figures say little about a real broker.")
		e.kafka, err = kafkaserver.InProcess()
	}
	if err != nil {
		return err
	}
	e.stops = append(e.stops, e.kafka.Stop)
	kind := e.kafka.Kind
	if kind == kafkaserver.KindContainer {
		kind = kafkaserver.Image + " in a container"
	}
	e.broker = "Kafka: " + kind
	r.progress("%s", e.broker)
	return nil
}

// stop ends what was started. It runs on every way out, SIGINT included.
func (e *env) stop() {
	if e.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if os.Getenv("DATABASE_URL") != "" {
			for _, name := range e.made {
				e.dropDatabase(ctx, name)
			}
		}
		e.admin.Close(ctx)
	}
	for i := len(e.stops) - 1; i >= 0; i-- {
		e.stops[i]()
	}
}

// database makes an empty database, or a copy of template: transaction ids are the cluster's, so a copied log keeps its
// meaning.
func (e *env) database(ctx context.Context, template string) (string, error) {
	e.count++
	name := fmt.Sprintf("holdfast_bench_%d_%d", os.Getpid(), e.count)
	sql := "create database " + name
	if template != "" {
		sql += " template " + template
	}
	if _, err := e.admin.Exec(ctx, sql); err != nil {
		return "", fmt.Errorf("create database: %w", err)
	}
	e.made = append(e.made, name)
	// The pages of the copy and of the measurement before go to disk now, not during the run that is measured. The role may
	// lack the right to do this.
	_, _ = e.admin.Exec(ctx, "checkpoint")
	return name, nil
}

// dropDatabase frees the disk; a database that stays does no harm.
func (e *env) dropDatabase(ctx context.Context, name string) {
	_, _ = e.admin.Exec(ctx, "drop database if exists "+name+" with (force)")
}

// pool opens a database. conns 0 is pgxpool's own default, as in a service that configures nothing.
func (e *env) pool(ctx context.Context, database string, conns int, settings ...string) (*pgxpool.Pool, error) {
	c, err := e.poolConfig(database)
	if err != nil {
		return nil, err
	}
	if conns > 0 {
		c.MaxConns = int32(conns)
	}
	for i := 0; i+1 < len(settings); i += 2 {
		c.ConnConfig.RuntimeParams[settings[i]] = settings[i+1]
	}
	return pgxpool.NewWithConfig(ctx, c)
}

func (e *env) poolConfig(database string) (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(e.dsn)
	if err != nil {
		return nil, errors.New("parse DATABASE_URL: it is not a connection string")
	}
	c.ConnConfig.Database = database
	return c, nil
}

// migrated makes a database with holdfast's schema, as it is by default.
func (e *env) migrated(ctx context.Context) (string, error) {
	return e.migratedWith(ctx, holdfast.SchemaConfig{})
}

func (e *env) migratedWith(ctx context.Context, c holdfast.SchemaConfig) (string, error) {
	name, err := e.database(ctx, "")
	if err != nil {
		return "", err
	}
	pool, err := e.pool(ctx, name, 0)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	return name, holdfast.Migrate(ctx, pool, c)
}

// topic makes a topic for one measurement.
func (e *env) topic(ctx context.Context) (name string, drop func(), err error) {
	return e.topicWith(ctx, nil)
}

// topicWith is topic with settings of the topic.
func (e *env) topicWith(ctx context.Context, settings map[string]string) (name string, drop func(), err error) {
	e.count++
	name = fmt.Sprintf("holdfast-bench-%d-%d", os.Getpid(), e.count)
	if err := e.kafka.CreateTopic(ctx, name, e.partitions, settings); err != nil {
		return "", nil, err
	}
	return name, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = e.kafka.DeleteTopic(ctx, name) // if it fails, one more topic stays on a server that goes away
	}, nil
}

// scratch makes a database with the schema and a topic for one measurement.
func (e *env) scratch(ctx context.Context) (database, topic string, drop func(), err error) {
	topic, dropTopic, err := e.topic(ctx)
	if err != nil {
		return "", "", nil, err
	}
	if database, err = e.migrated(ctx); err != nil {
		dropTopic()
		return "", "", nil, err
	}
	return database, topic, func() {
		e.dropDatabase(context.WithoutCancel(ctx), database)
		dropTopic()
	}, nil
}

// published counts the records of a topic by its end offsets.
func (e *env) published(ctx context.Context, topic string) (int64, error) {
	ends, err := e.ends(ctx, topic)
	var total int64
	for _, end := range ends {
		total += end
	}
	return total, err
}

// ends are the end offsets of a topic's partitions.
func (e *env) ends(ctx context.Context, topic string) (map[int]int64, error) {
	var all []kafka.OffsetRequest
	for p := range e.partitions {
		all = append(all, kafka.LastOffsetOf(p))
	}
	resp, err := e.kafka.Client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: all}})
	if err != nil {
		return nil, fmt.Errorf("list offsets of %s: %w", topic, err)
	}
	ends := map[int]int64{}
	for _, p := range resp.Topics[topic] {
		if p.Error != nil {
			return nil, fmt.Errorf("list offsets of %s/%d: %w", topic, p.Partition, p.Error)
		}
		ends[p.Partition] = p.LastOffset
	}
	return ends, nil
}

// exactly runs do and checks that it puts want records into the topic. A lost event is an error. Repeated events are only
// counted: if nothing crashes they mean that a relay doubted its lease, because the machine stood still for seconds.
func (e *env) exactly(ctx context.Context, r *report, topic string, want int, who string, do func() error) error {
	return e.exactlyBy(ctx, r, (*env).published, topic, want, who, do)
}

// exactlyBy is exactly, by a count of the topic's records.
func (e *env) exactlyBy(ctx context.Context, r *report, count func(*env, context.Context, string) (int64, error), topic string, want int, who string, do func() error) error {
	before, err := count(e, ctx, topic)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", who, err)
	}
	after, err := count(e, ctx, topic)
	if err != nil {
		return err
	}
	switch got := after - before; {
	case got < int64(want):
		return fmt.Errorf("%s: of %d events only %d are in Kafka", who, want, got)
	case got > int64(want):
		r.note("%s: %d events were published, %d of them twice.", who, want, got-int64(want))
	}
	return nil
}

// costs is CPU time, of this process and of Postgres.
type costs struct{ self, postgres time.Duration }

// spent is what was used so far.
func (e *env) spent() costs {
	if e.master == 0 {
		return costs{}
	}
	return costs{cpuTime(), treeCPU(e.master)}
}

// since is the CPU time used since before, for each of n events, in microseconds.
func (c costs) since(before costs, n int) (self, postgres float64) {
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(n) }
	return each(c.self - before.self), each(c.postgres - before.postgres)
}

// stalled is how long a measurement may make no progress before it ends with an error.
const stalled = time.Minute

// await waits for done, unless the work ends first, makes no progress, or ctx is done.
func await[T any](ctx context.Context, done <-chan T, ended <-chan error, seen func() int64, want int) (T, error) {
	var none T
	for last := int64(-1); ; {
		select {
		case result := <-done:
			return result, nil
		case err := <-ended:
			return none, errors.Join(errors.New("it ended before its work was done"), err)
		case <-ctx.Done():
			return none, ctx.Err()
		case <-time.After(stalled):
			now := seen()
			if now == last {
				return none, fmt.Errorf("it stands still at %d of %d events", now, want)
			}
			last = now
		}
	}
}
