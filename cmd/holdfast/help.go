package main

import (
	"strings"

	"github.com/alecthomas/kong"
)

// This file has the help of each command: when you need it, an example, and what its exit codes mean.

func (migrateCmd) Help() string {
	return `Run it as the owner of the schema, before the first service starts and with each new version. Many nodes may run it at
once. An upgrade is one transaction; docs/operations.md says what it locks.

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
1 if waiting would not help: no schema, a standby, a restored copy, a default isolation other than READ COMMITTED,
missing rights.

Passwords and tokens come from files or the environment. A broker that refuses them does not end it: it logs why and goes
on trying. docs/guides/kafka-connections.md explains the errors.

Example:

    holdfast relay --brokers kafka-1:9092,kafka-2:9092 --tls --sasl-mechanism scram-sha-512 --sasl-user relay --sasl-password-file /run/secrets/kafka`
}

func (statusCmd) Help() string {
	return `Cheap enough for a live system: it reads a bounded number of rows, however many wait. It exits with 0 if nothing needs a
person, and with 1 if something does or if it could not read the database. With --brokers it also shows how far consumers
are behind. docs/operations/status.md explains every column.

Example:

    holdfast status --watch --max-waiting-age 1h`
}

func (doctorCmd) Help() string {
	return `Before a service goes live, and when something is odd. Each check is ok, warn, fail or skip (not made), with one sentence and
the command that helps. It ends with what holdfast status says that needs a person, if the user may read that. It changes nothing. It
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
	return `A page that finds an event by its id, shows what waits, and works on dead letters, for you alone: it listens on a loopback
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

// commandOf is a command as it is written, without its other names.
func commandOf(node *kong.Node) string {
	if node.Parent == nil || node.Parent.Type == kong.ApplicationNode {
		return node.Name
	}
	return commandOf(node.Parent) + " " + node.Name
}

// exits are what the exit codes of a command mean, where that is not what they mean of all.
var exits = map[string]string{
	"status": "0 nothing needs a person; 1 something does, or it failed; 2 wrong command line",
	"doctor": "0 no check fails and nothing needs a person; 1 one does, something does, or it failed; 2 wrong command line",
	"find":   "0 found; 1 nothing is found, or it failed; 2 wrong command line",
	"relay":  "0 stopped by a signal; 1 waiting would not help; 2 wrong command line",
	"check":  "0 complete; 1 it is not, or a right is missing, or it failed; 2 wrong command line",
}

// sayExits ends the help of every command with what its exit codes mean.
func sayExits(app *kong.Application) {
	for _, leaf := range app.Leaves(true) {
		codes := exits[commandOf(leaf)]
		if codes == "" {
			codes = "0 done; 1 failed; 2 wrong command line"
		}
		leaf.Detail = strings.TrimSpace(leaf.Detail + "\n\nExit codes: " + codes + ".")
	}
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
