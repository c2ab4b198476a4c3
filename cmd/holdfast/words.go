package main

// The help of the commands: when you need them, and an example.

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

const whysHelp = `WHY says for what an event waits:

    scheduled      its time has not come (NotBefore)
    no-handler     no node of its consumer handles its type
    paused         a person has paused its topic, its consumer or its key
    topic          its topic takes no events: it is missing, say
    partition      its partition takes no events
    behind-event   an earlier event of its key waits
    behind-letter  a dead letter holds its key, until a person replays or discards that
    failed         its last attempt failed, and the next one is at NEXT

An event whose turn has come, or whose handler runs, waits for none of these.`

func (waitingGroupsCmd) Help() string {
	return `How much waits, where, of which topic and why. It reads all that waits.

` + whysHelp + `

Example:

    holdfast waiting groups
    holdfast waiting groups --consumer billing`
}

func (waitingListCmd) Help() string {
	return `First what waits in relays, then in consumers, then what is scheduled. It prints no payload.

` + whysHelp + `

Example:

    holdfast waiting list --consumer billing --why no-handler --heads
    holdfast waiting list --why scheduled --topic reminders`
}

func (waitingShowCmd) Help() string {
	return `Why does this event wait, and what went wrong each time? It prints no payload unless you ask for it. An event may wait in several
consumers.

Example:

    holdfast waiting show 0199c1a5-6f3e-7c11-b0a4-4f5dc0ffee00`
}

func (waitingRetryCmd) Help() string {
	return `When the cause is fixed and the next attempt is minutes away. Attempts stay as they are. In a consumer it leaves out events that wait
for an earlier one of their key or for a dead letter, and those whose handler runs. In relays it takes a topic, or a key or a
partition of it. If the topic or a partition takes no events, one event of it is tried at once, and if that is published all others
follow. Relays may run: they hand over one lane at a time, for a moment.

Example:

    holdfast waiting retry --consumer billing --type order.placed --reason "the tax service is back"
    holdfast waiting retry --origin relay --topic orders --reason "the broker takes 2 MiB now"`
}

func (waitingGiveUpCmd) Help() string {
	return `For a topic that will not come back, or for events that block their key in a consumer but should be handled later. They become
open dead letters, which you can read, edit, discard and replay. The next event of their key goes on before them. Relays may run:
they hand over one lane at a time, for a moment. Later events of the topic wait again. If it is interrupted, the same command continues.

Example:

    holdfast waiting give-up --origin relay --topic orders.v1 --reason "orders.v1 is retired"
    holdfast waiting give-up --consumer billing --type order.split --reason "rolled back, 2.1 brings it again"`
}

func (waitingDiscardCmd) Help() string {
	return `For events that nobody needs, or that no node will ever handle: of a type that a deploy brought and its rollback left behind, say.
Each becomes a discarded dead letter, so its payload stays until dlq purge. The next event of its key goes on. Otherwise
it is as give-up.

Example:

    holdfast waiting discard --consumer billing --type order.split --dry-run
    holdfast waiting discard --origin relay --topic tests --reason "nobody reads it any more"`
}

func (waitingRedirectCmd) Help() string {
	return `For a topic that was renamed or misspelt. The events of each key keep their order, and come after what waits for the
other topic. Relays may run: they hand over one lane at a time, for a moment. Later events of the old topic wait
there again. If it is interrupted, the same command continues.

Example:

    holdfast waiting redirect --topic ordres --to orders --reason "misspelt in shop 3.1"`
}

func (waitingCancelCmd) Help() string {
	return `For scheduled events that must not be published after all. Each becomes a discarded dead letter, so its payload stays until dlq
purge. An event whose time came meanwhile is not taken back, and the command says where it is.

Example:

    holdfast waiting cancel 0199c1a5-6f3e-7c11-b0a4-4f5dc0ffee00 --reason "the appointment was called off"`
}

func (dlqGroupsCmd) Help() string {
	return `Start here: each group is one kind of failure, with its newest dead letter as an example.

Example:

    holdfast dlq groups --consumer billing`
}

func (dlqShowCmd) Help() string {
	return `It prints no payload unless you ask for it.

Example:

    holdfast dlq show 4711 --payload`
}

func (findCmd) Help() string {
	return `Where is my event? It looks for the id in the log and in everything that waits, in the inboxes of consumers and in dead
letters, and says of each what the event waits for or what became of it. If producers and consumers have databases of
their own, ask each. It prints no payload. It exits with 1 if nothing is found.

Example:

    holdfast find 0199c1a5-6f3e-7c11-b0a4-4f5dc0ffee00`
}

func (consoleCmd) Help() string {
	return `A page that finds an event by its id, shows what waits, and works on dead letters, for you alone: it listens on a loopback
address, and answers only to the key in the address that it prints, or to the cookie that a browser gets for it. It changes nothing
without --change. What you change there is kept with your name. To give it to others, mount package console in a service
behind your own authentication. It runs until it is stopped.

Example:

    holdfast console --change --payloads`
}

func (dlqReplayCmd) Help() string {
	return `Fix the cause first. Each dead letter goes back to its relay or consumer, ahead of the events of its key that still wait.
Without HoldKey, later events may have been handled already. After an interruption the same command continues and
replays none twice.

Example:

    holdfast dlq replay --fingerprint '...' --rate 200 --reason "billing 1.4.2 knows the rate"`
}

func (dlqEditCmd) Help() string {
	return `For a wrong payload. Replay the dead letter afterwards.

Example:

    holdfast dlq edit 4711 fixed.json --reason "typo in the amount"`
}

func (dlqDiscardCmd) Help() string {
	return `For events that nobody should handle any more. If the dead letter held its key, later events of the key continue.

Example:

    holdfast dlq discard 4711 --reason "a test order"`
}

func (dlqPurgeCmd) Help() string {
	return `Keep dead letters for longer than a redelivery can be late (the inbox's retention).

Example:

    holdfast dlq purge --closed --before 30d`
}
