package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// orderPlaced is an event as a job.
type orderPlaced struct {
	Key     string `json:"key"`
	Payload []byte `json:"payload"`
}

func (orderPlaced) Kind() string { return "order.placed" }

// orderWorker completes each job in a transaction of its own, in which a handler would do its work.
type orderWorker struct {
	river.WorkerDefaults[orderPlaced]
	pool  *pgxpool.Pool
	watch *stopwatch
}

func (w *orderWorker) Work(ctx context.Context, job *river.Job[orderPlaced]) error {
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		w.watch.count()
	}
	return err
}

// consumeByRiver handles every event once as a job of River. River has no Kafka: the jobs are in its table before it begins. It
// looks for jobs every 10 ms at most, where its default of 100 ms would bound it to 1,000 jobs a second; 100 workers as in its
// documentation.
func (s *servers) consumeByRiver(ctx context.Context, events int) (float64, error) {
	pool, drop, err := s.empty(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return 0, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return 0, err
	}
	done := make(chan struct{})
	watch := &stopwatch{events: int64(events), stop: func() { close(done) }}
	workers := river.NewWorkers()
	river.AddWorker(workers, &orderWorker{pool: pool, watch: watch})
	client, err := river.NewClient(driver, &river.Config{
		Logger:        silent,
		Workers:       workers,
		FetchCooldown: 10 * time.Millisecond,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
	})
	if err != nil {
		return 0, err
	}
	if err := inTransactions(events, func(from, to int) error {
		var jobs []river.InsertManyParams
		for n := from; n < to; n++ {
			key, payload := order(n)
			jobs = append(jobs, river.InsertManyParams{Args: orderPlaced{key, payload}})
		}
		_, err := client.InsertMany(ctx, jobs)
		return err
	}); err != nil {
		return 0, err
	}
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
	if err := client.Stop(context.WithoutCancel(ctx)); err != nil {
		return 0, err
	}
	return watch.perSecond()
}
