package endtoend

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
)

// The tests in load_*.go are tests of the consumer alone, on a real Kafka and a real Postgres: the test itself puts events into
// Kafka, with the relay's publisher, and the oracle of package endtoend judges as everywhere. The table
// `written` knows when an event was about to be published and `effect` when it was handled, so that delays are the
// database's word too.

// consumers is a path without a relay.
type consumers struct {
	*path
	kafka *kafkago.Publisher
	pool  *pgxpool.Pool
	seed  uint64

	mu         sync.Mutex
	rng        *rand.Rand
	numbers    map[string]int64 // the last number of each key
	partitions int
	held       chan error // why a partition of a consumer is held
}

func setupConsumers(t testing.TB, partitions int) *consumers {
	t.Helper()
	s := &consumers{path: setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), partitions),
		seed: seed.New(t), numbers: map[string]int64{}, partitions: partitions, held: make(chan error, 1)}
	s.rng = rand.New(rand.NewPCG(s.seed, 0))
	for _, sql := range []string{
		"alter table written add column at timestamptz not null default clock_timestamp(), add column type text",
		"alter table effect add column at timestamptz not null default clock_timestamp(), add column pid int, add column partition int, add column epoch bigint",
		"create table report (n bigint generated always as identity, pid int, what text, partition int, epoch bigint, id text, at timestamptz not null default clock_timestamp())",
	} {
		pgtest.Exec(t, s.Db, sql)
	}
	s.pool = s.path.Pool(3)
	var err error
	s.kafka, err = kafkago.NewPublisher(kafkago.Connection{Brokers: s.Cluster.Brokers}, kafkago.PublisherConfig{MetadataTTL: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s.meetCoordinator()
	return s
}

// next is the next event of a key. do is what a node's handler is asked to do with it.
func (co *consumers) next(key, do string) holdfast.Event {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.numbers[key]++
	e := co.Event(key, co.numbers[key])
	e.Time = time.Now()
	e.Headers = map[string]string{"do": do, "partition": fmt.Sprint(kafkago.Murmur2(e, co.partitions)), "number": fmt.Sprint(co.numbers[key])}
	return e
}

// numberOf is an event's place in the order of its key.
func numberOf(e holdfast.Event) int {
	n, _ := strconv.Atoi(e.Headers["number"])
	return n
}

// some makes n events of random keys out of as many.
func (co *consumers) some(n, keys int, do string) []holdfast.Event {
	events := make([]holdfast.Event, n)
	for i := range events {
		events[i] = co.next(fmt.Sprint("k", co.rng.IntN(keys)), do)
	}
	return events
}

// publish writes the truth about events, and puts them into Kafka in their order.
func (co *consumers) publish(events ...holdfast.Event) {
	co.Helper()
	if err := co.tryPublish(events); err != nil {
		co.Fatal(err)
	}
}

func (co *consumers) tryPublish(events []holdfast.Event) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	b := &pgx.Batch{}
	for _, e := range events {
		b.Queue("insert into written (id, topic, key, number, type) values ($1, $2, $3, $4, $5)", e.ID, e.Topic, e.Key, numberOf(e), e.Type)
	}
	if err := co.pool.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	for { // As a relay does: what has failed goes again, in its order.
		var failed []holdfast.Event
		var last error
		for i, err := range co.kafka.Publish(ctx, events) {
			if err != nil {
				failed, last = append(failed, events[i]), err
			}
		}
		if len(failed) == 0 {
			return nil
		}
		if !after(ctx, 50*time.Millisecond) {
			return fmt.Errorf("publish: %w", last)
		}
		events = failed
	}
}

// flow publishes about perSecond events until ctx is done. The caller waits for it.
func (co *consumers) flow(ctx context.Context, perSecond int, next func(rng *rand.Rand) holdfast.Event) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(co.seed, 1))
		last, owed := time.Now(), 0.0
		for after(ctx, 20*time.Millisecond) {
			now := time.Now()
			owed = min(owed+now.Sub(last).Seconds()*float64(perSecond), float64(perSecond)) // a second is never made up for
			last = now
			var events []holdfast.Event
			for ; owed >= 1; owed-- {
				events = append(events, next(rng))
			}
			if err := co.tryPublish(events); err != nil {
				co.Error(err)
				return
			}
		}
	})
	return wg.Wait
}

// any is the next event for a flow of so many keys.
func (co *consumers) any(keys int, do string) func(*rand.Rand) holdfast.Event {
	return func(rng *rand.Rand) holdfast.Event { return co.next(fmt.Sprint("k", rng.IntN(keys)), do) }
}

// delays are from before an event was published to its handler's write.
type delays struct {
	n             int64
	p50, p99, max time.Duration
}

// delays are those of the events that the condition chooses: w is written, e is effect.
func (co *consumers) delays(where string, args ...any) (d delays) {
	co.Helper()
	var p50, p99, most float64
	err := co.Db.QueryRow(co.Context(), `select count(*), coalesce(percentile_disc(0.5) within group (order by d), 0),
			coalesce(percentile_disc(0.99) within group (order by d), 0), coalesce(max(d), 0)
		from (select extract(epoch from e.at - w.at)::float8 d from effect e join written w using (id) where `+where+") x", args...).Scan(&d.n, &p50, &p99, &most)
	if err != nil {
		co.Fatal(err)
	}
	span := func(f float64) time.Duration { return time.Duration(f * float64(time.Second)).Round(time.Millisecond) }
	d.p50, d.p99, d.max = span(p50), span(p99), span(most)
	return d
}

func (d delays) String() string {
	return fmt.Sprintf("%d events delayed by p50 %v, p99 %v, at most %v", d.n, d.p50, d.p99, d.max)
}

// group is the consumer group of billing.
func (co *consumers) group() kafkago.GroupConfig { return endtoend.GroupOf("billing", co.Topics) }

func (co *consumers) consumeGroup(ctx context.Context, in *inbox.Inbox, g kafkago.GroupConfig) error {
	return endtoend.ConsumeGroup(ctx, in, co.Cluster.Brokers, g)
}

// consumer makes one node of billing in this process.
func (co *consumers) consumer(h inbox.Handler, change func(*inbox.Config)) *inbox.Inbox {
	co.Helper()
	c := inbox.Config{Consumer: "billing", Logger: co.Tail.Logger("billing")}
	if change != nil {
		change(&c)
	}
	c.Observer.OnHeld = func(_ inbox.Assignment, err error) {
		select {
		case co.held <- err:
		default:
		}
	}
	in, err := inbox.New(co.path.Pool(20), c)
	if err != nil {
		co.Fatal(err)
	}
	in.Handle("changed", h)
	return in
}

// refuses runs a node until it holds a partition, and returns why.
func (co *consumers) refuses(in *inbox.Inbox, g kafkago.GroupConfig) error {
	co.Helper()
	return co.holds(func(ctx context.Context) error { return co.consumeGroup(ctx, in, g) }, func() {})
}

// runsOut runs a node that ends by itself, and returns why.
func (co *consumers) runsOut(in *inbox.Inbox, g kafkago.GroupConfig) error {
	co.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	err := co.consumeGroup(ctx, in, g)
	if ctx.Err() != nil {
		co.Fatalf("it goes on, %s", co.Census())
	}
	return err
}

// holds runs a node until it holds a partition, and returns why. meanwhile is what happens beside it.
func (co *consumers) holds(consume func(context.Context) error, meanwhile func()) (why error) {
	co.Helper()
	select { // what an earlier node said
	case <-co.held:
	default:
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- consume(ctx) }()
	meanwhile()
	select {
	case why = <-co.held:
	case err := <-ended:
		co.Fatalf("it ended with %v", err)
	case <-time.After(wait.Limit()):
		co.Fatalf("it goes on, %s", co.Census())
	}
	cancel()
	if err := <-ended; err != nil {
		co.Errorf("a node that holds a partition, told to stop: %v", err)
	}
	return why
}

// outcomes counts what a node got for an answer.
type outcomes struct {
	mu sync.Mutex
	n  map[inbox.Outcome]int
}

func (o *outcomes) observe(c *inbox.Config) {
	c.Observer.OnReceive = func(r inbox.Received) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.n == nil {
			o.n = map[inbox.Outcome]int{}
		}
		o.n[r.Outcome]++
	}
}

func (o *outcomes) of(out inbox.Outcome) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n[out]
}

func (o *outcomes) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return fmt.Sprint(o.n)
}

// offsets sets the group's committed offsets, as an operator does while no node runs.
func (co *consumers) offsets(to map[int]int64) {
	co.Helper()
	var all []kafka.OffsetCommit
	for partition, offset := range to {
		all = append(all, kafka.OffsetCommit{Partition: partition, Offset: offset})
	}
	co.Await("the group's offsets are set", func() bool { // It has to be empty, and the broker learns that a moment late.
		res, err := co.Cluster.Client.OffsetCommit(co.Context(), &kafka.OffsetCommitRequest{GroupID: co.group().GroupID, GenerationID: -1,
			Topics: map[string][]kafka.OffsetCommit{co.Topic(): all}})
		if err != nil {
			return false
		}
		for _, p := range res.Topics[co.Topic()] {
			if p.Error != nil {
				return false
			}
		}
		return true
	})
}

// members is how many nodes the group has.
func (co *consumers) members() int {
	co.Helper()
	res, err := co.Cluster.Client.DescribeGroups(co.Context(), &kafka.DescribeGroupsRequest{GroupIDs: []string{co.group().GroupID}})
	if err != nil || len(res.Groups) != 1 {
		return 0
	}
	return len(res.Groups[0].Members)
}

// replayAll replays every open letter.
func (co *consumers) replayAll(d *dlq.DLQ, want int) {
	co.Helper()
	n, err := d.Replay(co.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "the test", Reason: "the cause is fixed"})
	if err != nil || n != want {
		co.Fatalf("replayed %d letters, %v; want %d", n, err, want)
	}
}

// positions is where billing stands in each partition.
func (co *consumers) positions() map[int]int64 {
	co.Helper()
	rows, err := co.Db.Query(co.Context(), "select partition, position from holdfast.consumer_position where consumer = 'billing' and topic = $1", co.Topic())
	if err != nil {
		co.Fatal(err)
	}
	all := map[int]int64{}
	var partition int
	var position int64
	if _, err := pgx.ForEachRow(rows, []any{&partition, &position}, func() error { all[partition] = position; return nil }); err != nil {
		co.Fatal(err)
	}
	return all
}

// ends judges once everything has had its effect and the nodes have read all of Kafka, and stops them.
func (co *consumers) ends(stops ...func()) endtoend.Verdict {
	co.Helper()
	return co.Finish(nil, stops, "billing")
}
