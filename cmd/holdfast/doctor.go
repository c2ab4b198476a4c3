package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/doctor"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

type doctorCmd struct {
	JSON     bool          `help:"Print one JSON object with the checks and what needs a person." name:"json"`
	Role     string        `help:"Check also the user's rights as producer, relay, consumer, web, operator or reader." enum:"producer,relay,consumer,web,operator,reader," default:"" placeholder:"PART"`
	Workers  int           `help:"Workers of a consumer (inbox.Config.Workers), to check that its pool is large enough." placeholder:"N"`
	PoolSize int           `help:"Connections of that pool. Defaults to pool_max_conns, or to pgxpool's default." placeholder:"N"`
	Pause    time.Duration `help:"Time between two looks, which show two relays of one name and two groups of a consumer." default:"4s"`
	Topics   []string      `help:"Topics to check besides those that consumers read and relays wait for. Needs --brokers." name:"topic" placeholder:"TOPIC" sep:","`
	Brokers  []string      `help:"Kafka brokers, separated by commas, to check topics too." placeholder:"HOST:PORT" env:"KAFKA_BROKERS" sep:","`

	Kafka kafkaFlags `embed:"" group:"kafka"`
}

func (d *doctorCmd) Run(p *program.Program) error {
	var kafka *doctor.Kafka
	if len(d.Brokers) > 0 {
		connection, err := d.Kafka.connection(d.Brokers, os.Getenv)
		if err != nil {
			return program.UsageError{Err: err}
		}
		kafka = doctor.NewKafka(connection)
		defer kafka.Close()
	}
	text, err := p.DatabaseURL()
	if err != nil {
		return err
	}
	said := d.PoolSize > 0
	if !said {
		if config, err := pgxpool.ParseConfig(text); err == nil {
			d.PoolSize = int(config.MaxConns)
		}
	}
	pool, err := p.Pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	who := &doctor.Doctor{Pool: pool, Schema: p.Schema()}
	findings := who.Examine(p.Ctx, doctor.Options{
		Role:     d.Role,
		Workers:  d.Workers,
		PoolSize: d.PoolSize,
		Said:     said,
		Pause:    d.Pause,
		Kafka:    kafka,
		Topics:   d.Topics,
	})
	needs, unread := who.Needs(p.Ctx)
	findings = append(findings, unread...)
	needy, err := d.print(p.Out, findings, needs)
	if err == nil && needy {
		return program.ErrNeedsPerson
	}
	return err
}

// print says whether a check failed, or something needs a person. needs is nil if it could not be read.
func (d *doctorCmd) print(out io.Writer, findings []doctor.Finding, needs []state.Need) (needy bool, err error) {
	needy = len(needs) > 0
	for _, f := range findings {
		needy = needy || f.State == doctor.Fail
	}
	if d.JSON {
		return needy, json.NewEncoder(out).Encode(struct {
			Checks []doctor.Finding `json:"checks"`
			Needs  []string         `json:"needs_a_person,omitzero"`
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
	switch {
	case len(needs) == 0 && needy:
		fmt.Fprintln(out, "\na check fails: see above")
	case needs != nil:
		printNeeds(out, needs)
	}
	return needy, nil
}
