package migrations

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// publishEvent is an event as a job.
type publishEvent struct {
	ID      string          `json:"id"`
	Topic   string          `json:"topic"`
	Key     string          `json:"key"`
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload"`
}

func (publishEvent) Kind() string { return "publish_event" }

// publisher is the worker that many have written. Some of its attempts fail, so that there are jobs to retry.
type publisher struct {
	river.WorkerDefaults[publishEvent]
	sender *kafka.Writer
}

func (p *publisher) Work(ctx context.Context, job *river.Job[publishEvent]) error {
	if job.Attempt == 1 && rand.IntN(10) == 0 {
		return errors.New("Kafka is away")
	}
	return p.sender.WriteMessages(ctx, messages([]oldEvent{{job.Args.ID, job.Args.Key, job.Args.Type, string(job.Args.Payload)}})...)
}

const riverQueue = "outbox"

// river makes River's tables and starts a client.
func (s *service) river() *river.Client[pgx.Tx] {
	s.Helper()
	driver := riverpgxv5.New(s.Pool(10))
	silent := slog.New(slog.NewTextHandler(io.Discard, nil))
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: silent})
	if err == nil {
		_, err = migrator.Migrate(s.Context(), rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		s.Fatal(err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &publisher{sender: s.sender()})
	client, err := river.NewClient(driver, &river.Config{Logger: silent, Workers: workers, FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
		Queues: map[string]river.QueueConfig{riverQueue: {MaxWorkers: 10}}})
	if err == nil {
		err = client.Start(context.Background())
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
		defer cancel()
		_ = client.Stop(ctx)
	})
	return client
}

// pause pauses the queue, and waits until no job runs.
func (s *service) pause(client *river.Client[pgx.Tx]) {
	s.Helper()
	if err := client.QueuePause(s.Context(), riverQueue, nil); err != nil {
		s.Fatal(err)
	}
	running := func() int64 {
		return s.Count("select count(*) from river_job where state = 'running' and queue = $1", riverQueue)
	}
	s.Await("the queue is paused", func() bool {
		before := s.Count("select count(*) from river_job where state = 'available'")
		time.Sleep(300 * time.Millisecond) // sleep: nobody says that a producer has heard of the pause; one that works takes jobs meanwhile
		return running() == 0 && s.Count("select count(*) from river_job where state = 'available'") > before
	})
}

func TestRiver_RiverJobsMoveWhileServicesInsertThem(t *testing.T) {
	skip.InShort(t, "it takes 9 s beside the others")
	t.Parallel()
	s := setup(t, pgtest.New(t), "river")
	client := s.river()
	insert := func(ctx context.Context, tx pgx.Tx, e holdfast.Event, opts river.InsertOpts) (skipped bool, err error) {
		opts.Queue = riverQueue
		done, err := client.InsertTx(ctx, tx, publishEvent{e.ID, e.Topic, e.Key, e.Type, e.Payload}, &opts)
		return err == nil && done.UniqueSkippedAsDuplicate, err
	}
	intoRiver := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := insert(ctx, tx, e, river.InsertOpts{})
		return err
	}
	one := func(key string, opts river.InsertOpts, times int) holdfast.Event {
		t.Helper()
		e := s.event(key, 1)
		err := pgx.BeginFunc(t.Context(), s.Db, func(tx pgx.Tx) error {
			return s.record(t.Context(), tx, e, 1, func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				for i := range times {
					if skipped, err := insert(ctx, tx, e, opts); err != nil || skipped != (i > 0) {
						t.Errorf("insert %d: skipped %t, %v", i, skipped, err)
					}
				}
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	consumer := s.Consume("billing", endtoend.EffectOf("billing"), nil)
	stopService := s.write(intoRiver)
	s.goesOn("River publishes")
	later := river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)}
	one("later", later, 1)

	s.run("mapping.sql")
	s.checks(`insert into river_job (kind, queue, max_attempts, args) values ('publish_event', 'outbox', 5, '{"topic": "orders", "key": "k", "type": "changed", "payload": {}}')`,
		"the arguments have no id")

	// A job that runs may have published its event, or not.
	pgtest.Exec(t, s.Db, `insert into river_job (kind, queue, max_attempts, args, state, attempted_at) values ('publish_event', 'another', 5, '{}', 'running', now())`)
	s.pause(client)
	s.refuses("switch.sql", "1 jobs are running: pause the queue and wait until they have ended")
	pgtest.Exec(t, s.Db, "delete from river_job where queue = 'another'")

	stopRelay := s.relay(nil)
	s.run("switch.sql")
	s.goesOn("holdfast publishes")
	one("later too", later, 1)
	if n := s.Count("select count(*) from holdfast.scheduled"); n != 2 {
		t.Errorf("%d events are scheduled, want the one that was moved and the one that was forwarded", n)
	}
	pgtest.Exec(t, s.Db, "update holdfast.scheduled set due_at = now()")
	unique := one("unique", river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}, 2)
	if n := s.Count("select count(*) from holdfast.event where id = $1", unique.ID); n != 1 {
		t.Errorf("a job that River skipped as a duplicate: %d events", n)
	}
	stopDirect := s.write(direct)
	s.goesOn("holdfast publishes what changed services write")

	// Back, and there again.
	stopDirect()
	s.run("rollback.sql")
	s.awaitPublished()
	stopRelay()
	if err := client.QueueResume(t.Context(), riverQueue, nil); err != nil {
		t.Fatal(err)
	}
	s.goesOn("River publishes again")
	s.pause(client)
	stopRelay = s.relay(nil)
	s.run("switch.sql")
	stopDirect = s.write(direct)
	s.goesOn("holdfast publishes again")

	stopService()
	s.refuses("finish.sql", "a service has inserted a job of the kind publish_event within the last hour")
	pgtest.Exec(t, s.Db, "update river_job set created_at = created_at - interval '2 hours'")
	s.run("finish.sql")
	s.goesOn("holdfast publishes without the triggers")
	stopDirect()
	v := s.Finish([]func(){stopRelay}, []func(){consumer}, "billing").Except(oracle.Overtaken, oracle.OutOfTurn) // River's workers keep no order
	t.Log(v)
	v.MustHold(t)
	s.nothingTwice()
	s.holdfastKeepsOrder()
}

// holdfastKeepsOrder wants the events of each key that holdfast published in the order of their numbers. A repeat, of a request
// that was not answered in time, may come late.
func (s *service) holdfastKeepsOrder() {
	s.Helper()
	_, _, records := s.published()
	last, seen := map[string]int64{}, map[string]bool{}
	for _, r := range records {
		id, _ := r.Header("ce_id")
		if seen[id] {
			continue
		}
		seen[id] = true
		key, n := number(s, r.Value)
		if n < last[key] {
			s.Errorf("number %d of %q came after number %d", n, key, last[key])
		}
		last[key] = max(last[key], n)
	}
}
