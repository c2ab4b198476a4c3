// Command holdfast administers an installation. It migrates the schema, runs a relay for services that cannot embed
// one, shows what needs a person, and works on dead letters.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operate"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/waiting"
)

// cli is the command line; kong reads it from the tags.
type cli struct {
	program.ConnectionFlags

	Migrate migrateCmd      `cmd:"" help:"Create the schema, or upgrade it."`
	Check   checkCmd        `cmd:"" help:"Check that the schema is complete, and say how to fix it."`
	Roles   rolesCmd        `cmd:"" help:"Create the database roles of each part, with what it needs and nothing else."`
	Relay   relayCmd        `cmd:"" help:"Publish events to Kafka until stopped."`
	Status  statusCmd       `cmd:"" help:"Show lanes, log, queues and dead letters, and what needs a person."`
	Find    operate.Find    `cmd:"" help:"Find an event by its id, wherever it is."`
	Doctor  doctorCmd       `cmd:"" help:"Look for what is set up wrong: schema, rights, transactions, pooler, clocks, topics."`
	Pause   operate.Pause   `cmd:"" help:"Pause a topic, a consumer, or a key of a consumer."`
	Resume  operate.Resume  `cmd:"" help:"End a pause."`
	Waiting operate.Waiting `cmd:"" help:"Group, list, show, retry, give up, discard, redirect and cancel events that wait."`
	DLQ     operate.DLQ     `cmd:"" name:"dlq" help:"Group, list, show, edit, replay, discard and purge dead letters."`
	Tenant  operate.Tenant  `cmd:"" help:"Export and erase what is kept of a tenant."`
	Console consoleCmd      `cmd:"" help:"Serve a page for all of this, on a loopback address."`
	Adopt   adoptCmd        `cmd:"" help:"Let relays run on a restored copy of a database."`
	Version versionCmd      `cmd:"" help:"Print the version."`
	Help    helpCmd         `cmd:"" help:"Print the help of a command, or of all."`

	Completion completionCmd     `cmd:"" help:"Print the script that completes command lines in a shell."`
	Parked     operate.Parked    `cmd:"" hidden:"" help:"Holdfast waiting, now."`
	Stored     operate.Stored    `cmd:"" hidden:"" help:"Holdfast waiting, now."`
	Scheduled  operate.Scheduled `cmd:"" hidden:"" help:"Holdfast waiting, now."`
	Complete   completeCmd       `cmd:"" hidden:"" help:"Answer a shell that completes a command line."`
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the process. It returns the exit status: 0 if done, 1 if it failed, status found something that
// needs a person or find found nothing, 2 if the command line is wrong.
func run(args []string, out, errOut io.Writer) int {
	var c cli
	exited := -1
	parser, err := kong.New(&c, kong.Name("holdfast"), kong.Description("Transactional outbox and inbox on Postgres and Kafka."),
		kong.Writers(out, errOut), kong.Exit(func(status int) { exited = status }), kong.UsageOnError(),
		kong.Help(printHelp), kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.ValueFormatter(formatValue))
	if err != nil {
		panic(err)
	}
	parser.Model.Detail = about + "\n\n" + exitTable()
	if len(args) == 1 && args[0] == "--version" { // no flag of kong's: dlq show has one of that name
		printVersion(out)
		return 0
	}
	parsed, err := parser.Parse(args)
	if exited >= 0 {
		return exited // --help
	}
	if err != nil {
		fmt.Fprintf(errOut, "holdfast: %v\nholdfast --help lists the commands.\n", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err = parsed.Run(&program.Program{
		Ctx:      ctx,
		Out:      out,
		ErrOut:   errOut,
		Database: c.ConnectionFlags,
		Model:    parser.Model,
		Terminal: program.PersonAt(),
		Given:    program.GivenBy(parsed),
	})
	var usage program.UsageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), errors.Is(err, waiting.ErrInvalid):
		fmt.Fprintf(errOut, "holdfast: %v\nholdfast --help lists the commands.\n", err)
		return 2
	case !errors.Is(err, program.ErrNeedsPerson):
		fmt.Fprintf(errOut, "holdfast: %v\n", err)
	}
	return 1
}

type migrateCmd struct {
	Print      bool   `help:"Print the SQL of a new installation, and change nothing."`
	From       int    `help:"With --print: print the SQL that upgrades from this version of the schema." placeholder:"VERSION"`
	For        string `help:"With --print: for this tool, which begins and commits: goose, tern, atlas or flyway." enum:",goose,tern,atlas,flyway" default:"" placeholder:"TOOL"`
	Lanes      int    `help:"Number of lanes of a new installation. At most this many relays share the work. It cannot be changed later. Defaults to 8." placeholder:"N"`
	MaxPayload int    `help:"Maximum size of an event's payload. Defaults to 1032192, or to what is installed." placeholder:"BYTES"`
}

func (m *migrateCmd) Run(p *program.Program) error {
	c := p.Schema()
	c.Lanes, c.MaxPayload = m.Lanes, m.MaxPayload
	switch {
	case m.From != 0 && !m.Print:
		return program.UsageError{Err: errors.New("from is set: it must be with --print, because migrate finds the installed version itself")}
	case m.For != "" && !m.Print:
		return program.UsageError{Err: errors.New("for is set: it must be with --print, because migrate runs the script itself")}
	case m.Print:
		script, err := holdfast.SQL(c)
		if m.From != 0 {
			script, err = holdfast.UpgradeSQL(c, m.From)
		}
		if err != nil {
			return err
		}
		_, err = io.WriteString(p.Out, forTool(m.For, script))
		return err
	}
	pool, err := p.Pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := holdfast.Migrate(p.Ctx, pool, c); err != nil {
		return err
	}
	fmt.Fprintf(p.Out, "schema %s is at version %d\n", c.Schema, holdfast.SchemaVersion)
	return nil
}

type checkCmd struct {
	Role string `help:"Check also the user's rights as producer, relay, consumer, web, operator or reader." enum:"producer,relay,consumer,web,operator,reader," default:"" placeholder:"PART"`
}

func (c checkCmd) Run(p *program.Program) error {
	pool, err := p.Pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := holdfast.Check(p.Ctx, pool, p.Schema()); err != nil {
		return err
	}
	fmt.Fprintf(p.Out, "schema %s is complete, at version %d\n", p.Database.Schema, holdfast.SchemaVersion)
	warnings, err := holdfast.CheckRights(p.Ctx, pool, p.Schema(), c.Role)
	for _, text := range warnings {
		fmt.Fprintf(p.ErrOut, "warning: %s\n", text)
	}
	if err == nil && c.Role != "" {
		fmt.Fprintf(p.Out, "the database user has the rights of a %s\n", c.Role)
	}
	return err
}

type versionCmd struct{}

func (versionCmd) Run(p *program.Program) error {
	printVersion(p.Out)
	return nil
}

func printVersion(out io.Writer) {
	version := "(development)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	fmt.Fprintf(out, "holdfast %s, schema version %d\n", strings.TrimPrefix(version, "v"), holdfast.SchemaVersion)
}
