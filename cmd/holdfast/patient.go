package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// patient is what doctor examines. Each method looks, and lets diagnosis.go decide.
type patient struct {
	pool   *pgxpool.Pool
	schema holdfast.SchemaConfig

	patience int64 // with transactions, in seconds; 0 is the default of each check
}

func (p *patient) in(sql string) string { return sqlschema.In(p.schema.Schema, sql) }

func (p *patient) drift(ctx context.Context) ([]finding, error) {
	there, built, err := holdfast.SchemaHashes(ctx, p.pool, p.schema)
	if err != nil && !errors.Is(err, holdfast.ErrSchemaMissing) {
		return nil, err
	}
	wrong := holdfast.Check(ctx, p.pool, p.schema)
	switch {
	case errors.Is(err, holdfast.ErrSchemaMissing), errors.Is(wrong, holdfast.ErrSchemaVersion):
		return []finding{fail("schema", "holdfast migrate", "%s", oneLine(wrong))}, nil
	case there != built:
		return []finding{fail("schema", "holdfast migrate --print", "the hash of the schema is %s, that of this build is %s: %s", there, built, oneLine(wrong))}, nil
	case wrong != nil:
		return []finding{fail("schema", "holdfast check", "%s", oneLine(wrong))}, nil
	}
	return []finding{ok("schema", "the schema has the hash of this build, %s", built)}, nil
}

// oneLine is an error without line ends.
func oneLine(err error) string {
	if err == nil {
		return "holdfast check finds no difference"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func (p *patient) rights(ctx context.Context, role string) (found []finding, err error) {
	warnings, err := holdfast.CheckRights(ctx, p.pool, p.schema, role)
	if err != nil {
		return []finding{fail("rights", "holdfast roles", "%s", oneLine(err))}, nil
	}
	for _, text := range warnings {
		found = append(found, warn("rights", "holdfast roles", "%s", text))
	}
	if role == "" && len(found) == 0 {
		return []finding{ok("rights", "not compared with a part: pass --role")}, nil
	}
	if len(found) == 0 {
		found = append(found, ok("rights", "the user has the rights of a %s", role))
	}
	return found, nil
}

func (p *patient) xmin(ctx context.Context) ([]finding, error) {
	rows, err := p.pool.Query(ctx, doctorXmin)
	if err != nil {
		return nil, err
	}
	holders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h xminHolder, err error) {
		err = row.Scan(&h.kind, &h.name, &h.pid, &h.seconds, &h.age)
		return h, err
	})
	return judgeXmin(holders, cmp.Or(p.patience, xminSeconds)), err
}

func (p *patient) log(ctx context.Context) ([]finding, error) {
	rows, err := p.pool.Query(ctx, p.in(statusHolders))
	if err != nil {
		return nil, err
	}
	holders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h holder, err error) {
		err = row.Scan(&h.pid, &h.gid, &h.name, &h.age)
		return h, err
	})
	return []finding{judgeLog(holders, cmp.Or(p.patience, heldLong))}, err
}

func (p *patient) connections(ctx context.Context, workers, size int) ([]finding, error) {
	var used, most int
	if err := p.pool.QueryRow(ctx, doctorConnections).Scan(&used, &most); err != nil {
		return nil, err
	}
	return []finding{judgePool(workers, size), judgeConnections(used, most)}, nil
}

// pooler finds out what a pooler does: in transaction mode a connection of the server is another client's as soon as the one
// before has no transaction. Other clients may take it meanwhile, so it looks a few times.
func (p *patient) pooler(ctx context.Context) ([]finding, error) {
	config := p.pool.Config().ConnConfig
	seen := poolerSeen{standalone: config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	var pair [2]*pgx.Conn
	for i := range pair {
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return nil, err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		pair[i] = conn
	}
	for range 5 {
		var first, second uint32
		var port int
		if err := pair[0].QueryRow(ctx, doctorSession).Scan(&first, &port); err != nil {
			return nil, err
		}
		if local, tcp := pair[0].PgConn().Conn().LocalAddr().(*net.TCPAddr); tcp && local.Port != port {
			seen.between = true
		}
		tx, err := pair[1].Begin(ctx)
		if err != nil && strings.Contains(err.Error(), "statement pooling") {
			seen.statement = true
			break
		}
		if err == nil {
			err = errors.Join(tx.QueryRow(ctx, doctorSession).Scan(&second, &port), tx.Rollback(ctx))
		}
		if err != nil {
			return nil, err
		}
		seen.shared = seen.shared || first == second
	}
	return []finding{judgePooler(seen)}, nil
}

func (p *patient) clock(ctx context.Context) ([]finding, error) {
	var theirs time.Time
	if err := p.pool.Ping(ctx); err != nil { // a connection is not to be made while the time is taken
		return nil, err
	}
	asked := time.Now()
	if err := p.pool.QueryRow(ctx, doctorClock).Scan(&theirs); err != nil {
		return nil, err
	}
	trip := time.Since(asked)
	return []finding{judgeClock(theirs.Sub(asked.Add(trip/2)), trip)}, nil
}

func (p *patient) names(ctx context.Context, pause time.Duration) ([]finding, error) {
	before, err := p.lanes(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(pause):
	}
	after, err := p.lanes(ctx)
	return []finding{judgeNames(before, after)}, err
}

func (p *patient) lanes(ctx context.Context) (map[int]laneLook, error) {
	rows, err := p.pool.Query(ctx, p.in(doctorLanes))
	if err != nil {
		return nil, err
	}
	lanes := map[int]laneLook{}
	var lane int
	var look laneLook
	_, err = pgx.ForEachRow(rows, []any{&lane, &look.owner, &look.epoch}, func() error { lanes[lane] = look; return nil })
	return lanes, err
}

func (p *patient) groups(ctx context.Context) ([]finding, error) {
	rows, err := p.pool.Query(ctx, p.in(doctorGroups))
	if err != nil {
		return nil, err
	}
	groups := map[string][]string{}
	var consumer string
	var of []string
	_, err = pgx.ForEachRow(rows, []any{&consumer, &of}, func() error { groups[consumer] = slices.Clone(of); return nil })
	return []finding{judgeGroups(groups)}, err
}

// kafka asks for the topics that consumers read, that events wait for, and that were named.
func (p *patient) kafka(ctx context.Context, client *kafkaClient, topics []string) ([]finding, error) {
	if client == nil {
		return []finding{ok("kafka", "not asked: pass --brokers")}, nil
	}
	known, err := p.topics(ctx)
	if err != nil {
		return nil, err
	}
	topics = append(slices.Clone(topics), known...)
	slices.Sort(topics)
	var largest int
	if err := p.pool.QueryRow(ctx, p.in(doctorLargest)).Scan(&largest); err != nil {
		return nil, err
	}
	seen, err := client.examine(ctx, slices.Compact(topics))
	if err != nil {
		return []finding{fail("kafka", "holdfast doctor --brokers HOST:PORT,... with --tls or --sasl-mechanism as the brokers ask for", "no broker answers: %s", clean(err.Error()))}, nil
	}
	found := []finding{ok("kafka", "the brokers answer; %s checked", count(len(seen), "topic"))}
	for _, t := range seen {
		t.largest = largest
		found = append(found, judgeTopic(t)...)
	}
	return found, nil
}

func (p *patient) topics(ctx context.Context) (topics []string, err error) {
	err = pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, p.in(doctorTopics))
		if err != nil {
			return err
		}
		if topics, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, statusSettings); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, p.in(statusHeld), 1, manySpots); err != nil {
			return err
		}
		var lane, partition, events int64
		var topic string
		_, err = pgx.ForEachRow(rows, []any{&lane, &topic, &partition, &events}, func() error { topics = append(topics, topic); return nil })
		return err
	})
	return topics, err
}

// examine asks for the partitions and the configuration of topics.
func (k *kafkaClient) examine(ctx context.Context, topics []string) (seen []topicSeen, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*kafkaTimeout)
	defer cancel()
	if len(topics) == 0 {
		_, err := k.ApiVersions(ctx, &kafka.ApiVersionsRequest{})
		return nil, err
	}
	meta, err := k.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, fmt.Errorf("ask for topics: %w", err)
	}
	request := &kafka.DescribeConfigsRequest{}
	for _, t := range meta.Topics {
		s := topicSeen{name: t.Name, err: t.Error}
		for _, p := range t.Partitions {
			if s.replicas == 0 || len(p.Replicas) < s.replicas {
				s.replicas = len(p.Replicas)
			}
		}
		if s.err == nil {
			request.Resources = append(request.Resources, kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: t.Name, ConfigNames: []string{"max.message.bytes", "min.insync.replicas"}})
		}
		seen = append(seen, s)
	}
	if len(request.Resources) == 0 {
		return seen, nil
	}
	configs, err := k.DescribeConfigs(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("ask for the configuration of topics: %w", err)
	}
	for _, r := range configs.Resources {
		i := slices.IndexFunc(seen, func(s topicSeen) bool { return s.name == r.ResourceName })
		if i < 0 {
			continue
		}
		seen[i].configsForbidden = r.Error != nil
		for _, c := range r.ConfigEntries {
			n, err := strconv.Atoi(c.ConfigValue)
			switch {
			case err != nil:
			case c.ConfigName == "max.message.bytes":
				seen[i].maxMessage = n
			case c.ConfigName == "min.insync.replicas":
				seen[i].minInsync = n
			}
		}
	}
	return seen, nil
}
