package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
)

// This file has the help of each command: when you need it, and an example. What commands share is in holdfast help, and what
// they share of Kafka in holdfast help kafka.

func (migrateCmd) Help() string {
	return `Run it as the owner of the schema, before the first service starts and with each new version. Many nodes may run it at
once. An upgrade is one transaction; docs/operations.md lists what it locks.

Example:

    holdfast migrate --lanes 16`
}

func (checkCmd) Help() string {
	return `Run it in a deployment before the new build starts. It exits with 1 if the schema is missing, was changed, or has a
version on which the build must not run. It names each difference and how to fix it.

With --role it also exits with 1 if the database user lacks a right of that part: run it with the connection string of the
service. It warns on standard error, and leaves the exit code as it is, if the user is a superuser; with --role also if the
user owns the schema, or if others are bound to consumers and this user is not.

Example:

    holdfast check --role consumer`
}

func (relayCmd) Help() string {
	return `For services that cannot embed a relay. Start as many as you like; they share the work. On SIGINT or SIGTERM it finishes
its work in progress, releases its lanes and exits with 0: allow it 30 s. A second signal ends it at once. It exits with
1 on errors that retrying cannot fix: no schema, a standby, a restored copy, a default isolation other than READ COMMITTED,
missing rights.

If a broker refuses the password or token, it logs why and keeps trying: docs/guides/kafka-connections.md explains the
errors.

Example:

    holdfast relay --brokers kafka-1:9092,kafka-2:9092 --tls --sasl-mechanism scram-sha-512 --sasl-user relay --sasl-password-file /run/secrets/kafka`
}

func (statusCmd) Help() string {
	return `Cheap enough for a live system: it reads a bounded number of rows, however many wait. It exits with 0 if nothing needs a
person, and with 1 if something does or if it could not read the database. With --brokers it also shows how far consumers
lag. docs/operations/status.md explains every column.

Example:

    holdfast status --watch --max-waiting-age 1h`
}

func (doctorCmd) Help() string {
	return `Before a service goes live, and when something looks wrong. Each check is ok, warn, fail or skip (not made), with one sentence and
the command that helps. Last comes what needs a person, as in holdfast status, if the user may read that. It changes nothing. It
exits with 1 if a check fails or something needs a person, and with 0 if there are only warnings. Give it the connection string of
the service. docs/operations/doctor.md explains the checks.

Example:

    holdfast doctor --role consumer --workers 8 --brokers kafka-1:9092 --topic orders`
}

func (adoptCmd) Help() string {
	return `Relays refuse to run on a copy that was restored into another cluster. Stop them all, run this command, and start them
again. Every event still in the log is published again. After pg_upgrade it only records the new identifier.

Example:

    holdfast adopt --yes`
}

func (consoleCmd) Help() string {
	return `A web page for you alone that finds an event by its id, shows what waits, and manages dead letters: it listens on a loopback
address, and answers only to the key in the address that it prints, or to the cookie that a browser gets for it. It changes nothing
without --change. What you change there is kept with your name. To give it to others, mount package console in a service
behind your own authentication. It runs until it is stopped.

Example:

    holdfast console --change --payloads`
}

func (versionCmd) Help() string {
	return `holdfast --version does the same.

Example:

    holdfast version`
}

func (completionCmd) Help() string {
	return `Have your shell read it when it starts. The shell then asks this program what may come next.

Example:

    echo 'source <(holdfast completion bash)' >> ~/.bashrc
    echo 'source <(holdfast completion zsh)' >> ~/.zshrc
    holdfast completion fish > ~/.config/fish/completions/holdfast.fish`
}

func (helpCmd) Help() string {
	return `The help of a command is that of its --help. The flags of the database are in holdfast help, those of Kafka in holdfast help kafka.

Example:

    holdfast help
    holdfast help dlq list
    holdfast help kafka`
}

// about is the help of the program, besides flags and commands.
const about = `The flags below are those of the database; they may come before the command or after it. holdfast help kafka has those of
Kafka. A flag overrides the variable in its brackets.

DATABASE_URL may have a password. --database-url may not, because a list of processes shows it. PGHOST, PGPORT, PGUSER, PGDATABASE,
PGPASSWORD, PGPASSFILE, PGSERVICE, PGSSLMODE and so on fill in what the connection string leaves out, as for psql.`

// exitCode is a row of the table of exit codes.
type exitCode struct{ command, zero, one string }

// exitCodes are what exit codes mean: first of all commands, then of those of which they mean something else.
var exitCodes = []exitCode{
	{"all", "done", "failed"},
	{"check", "complete", "it is not, a right is missing, it failed"},
	{"relay", "stopped by a signal", "retrying cannot fix it"},
	{"status", "nothing needs a person", "something does, or it failed"},
	{"find", "found", "nothing is found, or it failed"},
	{"doctor", "as status; no check fails", "as status; or a check fails"},
}

// exitTable is exitCodes as the help shows them.
func exitTable() string {
	var table strings.Builder
	table.WriteString("Exit codes: 2 is a wrong command line. 0 and 1 are:\n\n")
	for _, row := range append([]exitCode{{"", "0", "1"}}, exitCodes...) {
		fmt.Fprintf(&table, "    %-6s  %-25s  %s\n", row.command, row.zero, row.one)
	}
	return table.String()
}

// helpCmd prints what --help prints, and the help of what is no command: kafka.
type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command, or kafka."`
}

func (h helpCmd) Run(p *program.Program, k *kong.Context) error {
	if slices.Equal(h.Command, []string{kafkaGroup}) {
		return printKafkaHelp(p.Out, k.Model)
	}
	asked, err := kong.Trace(k.Kong, h.Command)
	if err == nil {
		err = asked.Error // which has the command of the nearest name
	}
	if err != nil {
		return program.UsageError{Err: err}
	}
	return asked.PrintUsage(false)
}

// kafkaGroup is the group of the flags that holdfast help kafka explains.
const kafkaGroup = "kafka"

// ofKafka says whether a flag is one of them.
func ofKafka(flag *kong.Flag) bool { return flag.Group != nil && flag.Group.Key == kafkaGroup }

// withoutDatabase are the commands that never use the database. Its flags do nothing there, so nothing shows them.
var withoutDatabase = []string{"version", "completion", "help"}

// commandOf is a command as it is written, without its other names.
func commandOf(node *kong.Node) string {
	if node.Parent == nil || node.Parent.Type == kong.ApplicationNode {
		return node.Name
	}
	return commandOf(node.Parent) + " " + node.Name
}

// printHelp prints the help of a command without the flags that it shares with others: one line says where those are.
func printHelp(options kong.HelpOptions, k *kong.Context) error {
	node := k.Selected()
	if node == nil {
		return kong.DefaultHelpPrinter(options, k)
	}
	own := slices.DeleteFunc(slices.Clone(node.Flags), ofKafka)
	where := "  Also those of the database: holdfast help."
	if len(own) < len(node.Flags) {
		where = "  Also those of the database: holdfast help; of Kafka: holdfast help kafka."
	}
	// kong's printer asks the model for the flags, and completion needs them afterwards.
	defer func(app *kong.Node, shared, all []*kong.Flag) { app.Flags, node.Flags = shared, all }(k.Model.Node, k.Model.Flags, node.Flags)
	k.Model.Flags, node.Flags = nil, own
	if err := kong.DefaultHelpPrinter(options, k); err != nil {
		return err
	}
	if len(node.Children) > 0 || slices.Contains(withoutDatabase, commandOf(node)) {
		return nil
	}
	_, err := fmt.Fprintln(k.Stdout, where)
	return err
}

// printKafkaHelp prints the flags of Kafka, and which commands have them.
func printKafkaHelp(out io.Writer, app *kong.Application) error {
	var commands []string
	for _, leaf := range app.Leaves(true) {
		if slices.ContainsFunc(leaf.Flags, ofKafka) {
			commands = append(commands, commandOf(leaf))
		}
	}
	parser, err := kong.New(&struct {
		Kafka kafkaFlags `embed:""`
	}{}, kong.Name("holdfast <command>"), kong.NoDefaultHelp(), kong.Writers(out, out), kong.ValueFormatter(formatValue), kong.Description(
		"The flags by which commands reach Kafka: "+strings.Join(commands, ", ")+". Their own help has --brokers.\n\nNo flag takes a password or a token. They come from a file, or from KAFKA_PASSWORD or KAFKA_TOKEN."))
	if err != nil {
		return err
	}
	k, err := kong.Trace(parser, nil)
	if err != nil {
		return err
	}
	return k.PrintUsage(false)
}

// formatValue is the help of a flag or an argument, with its default unless that stands beside its name.
func formatValue(v *kong.Value) string {
	if v.HasDefault && v.Default != "" && (v.Flag == nil || v.Flag.PlaceHolder != "") {
		with := *v
		with.Help += " Defaults to " + v.Default + "."
		v = &with
	}
	return kong.DefaultHelpValueFormatter(v)
}
