package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/alecthomas/kong"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sidecar"
)

// relayCmd is a relay as a process of its own.
type relayCmd struct {
	Config      string `help:"YAML file with settings. Its keys are the names of flags without dashes, also of those of Kafka and of the database, and databases. A flag goes before its variable, and that before the file." placeholder:"FILE" env:"HOLDFAST_CONFIG"`
	PrintConfig bool   `help:"Print the settings, each with where it is from, and do nothing else."`

	Listen string   `help:"Address and port for /metrics, /livez and /readyz, as :9090. It has no authentication." placeholder:"ADDRESS" env:"HOLDFAST_LISTEN"`
	Pprof  bool     `help:"Serve Go's profiles at /debug/pprof/ too. They show what the code does, and take time to record. Needs --listen." env:"HOLDFAST_PPROF"`
	Log    logFlags `embed:"" prefix:"log-"`

	Name     string        `help:"Name of this relay; two relays of a database may not share one. Defaults to host, process id and a random part." placeholder:"NAME" env:"HOLDFAST_RELAY_NAME"`
	Database databaseFlags `embed:""`

	Brokers []string `help:"Kafka brokers as host:port, separated by commas." placeholder:"HOST:PORT" env:"KAFKA_BROKERS" sep:","`

	Kafka kafkaFlags `embed:"" group:"kafka"`

	file *relayFile // nil without --config
}

// BeforeResolve is called by kong between the command line and the file.
func (r *relayCmd) BeforeResolve(k *kong.Context) error {
	name := ""
	for flag := range relayFlags(k) {
		if flag.Name == "config" {
			name, _ = k.FlagValue(flag).(string)
		}
	}
	if name == "" {
		return nil
	}
	r.file = readRelayFile(name, flagsByName(k))
	k.AddResolver(r.file)
	return nil
}

func (r *relayCmd) Run(p *program.Program, k *kong.Context) error {
	connection, wrong := r.Kafka.connection(r.Brokers, os.Getenv)
	connection.ClientID = "holdfast-relay"
	problems := []error{wrong}
	if r.file != nil {
		problems = append(r.file.problems, problems...)
	}
	if r.Pprof && r.Listen == "" {
		problems = append(problems, errors.New("--pprof is set: it must be with --listen"))
	}
	problems = append(problems, checkListen(r.Listen))
	databases, err := r.databases(p, flagsByName(k))
	problems = append(problems, err)
	if r.PrintConfig {
		if err := errors.Join(problems...); err != nil {
			return program.UsageError{Err: err}
		}
		return r.printConfig(p, k)
	}
	if len(r.Brokers) == 0 {
		problems = append(problems, errors.New("--brokers is empty: it must have the address, host:port, of at least one broker: set it, KAFKA_BROKERS, or brokers in the file of --config"))
		connection.Brokers = []string{"none:9092"} // so that what else is wrong is said, and this once
	}
	several := r.file != nil && len(r.file.databases) > 0
	logger := r.Log.logger(p.ErrOut)
	var relayed []sidecar.Database
	for _, d := range databases {
		relayed = append(relayed, sidecar.Database{
			Name:   d.name,
			URL:    d.url,
			Config: d.config(r.Name),
		})
	}
	s, err := sidecar.New(p.Ctx, relayed, several, connection, logger, program.OpenPool)
	if err == nil {
		defer s.Close()
	}
	if err := errors.Join(append(problems, err)...); err != nil {
		return program.UsageError{Err: err}
	}
	if r.Listen != "" {
		if err := s.Listen(p.Ctx, r.Listen, r.Pprof); err != nil {
			return err
		}
	} else if !several {
		// Nobody asks how it is: that the address of the database is wrong must show now.
		if err := s.Reach(p.Ctx, program.Answers); err != nil {
			return err
		}
	}
	logger.Info("relay started", "brokers", len(r.Brokers), "schema", p.Database.Schema, "databases", len(databases))
	return s.Run(p.Ctx)
}

// checkListen finds what is wrong with an address before anything listens there, so that it is said with what else is wrong.
func checkListen(address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("--listen is %s: it must be an address and a port, as :9090", address)
	}
	return nil
}
