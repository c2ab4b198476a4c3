package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

type doctorCmd struct {
	JSON     bool          `help:"Print one JSON object with the checks and what needs a person." name:"json"`
	Role     string        `help:"Check too that the database user has the rights of this part: producer, relay, consumer, web, operator or reader." enum:"producer,relay,consumer,web,operator,reader," default:"" placeholder:"PART"`
	Workers  int           `help:"Workers of a consumer (inbox.Config.Workers) that uses this connection string: to check that its pool is large enough." placeholder:"N"`
	PoolSize int           `help:"Connections of that pool. Defaults to pool_max_conns of the connection string, or to pgxpool's default." placeholder:"N"`
	Pause    time.Duration `help:"Time between two looks at lanes and partitions, which show two relays of one name and two groups of one consumer." default:"4s"`
	Topics   []string      `help:"Topics to check, beside those that consumers read and relays wait for. Needs --brokers." name:"topic" placeholder:"TOPIC" sep:","`
	Brokers  []string      `help:"Kafka brokers as host:port, separated by commas: to check topics too. Defaults to none." placeholder:"HOST:PORT" env:"KAFKA_BROKERS" sep:","`

	Kafka kafkaFlags `embed:""`

	said bool // PoolSize
}

// The states of a finding.
const (
	stateOK   = "ok"
	stateSkip = "skip" // it was not looked at
	stateWarn = "warn" // it works, and may not for long
	stateFail = "fail" // something does not work
)

// finding is what a check says: one sentence, and the command that helps.
type finding struct {
	Check   string `json:"check"`
	State   string `json:"state"`
	Says    string `json:"says"`
	Command string `json:"command"` // "" if it is ok
}

func ok(check, format string, args ...any) finding {
	return finding{Check: check, State: stateOK, Says: fmt.Sprintf(format, args...)}
}

// notMade says of a check that was not made which command makes it.
func notMade(check, command, format string, args ...any) finding {
	return finding{check, stateSkip, fmt.Sprintf(format, args...), command}
}

func warn(check, command, format string, args ...any) finding {
	return finding{check, stateWarn, fmt.Sprintf(format, args...), command}
}

func fail(check, command, format string, args ...any) finding {
	return finding{check, stateFail, fmt.Sprintf(format, args...), command}
}

func (d *doctorCmd) Run(p *program) error {
	var client *kafkaClient
	if len(d.Brokers) > 0 {
		connection, err := d.Kafka.connection(d.Brokers, os.Getenv)
		if err != nil {
			return usageError{err}
		}
		client = newKafkaClient(connection)
		defer client.close()
	}
	text, err := p.databaseURL()
	if err != nil {
		return err
	}
	if d.said = d.PoolSize > 0; !d.said {
		if config, err := pgxpool.ParseConfig(text); err == nil {
			d.PoolSize = int(config.MaxConns)
		}
	}
	pool, err := p.pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	who := &patient{pool: pool, schema: p.schema()}
	findings := d.examine(p.ctx, who, client)
	needs, unread := who.needs(p.ctx)
	findings = append(findings, unread...)
	needy, err := d.print(p.out, findings, needs)
	if err == nil && needy {
		return errNeedsPerson
	}
	return err
}

// examine makes all checks. A check that cannot be made is one that fails: the others are made all the same.
func (d *doctorCmd) examine(ctx context.Context, p *patient, client *kafkaClient) (findings []finding) {
	for _, c := range []struct {
		name string
		make func(context.Context) ([]finding, error)
	}{
		{"schema", p.drift},
		{"rights", func(ctx context.Context) ([]finding, error) { return p.rights(ctx, d.Role) }},
		{"xmin", p.xmin},
		{"log", p.log},
		{"connections", func(ctx context.Context) ([]finding, error) { return p.connections(ctx, d.Workers, d.PoolSize, d.said) }},
		{"pooler", p.pooler},
		{"clock", p.clock},
		{"relay names and groups", func(ctx context.Context) ([]finding, error) { return p.twice(ctx, d.Pause) }},
		{"consumers", p.consumers},
		{"kafka", func(ctx context.Context) ([]finding, error) { return p.kafka(ctx, client, d.Topics) }},
	} {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second+d.Pause)
		found, err := c.make(ctx)
		cancel()
		if err != nil {
			found = append(found, fail(c.name, "holdfast check", "this could not be looked at: %s", terminal.Clean(err.Error())))
		}
		findings = append(findings, found...)
	}
	return findings
}

// print says whether a check failed, or something needs a person. needs is nil if it could not be read.
func (d *doctorCmd) print(out io.Writer, findings []finding, needs []state.Need) (needy bool, err error) {
	needy = len(needs) > 0
	for _, f := range findings {
		needy = needy || f.State == stateFail
	}
	if d.JSON {
		return needy, json.NewEncoder(out).Encode(struct {
			Checks []finding `json:"checks"`
			Needs  []string  `json:"needs_a_person,omitzero"`
		}{findings, texts(needs)})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.State, f.Check, terminal.Clean(f.Says))
		if f.Command != "" {
			fmt.Fprintf(w, "\t\t  %s\n", terminal.Clean(f.Command))
		}
	}
	if err := w.Flush(); err != nil {
		return needy, err
	}
	if needs != nil {
		printNeeds(out, needs)
	}
	return needy, nil
}
