package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sidecar"
	"github.com/holdfast-go/holdfast/relay"
)

// mainDatabase is the name of the database where --config has no list.
const mainDatabase = "main"

// databaseFlags are the settings of a relay that databases of one process may have each their own.
type databaseFlags struct {
	Lease        time.Duration `help:"Time before another relay takes over from one that died." default:"5s" env:"HOLDFAST_LEASE"`
	BatchSize    int           `help:"Number of events to read and publish together." default:"2000" env:"HOLDFAST_BATCH_SIZE"`
	HoldKey      bool          `help:"Keep later events of a key waiting after a dead letter. The same for all relays of a database." env:"HOLDFAST_HOLD_KEY"`
	LetterTo     string        `help:"Topic to publish dead letters to. An asterisk stands for the event's topic, as in *.dlq." name:"dead-letter-topic" aliases:"letter-topic" placeholder:"TOPIC" env:"HOLDFAST_DEAD_LETTER_TOPIC"`
	Tenants      string        `help:"What ends the tenant's name in a key, as / in acme/order-7: events of quiet tenants then overtake the backlog of others." name:"tenant-separator" placeholder:"TEXT" env:"HOLDFAST_TENANT_SEPARATOR"`
	MemoryBudget int64         `help:"Bytes of events in memory at a time, for each database. Defaults to 134217728." placeholder:"BYTES" env:"HOLDFAST_MEMORY_BUDGET"`
}

// database is a database that the process relays.
type database struct {
	name   string
	url    string // "" leaves it to Postgres' own variables
	schema string
	flags  databaseFlags
}

// databases are those of the file's list, or the one of the flags. The error has every problem.
func (r *relayCmd) databases(p *program.Program, flags map[string]*kong.Flag) ([]database, error) {
	if r.file == nil || len(r.file.databases) == 0 {
		url, err := p.DatabaseURL()
		return []database{{name: mainDatabase, url: url, schema: p.Database.Schema, flags: r.Database}}, err
	}
	var all []database
	var problems []error
	for _, name := range []string{"database-url", "database-url-file"} {
		if text := flags[name].Target.String(); text != "" {
			problems = append(problems, fmt.Errorf("--%s is set, or its variable, or its line of %s, and that file has databases too: it must be one of them", name, r.file.name))
		}
	}
	for _, e := range r.file.databases {
		d := database{name: e.name, schema: p.Database.Schema, flags: r.Database}
		var err error
		if d.url, err = e.url.read(); err != nil {
			problems = append(problems, sidecar.OfDatabase(e.name, err))
		}
		d.apply(e.flags, r.file.free, flags)
		all = append(all, d)
	}
	return all, errors.Join(problems...)
}

// config is that of its relay.
func (d database) config(name string) relay.Config {
	return relay.Config{
		Schema:          d.schema,
		Name:            name,
		Lease:           d.flags.Lease,
		BatchSize:       d.flags.BatchSize,
		TenantSeparator: d.flags.Tenants,
		HoldKey:         d.flags.HoldKey,
		DeadLetterTopic: d.flags.LetterTo,
		MemoryBudget:    d.flags.MemoryBudget,
	}
}

// fields are pointers to the settings of perDatabase.
func (d *database) fields() map[string]any {
	return map[string]any{"schema": &d.schema, "lease": &d.flags.Lease, "batch-size": &d.flags.BatchSize, "tenant-separator": &d.flags.Tenants, "hold-key": &d.flags.HoldKey,
		"dead-letter-topic": &d.flags.LetterTo, "memory-budget": &d.flags.MemoryBudget}
}

// apply sets what an entry says, unless the command line or the environment says it for all databases.
func (d *database) apply(said map[string]string, free map[string]bool, flags map[string]*kong.Flag) {
	for name, field := range d.fields() {
		if text, ok := said[name]; ok && free[name] {
			if err := decode(flags[name], text, reflect.ValueOf(field).Elem()); err != nil {
				panic(fmt.Sprintf("%s was checked: %v", name, err))
			}
		}
	}
}

// read is the connection string.
func (s connectionSource) read() (string, error) {
	switch {
	case s == connectionSource{}: // which the file's problems say
		return "", nil
	case s.url != "":
		return s.url, nil
	case s.env != "":
		if text := os.Getenv(s.env); text != "" {
			return text, nil
		}
		return "", fmt.Errorf("url-env is %s: it must be a variable that has the connection string", s.env)
	}
	content, err := os.ReadFile(s.file)
	if err != nil {
		return "", fmt.Errorf("url-file is %s: it must be a file that can be read: %w", s.file, err)
	}
	if text := strings.TrimSpace(string(content)); text != "" {
		return text, nil
	}
	return "", fmt.Errorf("url-file is %s, which is empty: it must have the connection string", s.file)
}
