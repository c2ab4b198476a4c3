package main

import (
	"strings"

	"github.com/alecthomas/kong"
)

// The help of the commands that steer, and what the help of every command ends with.

func (pauseCmd) Help() string {
	return `For the time that a fix takes. Relays publish no event of a paused topic: its events wait in order, and all others go on. No
handler of a paused consumer begins; its events stay in their topics. The events of a paused key wait, and the other keys go on.
Relays and consumers see it within about a second, also those that start later. holdfast status shows what is paused, and
exits with 1 until it is resumed.

Example:

    holdfast pause --topic orders --reason "the consumer of the mail team is broken"
    holdfast pause --consumer billing --reason "the tax service is away"
    holdfast pause --consumer billing --topic orders --key customer-7 --reason "her account is being repaired"`
}

func (resumeCmd) Help() string {
	return `What waited goes on in order, within a few seconds.

Example:

    holdfast resume --topic orders --reason "billing 1.4.2 is deployed"`
}

func (tenantExportCmd) Help() string {
	return `When a tenant asks what you have of it, or moves out. Each line has the table, the row, and the payload or body as it is stored:
encrypted, if it was. How many rows each table had goes to standard error, with how many do not say whose they are. Run it as the owner
of the schema, and in each database that has something of the tenant. docs/guides/tenants.md says how events get a tenant.

Example:

    holdfast tenant export acme > acme.jsonl`
}

func (tenantEraseCmd) Help() string {
	return `When a tenant has left. Stop its writers first. Events that wait become tombstones, open dead letters are discarded, and the rest is
deleted, in short transactions, while relays and consumers may run. It says what remains, and why; an interrupted erasure goes on with
the same command. Run it as the owner of the schema. What is in a topic stays there until its retention: docs/guides/tenants.md.

Example:

    holdfast tenant erase acme --dry-run
    holdfast tenant erase acme --reason "contract 17 has ended"`
}

func (dlqListCmd) Help() string {
	return `The oldest first, a page at a time. It prints no payload.

Example:

    holdfast dlq list --consumer billing --within 24h`
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
