package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/rig/docker"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// partitions is how many each topic has.
const partitions = 8

// servers is what all contestants work on. Each run has a database and a topic of its own.
type servers struct {
	about string
	dsn   string           // of the maintenance database
	pg    *pgserver.Server // nil if the server is not ours
	kafka *kafkaserver.Server
	admin *pgxpool.Pool
	made  int
}

// startServers uses the servers that DATABASE_URL and KAFKA_BROKERS name, and starts those that are not named.
func startServers(ctx context.Context) (_ *servers, err error) {
	s := &servers{dsn: os.Getenv("DATABASE_URL")}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.dsn == "" { // the settings of a fresh installation, durability included
		if s.pg, err = pgserver.Start(ctx, pgserver.Options{}); err != nil {
			return nil, err
		}
		s.dsn = s.pg.DSN
	}
	if s.admin, err = pgxpool.New(ctx, s.dsn); err != nil {
		return nil, err
	}
	if brokers := os.Getenv("KAFKA_BROKERS"); brokers != "" {
		s.kafka, err = kafkaserver.External(ctx, strings.Split(brokers, ",")...)
	} else if s.kafka, err = kafkaserver.Container(ctx, kafkaserver.ContainerOptions{}); errors.Is(err, docker.ErrNoDocker) {
		s.kafka, err = kafkaserver.InProcess()
	}
	if err != nil {
		return nil, err
	}
	var version string
	if err := s.admin.QueryRow(ctx, "select current_setting('server_version')").Scan(&version); err != nil {
		return nil, err
	}
	s.about = fmt.Sprintf("PostgreSQL %s, Kafka %s", version, s.kafka.Kind)
	return s, nil
}

func (s *servers) stop() {
	if s.kafka != nil {
		s.kafka.Stop()
	}
	if s.admin != nil {
		s.admin.Close()
	}
	if s.pg != nil {
		s.pg.Stop()
	}
}

// database makes an empty one, and returns its address and what drops it.
func (s *servers) database(ctx context.Context) (dsn string, drop func(), err error) {
	s.made++
	name := fmt.Sprintf("peer_%d_%d", os.Getpid(), s.made)
	if _, err := s.admin.Exec(ctx, "create database "+name); err != nil {
		return "", nil, err
	}
	u, err := url.Parse(s.dsn)
	if err != nil {
		return "", nil, errors.New("DATABASE_URL cannot be parsed as a URL")
	}
	u.Path = "/" + name
	return u.String(), func() {
		_, _ = s.admin.Exec(context.WithoutCancel(ctx), "drop database if exists "+name+" with (force)")
	}, nil
}

// topic makes an empty one, and returns its name and what deletes it.
func (s *servers) topic(ctx context.Context) (name string, drop func(), err error) {
	s.made++
	name = fmt.Sprintf("peer-%d-%d", os.Getpid(), s.made)
	return name, func() { _ = s.kafka.DeleteTopic(context.WithoutCancel(ctx), name) }, s.kafka.CreateTopic(ctx, name, partitions, nil)
}

// arrived checks that a topic has every event: a figure of a run that lost some is none.
func (s *servers) arrived(ctx context.Context, topic string, events int) error {
	records, err := s.kafka.ReadAll(ctx, topic)
	if err != nil {
		return err
	}
	distinct := map[string]bool{}
	for _, r := range records {
		distinct[string(r.Value)] = true
	}
	if len(distinct) != events {
		return fmt.Errorf("%d of %d events arrived, in %d records", len(distinct), events, len(records))
	}
	return nil
}

// order is the n-th event that everybody sends: 300 bytes of JSON, no two alike.
func order(n int) (key string, payload []byte) {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	text := fmt.Sprintf(`{"order":%d,"customer":%d,"sku":"%016x","note":"`, n, r.IntN(1_000_000), r.Uint64())
	for len(text) < 298 {
		text += fmt.Sprintf("%08x", r.Uint32())
	}
	return fmt.Sprintf("order-%05d", r.IntN(10_000)), []byte(text[:298] + `"}`)
}

// inTransactions gives the numbers of all events to 16 writers, in transactions of ten. Nobody measures this.
func inTransactions(events int, write func(from, to int) error) error {
	const writers, each = 16, 10
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for from := w * each; from < events && errs[w] == nil; from += writers * each {
				errs[w] = write(from, min(from+each, events))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// migrated makes a database with holdfast's schema and a pool on it.
func (s *servers) migrated(ctx context.Context) (pool *pgxpool.Pool, drop func(), err error) {
	pool, drop, err = s.empty(ctx)
	if err == nil {
		err = holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{})
	}
	return pool, drop, err
}

// empty makes an empty database and a pool on it, with connections to spare.
func (s *servers) empty(ctx context.Context) (pool *pgxpool.Pool, drop func(), err error) {
	dsn, dropDatabase, err := s.database(ctx)
	if err != nil {
		return nil, nil, err
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		dropDatabase()
		return nil, nil, err
	}
	config.MaxConns = 24
	if pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		dropDatabase()
		return nil, nil, err
	}
	return pool, func() { pool.Close(); dropDatabase() }, nil
}
